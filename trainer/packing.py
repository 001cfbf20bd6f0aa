"""From samples to packed rows: siblings behind one copy of their prompt, first fit, equal shares of the ranks.

Called by `forward` and `learner`.  What a group's samples have in common goes through the model once (Prefix Grouper,
arXiv 2506.05433): a completion sees its prompt and itself, and the prompt's gradient is the sum over its completions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.batch import Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Samples that follow one copy of their prompt, a row's worth at most; a sample alone is one, too."""

    samples: tuple[int, ...]
    """Their indices."""
    tokens: int
    """That go into the model."""
    seen: int
    """Tokens that they look at, counted twice as in length^2 of a sequence alone; siblings do not see each other."""
    cost: float
    """In tokens without attention."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """Packed samples: what the model reads, one row behind the other, [tokens] each, and what it is to predict, [n]
    each."""

    tokens: Tensor
    positions: Tensor
    """Go on behind the prompt in each completion and restart at 0 with each family: this is how attention knows the
    borders where it is not told of families."""
    families: tuple[Tensor, ...]
    """Branches of the tokens, [count, length] for so many families of one length that follow each other: 0 in prompts,
    from 1 on in the completions of a family."""
    places: Tensor
    """Where each prediction is made; the first tokens of siblings share one."""
    targets: Tensor
    old: Tensor | None
    """None where the samples have none, like the next two."""
    proximal: Tensor | None
    reference: Tensor | None
    advantages: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> "Rows":
        moved: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value.to(device)
            for name in Rows.__slots__
            if name != "families"
        }
        return Rows(**moved, families=tuple(each.to(device) for each in self.families))


@dataclass(slots=True)
class _Line:
    """Families one behind the other: lists of an entry a token."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    families: list[list[int]] = field(default_factory=list)
    """Branches of each family's tokens."""
    places: list[int] = field(default_factory=list)
    """An entry a prediction."""

    def add(self, branch: int, tokens: Sequence[int], start: int) -> None:
        self.tokens += tokens
        self.positions += range(start, start + len(tokens))
        self.families[-1] += [branch] * len(tokens)


def group(samples: Sequence[Sample], *, row_tokens: int, crossover: int, is_shared: bool) -> list[Family]:
    """Samples of equal prompts together, as many as a row of `row_tokens` holds; each alone unless `is_shared`.

    A token costs 1, and the tokens that it sees 1 / `crossover`: attention to so many costs as much as all else.
    """
    open_families: dict[tuple[int, ...], list[int]] = {}
    families: list[list[int]] = []
    for i, sample in enumerate(samples):
        siblings = open_families.get(sample.prompt, []) if is_shared else []
        if not siblings or _count_tokens([samples[s] for s in (*siblings, i)]) > row_tokens:
            siblings = open_families[sample.prompt] = []
            families.append(siblings)
        siblings.append(i)
    return [_build_family(samples, each, crossover) for each in families]


def _build_family(samples: Sequence[Sample], indices: Sequence[int], crossover: int) -> Family:
    prompt = len(samples[indices[0]].prompt)
    lengths = [len(samples[i].tokens) - 1 for i in indices]
    seen = prompt**2 + sum(length * (2 * prompt + length) for length in lengths)
    tokens = prompt + sum(lengths)
    return Family(samples=tuple(indices), tokens=tokens, seen=seen, cost=tokens + seen / crossover)


def _count_tokens(siblings: Sequence[Sample]) -> int:
    return len(siblings[0].prompt) + sum(len(sample.tokens) - 1 for sample in siblings)


def pack(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Indices of each row: longest first into the first row that has room, never cut; raise ValueError for what is
    longer than a row."""
    if lengths and max(lengths) > row_tokens:
        raise ValueError(f"{max(lengths)} tokens do not fit a row of {row_tokens}")
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
    families: Sequence[Family], *, ranks: int, row_tokens: int, micro_batch_rows: int
) -> list[list[list[list[int]]]]:
    """The micro-batches of each rank: lists of rows, which are lists of sample indices, a family's one after another.

    Families go to the rank with the least work so far, the costliest first.  All ranks get equally many micro-batches:
    a missing one is a row without samples.  A family that is longer than a row makes all rows as long as itself.
    """
    parts: list[list[Family]] = [[] for _ in range(ranks)]
    work = [0.0] * ranks
    for family in sorted(families, key=lambda each: (-each.cost, each.samples)):
        rank = work.index(min(work))
        parts[rank].append(family)
        work[rank] += family.cost
    width = max([row_tokens, *(family.tokens for family in families)])
    filler: list[list[int]] = [[]]
    shares = []
    for part in parts:
        packed = pack([family.tokens for family in part], width)
        rows = [[i for place in row for i in part[place].samples] for row in packed]
        shares.append([rows[start : start + micro_batch_rows] for start in range(0, len(rows), micro_batch_rows)])
    count = max(map(len, shares))
    return [[*each, *[filler] * (count - len(each))] for each in shares]


def build_rows(
    samples: Sequence[Sample], weights: Sequence[float], rows: Sequence[Sequence[int]], *, is_shared: bool
) -> Rows:
    """Tensors of the rows of a micro-batch; one token of padding where there are no samples.

    `is_shared`: samples of equal prompts that follow each other in a row share its copy.  Raises ValueError where some
    samples have what others have not of `old`, `proximal` and `reference`.
    """
    order = [i for row in rows for i in row]
    line, chosen = _Line(), [(samples[i], weights[i]) for i in order]
    for row in rows:
        _write(line, [samples[i] for i in row], is_shared=is_shared)
    if not order:
        line.families.append([])
        line.add(0, [0], 0)
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

    return Rows(
        tokens=torch.from_numpy(np.array(line.tokens, np.int64)),
        positions=torch.from_numpy(np.array(line.positions, np.int64)),
        families=tuple(
            torch.from_numpy(np.array(list(alike), np.int64)) for _, alike in groupby(line.families, key=len)
        ),
        places=torch.from_numpy(np.array(line.places, np.int64)),
        targets=join([sample.tokens for sample, _ in chosen], np.int64),
        old=read("old"),
        proximal=read("proximal"),
        reference=read("reference"),
        advantages=spread([sample.advantage for sample, _ in chosen]),
        weights=spread([weight for _, weight in chosen]),
    )


def _write(line: _Line, row: Sequence[Sample], *, is_shared: bool) -> None:
    prompt, branch, last = None, 0, 0
    for sample in row:
        if not is_shared or sample.prompt != prompt:
            prompt, branch = sample.prompt, 0
            line.families.append([])
            line.add(branch, prompt, 0)
            last = len(line.tokens) - 1
        branch += 1
        start = len(line.tokens)
        line.add(branch, sample.tokens[:-1], len(prompt))
        line.places += [last, *range(start, len(line.tokens))]
