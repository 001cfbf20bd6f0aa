"""Sequence packing: siblings form one prefix tree, trees fill rows by first fit, and ranks get equal shares.

The common prefix of siblings consists of their prompt and the first tokens on which they agree. It goes through the
model once (arXiv 2506.05433, 2511.00413). A token attends only to its own past, and its gradient is the sum over all
tokens that follow it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.data.samples import Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixTree:
    """Samples with the same prompt, which share the first tokens on which they agree. A single sample is a tree, too.

    A tree fits into a row, unless it is a single sample longer than a row.
    """

    samples: tuple[int, ...]
    """Indices of the samples, in the order of their tokens."""
    tokens: int
    """Number of tokens fed to the model."""
    seen: int
    """Number of attended (query, key) pairs, times two, so that a single sequence has length^2. Siblings do not attend
    to each other.
    """
    cost: float
    """Computation cost of the tree. The unit is one token without attention."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedBatch:
    """Packed samples: the model's inputs, [tokens] each, and the predictions, [n] each.

    The rows of a micro-batch follow one another in a single sequence of tokens.
    """

    tokens: Tensor
    """Token ids fed to the model, int64[tokens]."""
    positions: Tensor
    """Position ids, int64[tokens]. They restart at 0 with each family. A branch continues from the position where it
    leaves the tree. Attention kernels without support for families find borders by the restarts.
    """
    ends: Tensor
    """End (exclusive) of each token's subtree in the flattened tree, int64[tokens]. Only the tokens from this one up to
    its end attend to it.
    """
    places: Tensor
    """Index in `tokens` at which each prediction is made, int64[n]. Siblings share indices as long as they agree."""
    targets: Tensor
    """Token ids to predict, int64[n]."""
    old: Tensor | None
    """log p under the old policy, float32[n]. None if the samples do not have it."""
    proximal: Tensor | None
    """log p under the policy at the start of the step, float32[n]. None if the samples do not have it."""
    reference: Tensor | None
    """log p under the reference policy, float32[n]. None if the samples do not have it."""
    advantages: Tensor
    """Advantage of each prediction's sample, float32[n]."""
    weights: Tensor
    """Weight of each prediction in the loss, float32[n]."""

    def to(self, device: torch.device) -> "PackedBatch":
        moved: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value.to(device) for name in PackedBatch.__slots__
        }
        return PackedBatch(**moved)


@dataclass(slots=True)
class _FlatTree:
    """A sequence of prefix trees, flattened in the order in which they grow. The lists have one entry per token."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """End (exclusive) of each token's subtree. 0 while the subtree may still grow."""
    path: list[int] = field(default_factory=list)
    """Indices of the tokens from the root to the newest token."""

    def grow(self, tokens: Sequence[int], start: int) -> None:
        """Add a branch after the first `start` tokens of the path. If `start` is 0, begin a new tree."""
        self.leave(start)
        self.path += range(len(self.tokens), len(self.tokens) + len(tokens))
        self.tokens += tokens
        self.positions += range(start, start + len(tokens))
        self.ends += [0] * len(tokens)

    def leave(self, start: int) -> None:
        """Close the subtrees of all tokens in the path from index `start`."""
        for index in self.path[start:]:
            self.ends[index] = len(self.tokens)
        del self.path[start:]


def group(samples: Sequence[Sample], *, seq_len: int, crossover: int, is_shared: bool) -> list[PrefixTree]:
    """Group samples with equal prompts into trees of at most `seq_len` tokens. Unless `is_shared`, each sample is one
    tree.

    A token costs 1, and each token to which it attends costs 1 / `crossover`. Attention to `crossover` tokens therefore
    costs as much as everything else.
    """
    siblings: dict[tuple[int, ...] | int, list[int]] = {}
    for i, sample in enumerate(samples):
        siblings.setdefault(sample.prompt if is_shared else i, []).append(i)
    families = []
    for indices in siblings.values():
        family: list[int] = []
        tokens = seen = 0
        for i in sorted(indices, key=lambda i: samples[i].tokens):  # adjacent samples have the longest common prefixes
            sample = samples[i]
            common = _count_common(samples[family[-1]], sample) if family else 0
            if family and tokens + sample.fed - common > seq_len:
                families.append(_build_family(family, tokens, seen, crossover))
                family, tokens, seen, common = [], 0, 0, 0
            family.append(i)
            tokens, seen = tokens + sample.fed - common, seen + sample.fed**2 - common**2
        families.append(_build_family(family, tokens, seen, crossover))
    return families


def _build_family(samples: Sequence[int], tokens: int, seen: int, crossover: int) -> PrefixTree:
    return PrefixTree(samples=tuple(samples), tokens=tokens, seen=seen, cost=tokens + seen / crossover)


