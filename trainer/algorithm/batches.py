"""Turns accepted rollouts into batches: advantages, weights and old log-probabilities.

Unless the setting `old_policy` is "claimed", claimed log-probabilities are used from replayed work only. Rewards are
those that a quorum or `regrading` recomputed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from covey.errors import OperatorError, ProtocolError
from covey.protocol.ids import RolloutId, Step
from covey.protocol.submission_file.rows import Rollout, is_whole
from trainer.algorithm.custom_functions import load_function
from trainer.algorithm.grpo import compute_advantages, compute_weights
from trainer.algorithm.loss_settings import LossSettings, Normaliser
from trainer.data.samples import AcceptedWork, Batch, Sample


def build_samples(works: Sequence[AcceptedWork], *, group_size: int, loss: LossSettings) -> list[Sample]:
    """Return samples in the order of (task, group, sibling), each with its advantage in its group.

    Raises ProtocolError("bad_batch") if a group is incomplete, a reward is NaN or Inf, or a task appears twice. Raises
    OperatorError("bad_settings") if the custom advantages do not have one finite value per reward.
    """
    works = sorted(works, key=lambda w: w.task)
    rows = [_sort_rows(work, group_size) for work in works]
    rewards = [torch.tensor([row.reward for row in each], dtype=torch.float64).view(-1, group_size) for each in rows]
    lengths = [torch.tensor([len(row.tokens) for row in each]).view(-1, group_size) for each in rows]
    advantages = chain.from_iterable(each.flatten().tolist() for each in find_advantages(rewards, lengths, loss))
    pairs = [(work, row) for work, each in zip(works, rows, strict=True) for row in each]
    samples = [
        Sample(
            id=RolloutId(task=work.task, group=row.group, sibling=row.sibling),
            policy_version=work.policy_version,
            prompt=row.prompt,
            tokens=row.tokens,
            finished=row.finished,
            reward=row.reward,
            advantage=value,
            old=row.logprobs if work.replayed or loss.old_policy == "claimed" else None,
            audited=work.replayed,
        )
        for (work, row), value in zip(pairs, advantages, strict=True)
    ]
    if len({sample.id for sample in samples}) != len(samples):
        raise ProtocolError("bad_batch", "two submissions in the batch have the same task")
    return samples


def _sort_rows(work: AcceptedWork, group_size: int) -> list[Rollout]:
    """Return the rollouts of a submission in the order of (group, sibling)."""
    rows = sorted(work.rollouts, key=lambda r: (r.group, r.sibling))
    if not rows or not is_whole(rows, groups=-(-len(rows) // group_size), group_size=group_size):
        raise ProtocolError("bad_batch", f"task {work.task} has a group with missing or surplus rollouts")
    if not all(math.isfinite(row.reward) for row in rows):
        raise ProtocolError("bad_batch", f"task {work.task} has a reward that is NaN or Inf")
    return rows


def find_advantages(rewards: Sequence[Tensor], lengths: Sequence[Tensor], loss: LossSettings) -> list[Tensor]:
    """Return the advantages of each submission of a step, from its rewards, float64 [groups, siblings].

    They are computed per submission, because the last bits of a mean depend on how many groups are averaged at once.
    `custom_advantage` is called once, with all rewards and the lengths of the completions, int64 [groups, siblings].
    """
    if not rewards:
        return []
    if loss.custom_advantage is not None:
        advantages = _call_custom(torch.cat(list(rewards)), torch.cat(list(lengths)), loss.custom_advantage)
        return list(torch.split(advantages, [len(each) for each in rewards]))
    is_wide = loss.scale_rewards == "batch"
    deviation = torch.cat(list(rewards)).std(correction=loss.scale_rewards_ddof) if is_wide else None
    return [
        compute_advantages(
            each,
            loss.scale_rewards,
            ddof=loss.scale_rewards_ddof,
            epsilon=loss.scale_rewards_epsilon,
            deviation=deviation,
        )
        for each in rewards
    ]


def _call_custom(rewards: Tensor, lengths: Tensor, reference: str) -> Tensor:
    advantages = load_function(reference, "loss.custom_advantage")(rewards, lengths)
    if not isinstance(advantages, Tensor) or advantages.shape != rewards.shape or not bool(advantages.isfinite().all()):
        raise OperatorError(
            "bad_settings",
            f"loss.custom_advantage is {reference}, which did not return one finite value per reward",
            fix="Return a tensor with the shape of the rewards",
        )
    return advantages


def keep_live(samples: Sequence[Sample], *, group_size: int) -> list[Sample]:
    """Return the samples of live groups, whose rewards are not all equal.

    Samples of dead groups would only dilute them.
    """
    groups = [samples[start : start + group_size] for start in range(0, len(samples), group_size)]
    return [sample for group in groups if any(each.advantage for each in group) for sample in group]


def split_updates(samples: Sequence[Sample], *, group_size: int, updates: int) -> list[list[Sample]]:
    """Distribute whole groups over `updates` batches, one group at a time.

    There are fewer batches if there are fewer groups.
    """
    groups = [samples[start : start + group_size] for start in range(0, len(samples), group_size)]
    batches = [[sample for group in groups[turn::updates] for sample in group] for turn in range(updates)]
    return [batch for batch in batches if batch]


def build_batch(
    samples: Sequence[Sample],
    *,
    normaliser: Normaliser,
    constant: int,
    keep_all: bool,
    mask_truncated: bool = False,
) -> Batch:
    """Build the batch of one update with the weights of its samples.

    Samples of zero advantage are omitted unless `keep_all` is set. With `mask_truncated`, tokens of completions that
    were cut at the token limit have no loss and do not count in the weights. Their rewards still count in the
    advantages of their group (DAPO, arXiv 2503.14476, overlong filtering).
    """
    if mask_truncated:
        samples = [sample for sample in samples if sample.finished]
    if not samples:
        return Batch(samples=(), weights=(), tokens=0)
    lengths = torch.tensor([len(sample.tokens) for sample in samples])
    weights = compute_weights(lengths, normaliser, constant=constant).tolist()
    kept = [(s, w) for s, w in zip(samples, weights, strict=True) if keep_all or s.advantage != 0]
    return Batch(samples=tuple(s for s, _ in kept), weights=tuple(w for _, w in kept), tokens=int(lengths.sum()))


def fill_old(
    samples: Sequence[Sample], recompute: Callable[[Step, Sequence[Sample]], list[tuple[float, ...]]]
) -> list[Sample]:
    """Set the old log-probabilities of samples without trusted ones. `recompute` is called once per policy version."""
    missing: dict[Step, list[int]] = {}
    for i, sample in enumerate(samples):
        if sample.old is None:
            missing.setdefault(sample.policy_version, []).append(i)
    filled = list(samples)
    for version, indices in sorted(missing.items()):
        recomputed = recompute(version, [samples[i] for i in indices])
        for i, old in zip(indices, recomputed, strict=True):
            filled[i] = replace(samples[i], old=old)
    return filled
