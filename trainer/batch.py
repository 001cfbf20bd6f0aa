"""From accepted rollouts to packed rows: advantages, weights, equal shares of the ranks, first-fit packing.

Called by `loop` and `learner`.  Claimed log-probabilities are taken from replayed work only; rewards are those that
validators have recomputed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from covey.errors import ProtocolError
from covey.protocol.ids import RolloutId, Step, TaskId
from covey.protocol.rollout import Rollout
from trainer.grpo import compute_advantages, compute_weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One accepted submission of a step."""

    task: TaskId
    policy_version: Step
    replayed: bool
    """Whether a replay confirmed the claimed log-probabilities."""
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One rollout as the learner needs it."""

    id: RolloutId
    policy_version: Step
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    reward: float
    advantage: float
    old: tuple[float, ...] | None
    """log p(token) under the old policy; None: to be recomputed here."""
    proximal: tuple[float, ...] | None = None
    """log p(token) under the policy that the step starts from, where updates have moved away from it."""
    reference: tuple[float, ...] | None = None
    """log p(token) under the reference, where a divergence is wanted."""

    @property
    def fed(self) -> int:
        """Tokens that go into the model: all but the last, which predicts nothing."""
        return len(self.prompt) + len(self.tokens) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What one update consumes, whole on every rank.  Samples of zero advantage may be missing; their tokens still
    count in `weights`."""

    samples: tuple[Sample, ...]
    weights: tuple[float, ...]
    """Of each token of a sample, in the loss of the whole update."""
    tokens: int
    """Loss-bearing tokens of the update, missing samples included."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """Packed samples; all [rows, width].  Position t holds what belongs to the prediction of token t + 1."""

    tokens: Tensor
    positions: Tensor
    """Restart at 0 with each sample and are 0 in padding, which is how attention knows the borders."""
    targets: Tensor
    """The predicted token, where `mask` is true."""
    mask: Tensor
    """bool: the prediction is of a completion token."""
    old: Tensor
    proximal: Tensor | None
    """None where the samples have none."""
    reference: Tensor
    advantages: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> "Rows":
        values = {name: getattr(self, name) for name in Rows.__slots__}
        moved: dict[str, Any] = {name: None if value is None else value.to(device) for name, value in values.items()}
        return Rows(**moved)


def build_samples(works: Sequence[Work], *, group_size: int, advantage: Literal["grpo", "dr_grpo"]) -> list[Sample]:
    """Samples in order of (task, group, sibling), with the advantage of each within its group.

    Raises ProtocolError("bad_batch") unless every group is whole, every reward a number and no task stands twice.
    """
    samples = []
    for work in sorted(works, key=lambda w: w.task):
        rows = sorted(work.rollouts, key=lambda r: (r.group, r.sibling))
        wanted = [divmod(i, group_size) for i in range(len(rows))]
        if not rows or [(r.group, r.sibling) for r in rows] != wanted or len(rows) % group_size:
            raise ProtocolError("bad_batch", f"task {work.task} has groups that are not whole")
        rewards = torch.tensor([r.reward for r in rows], dtype=torch.float64).view(-1, group_size)
        if not bool(rewards.isfinite().all()):
            raise ProtocolError("bad_batch", f"task {work.task} has a reward that is no number")
        for row, value in zip(rows, compute_advantages(rewards, advantage).flatten().tolist(), strict=True):
            sample = Sample(
                id=RolloutId(task=work.task, group=row.group, sibling=row.sibling),
                policy_version=work.policy_version,
                prompt=row.prompt,
                tokens=row.tokens,
                reward=row.reward,
                advantage=value,
                old=row.logprobs if work.replayed else None,
            )
            samples.append(sample)
    if len({sample.id for sample in samples}) != len(samples):
        raise ProtocolError("bad_batch", "a task stands twice in one batch")
    return samples


def split_updates(samples: Sequence[Sample], *, group_size: int, updates: int) -> list[list[Sample]]:
    """Whole groups dealt out in turn to `updates` batches; fewer when there are fewer groups."""
    groups = [samples[start : start + group_size] for start in range(0, len(samples), group_size)]
    parts = [[sample for group in groups[turn::updates] for sample in group] for turn in range(updates)]
    return [part for part in parts if part]


def build_batch(
    samples: Sequence[Sample],
    *,
    normaliser: Literal["tokens", "sequence", "constant"],
    constant: int,
    keep_all: bool,
) -> Batch:
    """Weights of one update's samples; those of zero advantage are left out unless `keep_all`."""
    lengths = torch.tensor([len(sample.tokens) for sample in samples])
    weights = compute_weights(lengths, normaliser, constant=constant).tolist()
    kept = [(s, w) for s, w in zip(samples, weights, strict=True) if keep_all or s.advantage != 0]
    return Batch(samples=tuple(s for s, _ in kept), weights=tuple(w for _, w in kept), tokens=int(lengths.sum()))


