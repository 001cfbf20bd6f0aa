"""From samples to packed rows: siblings as one tree, first fit, equal shares of the ranks.

Called by `forward` and `learner`.  What siblings have in common, their prompt and as many tokens as they agree on, goes
through the model once (arXiv 2506.05433, 2511.00413): a token sees its own past, and its gradient is the sum over all
that follow it.
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
    """Samples that share a prompt and what they agree on, a row's worth at most; a sample alone is one, too."""

    samples: tuple[int, ...]
    """Their indices, in the order of their tokens."""
    tokens: int
    """That go into the model."""
    seen: int
    """Tokens that they look at, counted twice as in length^2 of a sequence alone; siblings do not see each other."""
    cost: float
    """In tokens without attention."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedBatch:
    """Packed samples: what the model reads, one row behind the other, [tokens] each, and what it is to predict, [n]
    each."""

    tokens: Tensor
    positions: Tensor
    """Go on in each branch where it leaves another, and restart at 0 with each family: this is how attention knows the
    borders where it is not told of families."""
    ends: Tensor
    """Where in the line what follows each token is over: it is seen from itself on up to there."""
    places: Tensor
    """Where each prediction is made; siblings share those where they agree so far."""
    targets: Tensor
    old: Tensor | None
    """None where the samples have none, like the next two."""
    proximal: Tensor | None
    reference: Tensor | None
    advantages: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> "PackedBatch":
        moved: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value.to(device) for name in PackedBatch.__slots__
        }
        return PackedBatch(**moved)


@dataclass(slots=True)
class _FlatTree:
    """Families one behind the other, each a tree in the order in which it is grown: lists of an entry a token."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Where what follows a token is over."""
    path: list[int] = field(default_factory=list)
    """Places of the tokens from the root to the last one."""

    def grow(self, tokens: Sequence[int], start: int) -> None:
        """A branch behind the first `start` tokens of the path; 0 begins a family."""
        self.leave(start)
        self.path += range(len(self.tokens), len(self.tokens) + len(tokens))
        self.tokens += tokens
        self.positions += range(start, start + len(tokens))
        self.ends += [0] * len(tokens)

    def leave(self, start: int) -> None:
        """Nothing follows the tokens of the path from `start` on any more."""
        for place in self.path[start:]:
            self.ends[place] = len(self.tokens)
        del self.path[start:]


def group(samples: Sequence[Sample], *, seq_len: int, crossover: int, is_shared: bool) -> list[PrefixTree]:
    """Samples of equal prompts together, as many as a row of `seq_len` holds; each alone unless `is_shared`.

    A token costs 1, and the tokens that it sees 1 / `crossover`: attention to so many costs as much as all else.
    """
    siblings: dict[tuple[int, ...] | int, list[int]] = {}
    for i, sample in enumerate(samples):
        siblings.setdefault(sample.prompt if is_shared else i, []).append(i)
    families = []
    for indices in siblings.values():
        family: list[int] = []
        tokens = seen = 0
        for i in sorted(indices, key=lambda i: samples[i].tokens):  # neighbours have most in common
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
    """Tokens with which what two samples of one prompt feed begins."""
    prompt, fed = len(first.prompt), min(len(first.tokens), len(second.tokens)) - 1
    for i in range(fed):
        if first.tokens[i] != second.tokens[i]:
            return prompt + i
    return prompt + fed


def pack(lengths: Sequence[int], seq_len: int) -> list[list[int]]:
    """Indices of each row: longest first into the first row that has room, never cut; raise ValueError for what is
    longer than a row."""
    if lengths and max(lengths) > seq_len:
        raise ValueError(f"{max(lengths)} tokens do not fit a row of {seq_len}")
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
    """The micro-batches of each rank: lists of rows, which are lists of sample indices, a family's one after another.

    Families go to the rank with the least work so far, the costliest first.  All ranks get equally many micro-batches:
    a missing one is a row without samples.  A family that is longer than a row makes all rows as long as itself.
    """
    parts: list[list[PrefixTree]] = [[] for _ in range(ranks)]
    work = [0.0] * ranks
    for family in sorted(families, key=lambda each: (-each.cost, each.samples)):
        rank = work.index(min(work))
        parts[rank].append(family)
        work[rank] += family.cost
    width = max([seq_len, *(family.tokens for family in families)])
    filler: list[list[int]] = [[]]
    shares = []
    for part in parts:
        packed = pack([family.tokens for family in part], width)
        rows = [[i for place in row for i in part[place].samples] for row in packed]
        shares.append([rows[start : start + micro_batch_size] for start in range(0, len(rows), micro_batch_size)])
    count = max(map(len, shares))
    return [[*each, *[filler] * (count - len(each))] for each in shares]


def build_rows(
    samples: Sequence[Sample], weights: Sequence[float], rows: Sequence[Sequence[int]], *, is_shared: bool
) -> PackedBatch:
    """Tensors of the rows of a micro-batch; one token of padding where there are no samples.

    `is_shared`: samples of equal prompts that follow each other in a row share what they have in common, also where
    they are of two families.  Raises ValueError where some samples have what others have not of `old`, `proximal` and
    `reference`.
    """
    line, chosen = _FlatTree(), [(samples[i], weights[i]) for row in rows for i in row]
    places = [place for row in rows for place in _write(line, [samples[i] for i in row], is_shared=is_shared)]
    if not chosen:
        line.grow([0], 0)
    line.leave(0)
    sizes = [len(sample.tokens) for sample, _ in chosen]

    # By numpy: torch reads lists of Python's numbers several times as slowly.
    def spread(values: Sequence[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(values, np.float32), sizes))

    def join(parts: Sequence[Sequence[float]], kind: type[np.generic]) -> Tensor:
        return torch.from_numpy(np.fromiter(chain.from_iterable(parts), kind, sum(sizes)))

    def read(name: str) -> Tensor | None:
        found = [each for sample, _ in chosen if (each := getattr(sample, name)) is not None]
        if len(found) not in (0, len(chosen)):
            raise ValueError(f"{len(found)} of {len(chosen)} samples have {name}")
        return join(found, np.float32) if len(found) == len(chosen) else None

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
    """Grow a row's families; the places where the tokens of its samples are predicted."""
    last: Sample | None = None
    for sample in row:
        is_first = not is_shared or last is None or last.prompt != sample.prompt
        start = 0 if last is None or is_first else _count_common(last, sample)
        line.grow((*sample.prompt, *sample.tokens[:-1])[start:], start)
        yield from line.path[len(sample.prompt) - 1 :]
        last = sample
