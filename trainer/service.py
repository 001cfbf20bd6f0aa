"""What a trainer decides: whether it may resume, what it trusts of a submission, when it is done.

Called by `loop`; functions of values.  The chain is the truth about what is published.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from covey.chain.structs import PoolTerms
from covey.environments.base import Environment
from covey.errors import OperatorError, ProtocolError
from covey.model.prompts import PromptFormat, decode_question
from covey.model.text import Tokenizer
from covey.protocol.api.trainer import BatchItem, BatchOrder
from covey.protocol.canonical import sha256
from covey.protocol.ids import Step
from covey.protocol.params import PoolParams
from covey.protocol.submission_file.rows import Budget, Rollout
from covey.protocol.submission_file.sandbox_frames import pack_call, unpack_answer
from covey.runtime.log import get_logger
from covey.sandbox import SandboxError
from covey.shardcast.store import Retention
from trainer.batch import Sample, Work
from trainer.learner import UpdateMetrics


def require_resumable(step: Step, published: int, *, max_staleness: int) -> None:
    """The masters stand for the policy of `step`, the chain holds `published` policies: this one is the newest there,
    or to come with at most `max_staleness` before it, for a batch wants work of a policy that was on chain; anything
    else is a lost checkpoint or another trainer's.  Raises OperatorError."""
    if max(step - max_staleness, min(step, 1)) <= published <= step + 1:
        return
    where, instead = "ahead of", "start a new pool"
    if published > step:
        where, instead = "behind", _advise_fresh_optimizer(published - 1)
    raise OperatorError(
        "wrong_checkpoint",
        f"the state of step {step} is {where} the chain, which holds {published} policies",
        fix=f"Resume with the home folder that this pool was trained with, or {instead}",
    )


def is_ahead(step: Step, unpublished: Step, *, max_staleness: int) -> bool:
    """Whether the policy of `step` can have no batch yet: all that is fresh enough for it is of policies from
    `unpublished` on."""
    return unpublished < max(1, step - max_staleness + 1)


def _advise_fresh_optimizer(newest: int) -> str:
    return (
        f"go on from policy {newest} with a fresh optimizer: copy home/exports/{newest}, remove home/checkpoints, "
        f"set initial_policy to the copy and initial_step to {newest}"
    )


def build_lost_policy(folder: Path, published: int) -> OperatorError:
    """Of one that is older than the masters and has to be published before theirs."""
    lost = int(folder.name)
    return OperatorError(
        "lost_policy",
        f"{folder} is damaged or gone, and the chain does not hold it yet",
        fix=f"Put a copy of it there; or, where home/checkpoints/{lost} is kept, remove those after it, and it is made "
        f"again; or {_advise_fresh_optimizer(published - 1)}",
    )


def is_finished(step: Step, steps: int | None) -> bool:
    """Whether the policy of `step` is the last one wanted."""
    return steps is not None and step >= steps


def is_evaluated(step: Step, *, steps: int | None, every: int) -> bool:
    """Whether the policy of `step` is to be evaluated."""
    return every > 0 and (step % every == 0 or is_finished(step, steps))


def build_retention(keep: int, terms: PoolTerms, params: PoolParams) -> Retention:
    """Which policies stay in the origin: `keep` of them at least, and all whose work may still be challenged or audited
    (docs/decisions/028-how-long-a-policy-is-kept.md)."""
    # Work of a policy is refused once one that is max_staleness + 1 newer is on chain; the next is stored after that.
    lifetime = params.max_staleness + 2
    judging = params.max_judgements * params.judgement_seconds
    epoch = max(params.epoch_seconds, terms.epoch_length)
    seconds = judging + epoch + terms.challenge_window + terms.veto_window
    return Retention(keep=max(keep, lifetime), seconds=seconds, lifetime=lifetime)


def require_order(order: BatchOrder, step: Step) -> None:
    """The order is for `step`, which the claim named; raise OperatorError: whoever answers otherwise would for ever."""
    if order.step != step:
        raise OperatorError(
            "wrong_batch",
            f"the coordinator answers the claim for step {step} with a batch of step {order.step}",
            fix="See that coordinator_url names the pool's coordinator, and that it runs the trainer's release",
        )