def fill_old(
    samples: Sequence[Sample], recompute: Callable[[Step, Sequence[Sample]], list[tuple[float, ...]]]
) -> list[Sample]:
    """Log-probabilities where none are trusted: `recompute` is asked once for each policy version."""
    missing: dict[Step, list[int]] = {}
    for i, sample in enumerate(samples):
        if sample.old is None:
            missing.setdefault(sample.policy_version, []).append(i)
    filled = list(samples)
    for version, places in sorted(missing.items()):
        found = recompute(version, [samples[i] for i in places])
        for i, old in zip(places, found, strict=True):
            filled[i] = replace(samples[i], old=old)
    return filled


def pack(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Indices of each row: longest first into the first row that has room, never cut; raise ValueError for a sample
    that is longer than a row."""
    if lengths and max(lengths) > row_tokens:
        raise ValueError(f"a sample of {max(lengths)} tokens does not fit a row of {row_tokens}")
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        row = next((r for r, left in enumerate(room) if left >= lengths[i]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(row_tokens)
        rows[row].append(i)
        room[row] -= lengths[i]
    return rows


def share(
    lengths: Sequence[int], *, ranks: int, row_tokens: int, micro_batch_rows: int, crossover: int
) -> list[list[list[list[int]]]]:
    """The micro-batches of each rank: lists of rows, which are lists of sample indices.

    Samples go to the rank with the least work so far, the costliest first; a sample of n tokens costs n + n^2 /
    `crossover`, which is where attention costs as much as all else.  All ranks get equally many micro-batches: a
    missing one is a row without samples.  One sample that is longer than a row makes all rows as long as itself.
    """
    costs = [length + length**2 / crossover for length in lengths]
    parts: list[list[int]] = [[] for _ in range(ranks)]
    work = [0.0] * ranks
    for i in sorted(range(len(lengths)), key=lambda i: (-costs[i], i)):
        rank = work.index(min(work))
        parts[rank].append(i)
        work[rank] += costs[i]
    width = max([row_tokens, *lengths])
    filler: list[list[int]] = [[]]
    shares = []
    for part in parts:
        rows = [[part[i] for i in row] for row in pack([lengths[i] for i in part], width)]
        shares.append([rows[start : start + micro_batch_rows] for start in range(0, len(rows), micro_batch_rows)])
    count = max(map(len, shares))
    return [[*each, *[filler] * (count - len(each))] for each in shares]


def build_rows(samples: Sequence[Sample], weights: Sequence[float], rows: Sequence[Sequence[int]]) -> Rows:
    """Tensors of the rows of a micro-batch, as wide as the longest; a missing `old` or `reference` is 0."""
    shape = len(rows), max(1, *(sum(samples[i].fed for i in row) for row in rows))
    whole = {name: torch.zeros(shape, dtype=torch.int64) for name in ("tokens", "positions", "targets")}
    names = ("old", "proximal", "reference", "advantages", "weights")
    real = {name: torch.zeros(shape, dtype=torch.float32) for name in names}
    has_proximal = all(samples[i].proximal is not None for row in rows for i in row)
    mask = torch.zeros(shape, dtype=torch.bool)
    for r, row in enumerate(rows):
        start = 0
        for i in row:
            sample, end = samples[i], start + samples[i].fed
            sequence = torch.tensor([*sample.prompt, *sample.tokens])
            first = start + len(sample.prompt) - 1
            whole["tokens"][r, start:end] = sequence[:-1]
            whole["positions"][r, start:end] = torch.arange(sample.fed)
            whole["targets"][r, start:end] = sequence[1:]
            mask[r, first:end] = True
            real["advantages"][r, first:end] = sample.advantage
            real["weights"][r, first:end] = weights[i]
            for name in ("old", "proximal", "reference"):
                if getattr(sample, name) is not None:
                    real[name][r, first:end] = torch.tensor(getattr(sample, name))
            start = end
    proximal = real.pop("proximal")
    return Rows(**whole, **real, proximal=proximal if has_proximal else None, mask=mask)
