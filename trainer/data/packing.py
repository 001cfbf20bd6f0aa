"""Sequence packing: siblings form one prefix tree, trees fill micro-batches by first fit, and ranks get equal shares.

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

MicroBatch = list[tuple[int, ...]]
"""Families. A family has the indices of samples with the same prompt, in the order of their tokens."""

MAX_MASKED_TOKENS = 1 << 15
"""Maximum number of tokens of a tree of several samples. Its mask takes the square of that in bytes, 1 GiB. An index of
32 bits would not reach the end of the mask of 46,341 tokens or more.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixTree:
    """Samples with the same prompt, which share the first tokens on which they agree. A single sample is a tree, too.

    A tree of several samples has at most `seq_len` tokens, and at most MAX_MASKED_TOKENS.
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

    The families of a micro-batch follow one another in a single sequence of tokens, without padding.
    """

    tokens: Tensor
    """Token ids fed to the model, int64[tokens]."""
    positions: Tensor
    """Position ids, int64[tokens]. They restart at 0 with each family. A branch continues from the position where it
    leaves the tree. Attention kernels without support for families find borders by the restarts.
    """
    ends: Tensor
    """End (exclusive) of each token's subtree in the flattened tree, int64[tokens] in main memory, where attention is
    planned. Only the tokens from this one up to its end attend to it.
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
    segments: Tensor
    """Number of each prediction's sample in the micro-batch, int64[n]. A sample is never divided."""

    def to(self, device: torch.device) -> "PackedBatch":
        """Move all tensors except `ends`."""
        moved: dict[str, Any] = {
            name: value if value is None or name == "ends" else value.to(device)
            for name in PackedBatch.__slots__
            for value in [getattr(self, name)]
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
    """Group samples with equal prompts into trees of at most `seq_len` tokens, and at most MAX_MASKED_TOKENS. Unless
    `is_shared`, each sample is one tree.

    A token costs 1, and each token with which it is compared costs 1 / `crossover`. Attention to `crossover` tokens
    therefore costs as much as everything else. A single sample is compared with its own past. A tree of several is
    computed with a mask, so that all its tokens are compared with each other. A sample joins a tree only if that costs
    less than a tree of its own, so long completions with a short prompt stay alone.
    """
    siblings: dict[tuple[int, ...] | int, list[int]] = {}
    for i, sample in enumerate(samples):
        siblings.setdefault(sample.prompt if is_shared else i, []).append(i)
    families = []
    for indices in siblings.values():
        family: PrefixTree | None = None
        for i in sorted(indices, key=lambda i: samples[i].tokens):  # adjacent samples have the longest common prefixes
            alone = _build_tree((i,), samples[i].fed, samples[i].fed ** 2, crossover)
            if family is not None:
                common = _count_common(samples[family.samples[-1]], samples[i])
                tokens, seen = family.tokens + alone.tokens - common, family.seen + alone.seen - common**2
                joined = _build_tree((*family.samples, i), tokens, seen, crossover)
                if tokens <= min(seq_len, MAX_MASKED_TOKENS) and joined.cost < family.cost + alone.cost:
                    family = joined
                    continue
                families.append(family)
            family = alone
        if family is not None:
            families.append(family)
    return families


def _build_tree(samples: tuple[int, ...], tokens: int, seen: int, crossover: int) -> PrefixTree:
    compared = seen if len(samples) == 1 else 2 * tokens**2
    return PrefixTree(samples=samples, tokens=tokens, seen=seen, cost=tokens + compared / crossover)


def _count_common(first: Sample, second: Sample) -> int:
    """Return the length of the common prefix of two samples with equal prompts, in tokens that are fed to the model."""
    prompt, fed = len(first.prompt), min(len(first.tokens), len(second.tokens)) - 1
    for i in range(fed):
        if first.tokens[i] != second.tokens[i]:
            return prompt + i
    return prompt + fed


def pack(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Pack families by first fit: the longest first, each into the first micro-batch with room. No family is cut.

    Returns the indices in each micro-batch of at most `room` tokens. Raises ValueError if a length exceeds `room`.
    """
    if lengths and max(lengths) > room:
        raise ValueError(f"a sequence of {max(lengths)} tokens does not fit into a micro-batch of {room}")
    batches: list[list[int]] = []
    left: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        batch = next((b for b, tokens in enumerate(left) if tokens >= lengths[i]), len(batches))
        if batch == len(batches):
            batches.append([])
            left.append(room)
        batches[batch].append(i)
        left[batch] -= lengths[i]
    return batches


def share(families: Sequence[PrefixTree], *, ranks: int, room: int) -> list[list[MicroBatch]]:
    """Return the micro-batches of each rank, of at most `room` tokens, or as many as the longest family has.

    Families go to the rank with the least work so far, the most expensive first. All ranks get the same number of
    micro-batches, and a missing one has no families.
    """
    assigned: list[list[PrefixTree]] = [[] for _ in range(ranks)]
    work = [0.0] * ranks
    for family in sorted(families, key=lambda each: (-each.cost, each.samples)):
        rank = work.index(min(work))
        assigned[rank].append(family)
        work[rank] += family.cost
    room = max([room, *(family.tokens for family in families)])
    filler: MicroBatch = []
    shares = [
        [[own[n].samples for n in batch] for batch in pack([each.tokens for each in own], room)] for own in assigned
    ]
    count = max(map(len, shares))
    return [[*each, *[filler] * (count - len(each))] for each in shares]


def build_rows(samples: Sequence[Sample], weights: Sequence[float], families: MicroBatch) -> PackedBatch:
    """Build the tensors of a micro-batch. A micro-batch without samples gets one token of padding.

    Raises ValueError if only some samples have `old`, `proximal` or `reference`.
    """
    line, chosen = _FlatTree(), [(samples[i], weights[i]) for family in families for i in family]
    places = [place for family in families for place in _write(line, [samples[i] for i in family])]
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
        segments=torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)),
    )


def _write(line: _FlatTree, family: Sequence[Sample]) -> Iterator[int]:
    """Add a family, and yield the indices at which the tokens of its samples are predicted."""
    for i, sample in enumerate(family):
        start = _count_common(family[i - 1], sample) if i else 0
        line.grow((*sample.prompt, *sample.tokens[:-1])[start:], start)
        yield from line.path[len(sample.prompt) - 1 :]
