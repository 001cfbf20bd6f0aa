"""Attention of packed samples, family by family. Tokens of different families are never compared, not even masked.

A family without branches is plain causal attention and needs no mask. On a GPU in half precision, all of them are one
call of torch's kernel for sequences of different lengths. Other families form stacks, with a mask where they branch.

It is registered in place of transformers' own SDPA, and calls that SDPA if there are no families.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from covey.errors import OperatorError

UNSERVED = ("softcap", "position_bias", "s_aux", "sliding_window")
"""Arguments of a layer's attention that `attend` does not support with families."""
PADDED = 1024
"""Maximum padding, in token pairs, for which a family shares a stack with a family of up to twice its length.

Computing this number of pairs costs about as much as one more call.
"""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lines:
    """Families without branches that one kernel computes together, without padding."""

    borders: Tensor
    """Index of each family's first token, and the number of tokens, int32[families + 1]."""
    longest: int
    """Number of tokens of the longest family."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Stack:
    """Families of similar length, padded to the length of the longest one."""

    count: int
    """Number of families."""
    length: int
    """Number of slots of each family."""
    mask: Tensor | None
    """Attention mask, bool[count, length, length]. Padding attends only to itself, and no token attends to padding.
    None if no family branches and there is no padding: attention is causal.
    """


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Families:
    """A sequence of packed tokens arranged for attention: the lines if there are any, and then the stacks."""

    lines: Lines | None
    stacks: tuple[Stack, ...]
    slots: Tensor | None
    """Index of the token in each slot, int64[slots]. A slot of padding has the last token of its family. None if every
    token is in its own slot.
    """
    places: Tensor | None
    """Slot of each token, int64[tokens]. None if every token is in its own slot."""


def build_families(ends: Tensor, *, device: torch.device, has_lines: bool = False) -> Families:
    """Build the families of a sequence of tokens on a device from its ends, int64[tokens] in main memory.

    `ends` are exclusive indices into the sequence. The tokens from a token up to its end attend to it, so a family ends
    where its first token does. With `has_lines`, the families without branches become lines instead of stacks. Nothing
    waits for the device.
    """
    subtree_ends, first_tokens = ends.numpy(), [0]
    while (following := int(subtree_ends[first_tokens[-1]])) < len(subtree_ends):
        first_tokens.append(following)
    starts = np.array(first_tokens)
    sizes = np.diff(starts, append=len(subtree_ends))
    is_open = subtree_ends != np.repeat(starts + sizes, sizes)
    branches = np.logical_or.reduceat(is_open, starts)
    straight = np.flatnonzero(~branches) if has_lines else np.zeros(0, np.int64)
    rest = np.setdiff1d(np.arange(len(starts)), straight)
    rest = rest[np.argsort(-sizes[rest], kind="stable")]
    lines, stacks = None, list[Stack]()
    slots = [np.arange(starts[i], starts[i] + sizes[i]) for i in straight]
    if len(straight):
        borders = np.concatenate([[0], sizes[straight].cumsum()])
        lines = Lines(borders=torch.from_numpy(borders.astype(np.int32)).to(device), longest=int(sizes[straight].max()))
        if not len(rest):
            return Families(lines=lines, stacks=(), slots=None, places=None)
    for first, last in _find_stacks(sizes[rest].tolist()):
        families = rest[first:last]
        begin, size, within = starts[families, None], sizes[families, None], np.arange(sizes[families[0]])
        tokens = begin + np.minimum(within, size - 1)
        mask = None
        if branches[families].any() or (size < len(within)).any():
            relative = np.where(within < size, subtree_ends[tokens] - begin, within + 1)
            mask = build_mask(torch.from_numpy(relative).to(device))
        stacks.append(Stack(count=len(families), length=len(within), mask=mask))
        slots.append(tokens.ravel())
    together = np.concatenate(slots)
    places = np.empty(len(subtree_ends), np.int64)
    places[together[::-1]] = np.arange(len(together))[::-1]  # a token's own slot comes before those of padding
    return Families(
        lines=lines,
        stacks=tuple(stacks),
        slots=torch.from_numpy(together).to(device),
        places=torch.from_numpy(places).to(device),
    )


def _find_stacks(sizes: list[int]) -> list[tuple[int, int]]:
    """Return the first and the last (exclusive) index of each stack. `sizes` are in descending order."""
    stacks: list[tuple[int, int]] = []
    for i, size in enumerate(sizes):
        first = stacks[-1][0] if stacks else i
        if stacks and sizes[first] <= 2 * size and sizes[first] ** 2 - size**2 <= PADDED:
            stacks[-1] = (first, i + 1)
        else:
            stacks.append((i, i + 1))
    return stacks


def build_mask(ends: Tensor) -> Tensor:
    """Return a mask, bool[count, length, length], in which the tokens from a token up to its end attend to it.

    `ends` is [count, length]. The mask is computed in place, because for 32,768 tokens it takes a gigabyte.
    """
    places = torch.arange(ends.shape[1], device=ends.device)
    return (places[:, None] < ends[:, None, :]).tril_()


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it depends on the values of tensors
def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    families: Families | None = None,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Compute attention of query, key and value, [1, heads, tokens, width] each. Returns [1, tokens, heads, width].

    Raises OperatorError("unsupported_model") if a layer requires attention that families do not support.
    """
    if families is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **rest
        )
        return plain
    if any(rest.get(name) is not None for name in UNSERVED):
        raise OperatorError(
            "unsupported_model",
            f"{type(module).__name__} uses an attention implementation that is not supported",
            fix="Use a different model",
        )
    states = [each[0].transpose(0, 1) for each in (query, key, value)]
    if families.slots is not None and families.places is not None:
        states = [_move(each, families.slots, families.places) for each in states]
    sizes = [stack.count * stack.length for stack in families.stacks]
    parts = (torch.split(each, [len(each) - sum(sizes), *sizes]) for each in states)
    (q, k, v), *stacked = zip(*parts, strict=True)
    outputs = [] if families.lines is None else [_attend_lines(q, k, v, families.lines, scaling)]
    for stack, part in zip(families.stacks, stacked, strict=True):
        q, k, v = (each.unflatten(0, (stack.count, stack.length)).transpose(1, 2) for each in part)
        attended = (
            _attend_causally(q, k, v, scaling).transpose(1, 2)
            if stack.mask is None
            else sdpa_attention_forward(module, q, k, v, stack.mask[:, None], scaling=scaling)[0]
        )
        outputs.append(attended.flatten(0, 1))
    output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    if families.slots is not None and families.places is not None:
        output = _move(output, families.places, families.slots)
    return output[None], None


