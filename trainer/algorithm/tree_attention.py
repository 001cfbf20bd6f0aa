"""Attention of packed samples, family by family. Tokens of different families are never compared, not even masked.

It is registered in place of transformers' own SDPA, and calls that SDPA if there are no families.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
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
class Families:
    """A sequence of packed tokens arranged for attention: stacks of families of similar length.

    A stack is padded to the length of its longest family.
    """

    masks: tuple[Tensor, ...]
    """Attention mask of each stack, bool[count, length, length]. Padding attends only to itself, and no token attends
    to padding.
    """
    stacked: Tensor
    """Index of the token in each slot of all stacks, int64[slots]. A padding slot has the last token of its family."""
    places: Tensor
    """Slot of each token, int64[tokens]."""


def build_families(positions: Tensor, ends: Tensor) -> Families:
    """Build the families of a sequence of tokens from its positions and ends, int64[tokens] each.

    Positions restart at 0 with each family. `ends` are exclusive indices into the sequence. The tokens from a token up
    to its end attend to it.
    """
    starts = (positions == 0).nonzero()[:, 0]
    sizes = torch.diff(starts, append=starts.new_tensor([len(positions)]))
    order = torch.argsort(sizes, descending=True, stable=True)
    starts, sizes = starts[order], sizes[order]
    masks, stacked, places, room = [], [], torch.empty_like(positions), 0
    lengths, every = sizes.tolist(), torch.arange(len(positions), device=positions.device)
    for first, last in _find_stacks(lengths):
        begin, size, within = starts[first:last, None], sizes[first:last, None], every[: lengths[first]]
        tokens, is_token = begin + torch.minimum(within, size - 1), within < size
        masks.append(build_mask(torch.where(is_token, ends[tokens] - begin, within + 1)))
        stacked.append(tokens.flatten())
        places[tokens[is_token]] = room + is_token.flatten().nonzero()[:, 0]
        room += tokens.numel()
    return Families(masks=tuple(masks), stacked=torch.cat(stacked), places=places)


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
    stacked, places = families.stacked, families.places
    states = [_move(each[0].transpose(0, 1), stacked, places) for each in (query, key, value)]
    split = (torch.split(each, [mask[:, 0].numel() for mask in families.masks]) for each in states)
    outputs = []
    for *stack, mask in zip(*split, families.masks, strict=True):
        q, k, v = (each.unflatten(0, mask.shape[:2]).transpose(1, 2) for each in stack)
        attended, _ = sdpa_attention_forward(module, q, k, v, mask[:, None], scaling=scaling)
        outputs.append(attended.flatten(0, 1))
    return _move(torch.cat(outputs), places, stacked)[None], None


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
