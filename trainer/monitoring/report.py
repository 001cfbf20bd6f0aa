"""The metrics of one step, with the names in `metric_names`."""

from collections.abc import Sequence
from statistics import fmean, pstdev

from covey.environments.length_costs import LengthCosts
from covey.model.prompts import PromptFormat, decode_question
from covey.model.text import Tokenizer
from covey.protocol.ids import Step
from trainer.algorithm.learner import UpdateMetrics
from trainer.data.samples import AcceptedWork, Sample
from trainer.monitoring.metric_names import TYPE_REWARD, TYPE_SHARE


def build_report(
    samples: Sequence[Sample], updates: Sequence[UpdateMetrics], *, step: Step, works: Sequence[AcceptedWork | None]
) -> dict[str, float]:
    """Return the metrics of a step, with the names in `METRICS`.

    They are means over its samples, or over its updates that have samples. The gradient norm, and any metric that is
    called a maximum, is the maximum over the updates. `works` is the batch, with None for each skipped submission.
    """
    kept = [work for work in works if work is not None]
    looked_up = sum(work.looked_up for work in kept)
    taught = [update for update in updates if update.trained_tokens]
    count, rounds = max(1, len(samples)), max(1, len(taught))
    staleness = [step - sample.policy_version for sample in samples]

    def average(name: str) -> float:
        return float(sum(getattr(update, name) for update in taught)) / rounds

    return {
        "reward/mean": sum(s.reward for s in samples) / count,
        "policy/loss": average("loss"),
        "policy/entropy": average("entropy"),
        "policy/kl": average("kl"),
        "policy/clip_ratio": average("clip_ratio"),
        "policy/masked": average("masked"),
        "policy/claims_replaced": average("claims_replaced"),
        "policy/ratio": average("ratio_mean"),
        "policy/outside_clip": average("outside_clip"),
        "policy/mismatch_kl": average("mismatch_kl"),
        "policy/mismatch_kl_max": max((u.mismatch_kl_max for u in updates), default=0.0),
        "optim/grad_norm": max((u.gradient_norm for u in updates), default=0.0),
        "optim/learning_rate": updates[-1].learning_rate if updates else 0.0,
        "staleness_mean": sum(staleness) / count,
        "staleness_max": max(staleness, default=0),
        "batch/tokens": sum(u.tokens for u in updates),
        "batch/samples": len(samples),
        "batch/truncated_share": sum(not s.finished for s in samples) / count,
        "batch/unanswered_share": sum(work.unanswered for work in kept) / max(1, looked_up),
        "batch/live_share": sum(s.advantage != 0 for s in samples) / count,
        "batch/completion_tokens": sum(len(s.tokens) for s in samples) / count,
        "batch/left_out": len(works) - len(kept),
        "batch/regraded": sum(work.regraded for work in kept),
    } | _split_by_type(samples, kept)


def _split_by_type(samples: Sequence[Sample], works: Sequence[AcceptedWork]) -> dict[str, float]:
    """Return share and mean reward of the samples of each type of tasks. Samples without a type are left out."""
    types = {(work.task, group): name for work in works for group, name in enumerate(work.task_types)}
    rewards: dict[str, list[float]] = {}
    for sample in samples:
        name = types.get((sample.id.task, sample.id.group))
        if name is not None:
            rewards.setdefault(name, []).append(sample.reward)
    metrics: dict[str, float] = {}
    for name, earned in sorted(rewards.items()):
        metrics[TYPE_SHARE.format(name)] = len(earned) / len(samples)
        metrics[TYPE_REWARD.format(name)] = fmean(earned)
    return metrics


def split_rewards(
    samples: Sequence[Sample], costs: LengthCosts, tokenizer: Tokenizer, *, format: PromptFormat
) -> dict[str, float]:
    """Split the mean reward into the task's reward and the length penalty (the paper, section 3.1.2).

    A rollout has a single reward, so its length penalty is computed again from the prompt that the model read.
    """
    texts = {s.prompt: decode_question(tokenizer, s.prompt, format=format) for s in samples}
    parts = [costs.split(s.reward, texts[s.prompt], completion_tokens=len(s.tokens)) for s in samples]
    earned = [task for task, _ in parts]
    count = max(1, len(samples))
    return {
        "reward/task": sum(earned) / count,
        "reward/task_std": pstdev(earned) if earned else 0.0,
        "reward/length_penalty": sum(cost for _, cost in parts) / count,
    }