def _count_common(first: Sample, second: Sample) -> int:
    """Return the length of the common prefix of two samples with equal prompts, in tokens that are fed to the model."""
    prompt, fed = len(first.prompt), min(len(first.tokens), len(second.tokens)) - 1
    for i in range(fed):
        if first.tokens[i] != second.tokens[i]:
            return prompt + i
    return prompt + fed


def pack(lengths: Sequence[int], seq_len: int) -> list[list[int]]:
    """Pack samples into rows by first fit: the longest first, each into the first row with room. No sample is cut.

    Returns the sample indices in each row. Raises ValueError if a length exceeds `seq_len`.
    """
    if lengths and max(lengths) > seq_len:
        raise ValueError(f"a sequence of {max(lengths)} tokens does not fit into a row of {seq_len}")
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        row = next((r for r, left in enumerate(room) if left >= lengths[i]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(seq_len)
        rows[row].append(i)
        room[row] -= lengths[i]
    return rows


def share(
    families: Sequence[PrefixTree], *, ranks: int, seq_len: int, micro_batch_size: int
) -> list[list[list[list[int]]]]:
    """Return the micro-batches of each rank: lists of rows, which are lists of sample indices.

    The samples of a family stay together. Families go to the rank with the least work so far, the most expensive first.
    All ranks get the same number of micro-batches, and a missing one is a row without samples. If a family is longer
    than a row, all rows have its length.
    """
    assigned: list[list[PrefixTree]] = [[] for _ in range(ranks)]
    work = [0.0] * ranks
    for family in sorted(families, key=lambda each: (-each.cost, each.samples)):
        rank = work.index(min(work))
        assigned[rank].append(family)
        work[rank] += family.cost
    width = max([seq_len, *(family.tokens for family in families)])
    filler: list[list[int]] = [[]]
    shares = []
    for own in assigned:
        packed = pack([family.tokens for family in own], width)
        rows = [[i for n in row for i in own[n].samples] for row in packed]
        shares.append([rows[start : start + micro_batch_size] for start in range(0, len(rows), micro_batch_size)])
    count = max(map(len, shares))
    return [[*each, *[filler] * (count - len(each))] for each in shares]


def build_rows(
    samples: Sequence[Sample], weights: Sequence[float], rows: Sequence[Sequence[int]], *, is_shared: bool
) -> PackedBatch:
    """Build the tensors of a micro-batch. A micro-batch without samples gets one token of padding.

    With `is_shared`, consecutive samples with equal prompts in a row share their common prefix, even if they belong to
    two families.

    Raises ValueError if only some samples have `old`, `proximal` or `reference`.
    """
    line, chosen = _FlatTree(), [(samples[i], weights[i]) for row in rows for i in row]
    places = [place for row in rows for place in _write(line, [samples[i] for i in row], is_shared=is_shared)]
    if not chosen:
        line.grow([0], 0)
    line.leave(0)
    sizes = [len(sample.tokens) for sample, _ in chosen]

    # Through numpy, because torch reads lists of Python numbers much more slowly.
    def spread(values: Sequence[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(values, np.float32), sizes))

    def join(parts: Sequence[Sequence[float]], kind: type[np.generic]) -> Tensor:
        return torch.from_numpy(np.fromiter(chain.from_iterable(parts), kind, sum(sizes)))

    def read(name: str) -> Tensor | None:
        columns = [each for sample, _ in chosen if (each := getattr(sample, name)) is not None]
        if len(columns) not in (0, len(chosen)):
            raise ValueError(f"only {len(columns)} of {len(chosen)} samples have {name}")
        return join(columns, np.float32) if len(columns) == len(chosen) else None

    return PackedBatch(
        tokens=torch.from_numpy(np.array(line.tokens, np.int64)),
        positions=torch.from_numpy(np.array(line.positions, np.int64)),
        ends=torch.from_numpy(np.array(line.ends, np.int64)),
        places=torch.from_numpy(np.array(places, np.int64)),
        targets=join([sample.tokens for sample, _ in chosen], np.int64),
        old=read("old"),
        proximal=read("proximal"),
        reference=read("reference"),
        advantages=spread([sample.advantage for sample, _ in chosen]),
        weights=spread([weight for _, weight in chosen]),
    )


def _write(line: _FlatTree, row: Sequence[Sample], *, is_shared: bool) -> Iterator[int]:
    """Add the families of a row, and yield the indices at which the tokens of its samples are predicted."""
    last: Sample | None = None
    for sample in row:
        is_first = not is_shared or last is None or last.prompt != sample.prompt
        start = 0 if last is None or is_first else _count_common(last, sample)
        line.grow((*sample.prompt, *sample.tokens[:-1])[start:], start)
        yield from line.path[len(sample.prompt) - 1 :]
        last = sample
