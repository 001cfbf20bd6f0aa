"""Attention of packed samples, family by family: no token meets one of another family, not even behind a mask.

Registered over transformers' own SDPA, which it is wherever no families are given; called by the models' layers.
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
"""What a layer may ask of its attention beyond `attend`."""
PADDED = 1024
"""Pairs of tokens by which a family may be padded to stand with one of up to twice its length: what a call costs."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Families:
    """A line of tokens as attention takes it: families of about one length are a stack, padded to its longest."""

    masks: tuple[Tensor, ...]
    """What each token sees, bool[count, length, length] a stack.  Padding sees itself alone, and nothing sees it."""
    stacked: Tensor
    """int64[places]: the token at each place of all stacks; where padding is, the last of its family."""
    places: Tensor
    """int64[tokens]: where each token is among them."""


def build_families(positions: Tensor, ends: Tensor) -> Families:
    """Of a line, int64[tokens] each: positions restart at 0 with each family; a token is seen from itself on up to its
    end, which is a place of the line."""
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
    """First and last, not included, of each stack; longest families first."""
    stacks: list[tuple[int, int]] = []
    for i, size in enumerate(sizes):
        first = stacks[-1][0] if stacks else i
        if stacks and sizes[first] <= 2 * size and sizes[first] ** 2 - size**2 <= PADDED:
            stacks[-1] = (first, i + 1)
        else:
            stacks.append((i, i + 1))
    return stacks


def build_mask(ends: Tensor) -> Tensor:
    """[count, length] -> bool[count, length, length]: a token is seen from itself on up to its end.  In place: of
    32,768 tokens it is a gigabyte."""
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
    """[1, heads, tokens, width] each -> [1, tokens, heads, width].

    Raises OperatorError("unsupported_model") for what only transformers' code serves.
    """
    if families is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **rest
        )
        return plain
    if any(rest.get(name) is not None for name in UNSERVED):
        raise OperatorError(
            "unsupported_model", f"{type(module).__name__} has an attention of its own", fix="Use another model"
        )
    stacked, places = families.stacked, families.places
    states = [_move(each[0].transpose(0, 1), stacked, places) for each in (query, key, value)]
    split = (torch.split(each, [mask[:, 0].numel() for mask in families.masks]) for each in states)
    found = []
    for *parts, mask in zip(*split, families.masks, strict=True):
        q, k, v = (each.unflatten(0, mask.shape[:2]).transpose(1, 2) for each in parts)
        attended, _ = sdpa_attention_forward(module, q, k, v, mask[:, None], scaling=scaling)
        found.append(attended.flatten(0, 1))
    return _move(torch.cat(found), places, stacked)[None], None


def _move(rows: Tensor, there: Tensor, back: Tensor) -> Tensor:
    return cast(Tensor, _Move.apply(rows, there, back))  # type: ignore[no-untyped-call]


class _Move(torch.autograd.Function):
    """rows [n, ...] -> rows[there]; the backward pass gathers, too, where autograd's would add up what it scatters.

    Alone it is no gradient: on the way out of the stacks padding is given a token's slope, too.  But no token sees
    padding, so that slope stays there, and the way in drops it.
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