def is_fresh(item: BatchItem, step: Step, params: PoolParams) -> bool:
    """Whether a submission is neither too old for `step` nor of a policy to come; one that is gets logged."""
    if 0 <= step - item.policy_version <= params.max_staleness:
        return True
    get_logger().error("submission left out, it is stale", task=item.task, policy=item.policy_version, step=step)
    return False


def build_lost_reference(reason: str) -> OperatorError:
    """Of the policy of step 0, where `kl_coefficient` wants it."""
    return OperatorError(
        "no_reference",
        f"{reason}, to which kl_coefficient refers",
        fix="Put a copy of it there, from the home that is lost, or set kl_coefficient to 0",
    )


def read_work(
    item: BatchItem, file: bytes, params: PoolParams, *, vocabulary: int, decode: Callable[[bytes], bytes]
) -> Work | None:
    """The rollouts of an accepted submission; None for content that cannot be trained on.

    `decode` is `codec.decode_framed` in a process that may die.  Raises ProtocolError("digest_mismatch") when the file
    is not the accepted one.  What was accepted unreplayed may still be hostile: it is left out, and learning goes on.
    """
    if sha256(file) != item.work_key:
        raise ProtocolError("digest_mismatch", f"the file of task {item.task} is not the accepted one")
    try:
        rows = unpack_answer(decode(pack_call(file, build_budget(params))))
        _require_rows(rows, params, vocabulary)
    except (ProtocolError, SandboxError) as error:
        get_logger().warning("submission left out", task=item.task, code=error.code, message=error.message)
        return None
    is_of_the_policy = item.replayed and params.model.temperature == 1  # claims are of the unmodified model
    return Work(task=item.task, policy_version=item.policy_version, replayed=is_of_the_policy, rollouts=tuple(rows))


def build_budget(params: PoolParams) -> Budget:
    """What a task's file may hold."""
    return Budget(
        file_bytes=params.max_submission_bytes,
        rows=params.rollouts_per_task,
        prompt_tokens=params.model.max_prompt_tokens,
        completion_tokens=params.model.max_completion_tokens,
        proof_bytes=params.proof_bytes,
        proof_window=params.verification.proof_window,
    )


def _require_rows(rows: Sequence[Rollout], params: PoolParams, vocabulary: int) -> None:
    slots = [divmod(i, params.group_size) for i in range(params.rollouts_per_task)]
    if sorted((r.group, r.sibling) for r in rows) != slots:
        raise ProtocolError("bad_batch", "its rows are not those of a task")
    # An index beyond the embedding is an exception on a CPU and the end of the process on a GPU.
    if max(token for row in rows for token in (*row.prompt, *row.tokens)) >= vocabulary:
        raise ProtocolError("bad_batch", f"a token is outside the vocabulary of {vocabulary}")


def build_report(
    samples: Sequence[Sample], updates: Sequence[UpdateMetrics], *, step: Step, left_out: int, regraded: int
) -> dict[str, float]:
    """Metrics of a step by the names of docs/operations.md: means over its samples, and over the updates that had any;
    the gradient norm and what is called a maximum are the largest of the updates."""
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
        "batch/live_share": sum(s.advantage != 0 for s in samples) / count,
        "batch/completion_tokens": sum(len(s.tokens) for s in samples) / count,
        "batch/left_out": left_out,
        "batch/regraded": regraded,
    }


def split_rewards(
    samples: Sequence[Sample], environment: Environment, tokenizer: Tokenizer, *, format: PromptFormat
) -> dict[str, float]:
    """The mean reward as the task's part less what the lengths cost (the paper, section 3.1.2).

    A rollout holds one reward, so its length's part is computed again from the prompt that the model read.
    """
    texts = {s.prompt: decode_question(tokenizer, s.prompt, format=format) for s in samples}
    costs = [environment.compute_length_cost(texts[s.prompt], completion_tokens=len(s.tokens)) for s in samples]
    count = max(1, len(samples))
    return {
        "reward/task": sum(s.reward + cost for s, cost in zip(samples, costs, strict=True)) / count,
        "reward/length_penalty": sum(costs) / count,
    }
