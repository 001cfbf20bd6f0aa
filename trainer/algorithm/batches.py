"""Turns accepted rollouts into batches: advantages, weights and old log-probabilities.

Claimed log-probabilities are used from replayed work only. Rewards are those that a quorum or `regrading` recomputed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch

from covey.errors import ProtocolError
from covey.protocol.ids import RolloutId, Step
from covey.protocol.submission_file.rows import is_whole
from trainer.algorithm.grpo import compute_advantages, compute_weights
from trainer.data.samples import AcceptedWork, Batch, Sample


def build_samples(
    works: Sequence[AcceptedWork], *, group_size: int, advantage: Literal["grpo", "dr_grpo"]
) -> list[Sample]:
    """Return samples in the order of (task, group, sibling), each with its advantage in its group.

    Raises ProtocolError("bad_batch") if a group is incomplete, a reward is NaN or Inf, or a task appears twice.
    """
    samples = []
    for work in sorted(works, key=lambda w: w.task):
        rows = sorted(work.rollouts, key=lambda r: (r.group, r.sibling))
        if not rows or not is_whole(rows, groups=-(-len(rows) // group_size), group_size=group_size):
            raise ProtocolError("bad_batch", f"task {work.task} has a group with missing or surplus rollouts")
        rewards = torch.tensor([r.reward for r in rows], dtype=torch.float64).view(-1, group_size)
        if not bool(rewards.isfinite().all()):
            raise ProtocolError("bad_batch", f"task {work.task} has a reward that is NaN or Inf")
        for row, value in zip(rows, compute_advantages(rewards, advantage).flatten().tolist(), strict=True):
            sample = Sample(
                id=RolloutId(task=work.task, group=row.group, sibling=row.sibling),
                policy_version=work.policy_version,
                prompt=row.prompt,
                tokens=row.tokens,
                finished=row.finished,
                reward=row.reward,
                advantage=value,
                old=row.logprobs if work.replayed else None,
            )
            samples.append(sample)
    if len({sample.id for sample in samples}) != len(samples):
        raise ProtocolError("bad_batch", "two submissions in the batch have the same task")
    return samples


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
    normaliser: Literal["tokens", "sequence", "constant"],
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