def _attend_lines(query: Tensor, key: Tensor, value: Tensor, lines: Lines, scaling: float | None) -> Tensor:
    """Compute causal attention of lines, [tokens, heads, width] each."""
    if query.is_cuda:
        # Some models leave queries and keys in float32 after their rotary embeddings.
        query, key = query.to(value.dtype), key.to(value.dtype)
        borders, longest = lines.borders, lines.longest
        attended = varlen_attn(
            query, key, value, borders, borders, longest, longest,
            scale=scaling, window_size=(-1, 0), enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
        return cast(Tensor, attended)
    sizes = lines.borders.diff().tolist()
    split = (torch.split(each.transpose(0, 1)[None], sizes, dim=2) for each in (query, key, value))
    return torch.cat([_attend_causally(q, k, v, scaling)[0].transpose(0, 1) for q, k, v in zip(*split, strict=True)])


def _attend_causally(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Compute causal attention, [count, heads, length, width] each.

    On a GPU no float32 kernel takes fewer heads for keys than for queries, except the one that writes all weights.
    """
    groups = query.shape[1] // key.shape[1]
    if query.is_cuda and query.dtype is torch.float32:
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )


def _move(rows: Tensor, there: Tensor, back: Tensor) -> Tensor:
    return cast(Tensor, _Move.apply(rows, there, back))  # type: ignore[no-untyped-call]


class _Move(torch.autograd.Function):
    """Return rows[there] for rows [n, ...]. The backward pass gathers, too, where autograd would scatter and add.

    For a single move this is not the exact gradient: on the way out of the stacks, padding also gets a token's
    gradient. But no token attends to padding, so that gradient stays there, and the move into the stacks drops it.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return rows.index_select(0, there)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return slopes.index_select(0, back), None, None


AttentionInterface.register("sdpa", attend)
