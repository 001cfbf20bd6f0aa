"""Attention of packed samples, family by family: no token meets one of another family, not even behind a mask.

Registered over transformers' own SDPA, which it is wherever no families are given; called by the models' layers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from covey.errors import OperatorError

UNSERVED = ("softcap", "position_bias", "s_aux", "sliding_window")
"""What a layer may ask of its attention beyond `attend`."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    families: Sequence[Tensor] | None = None,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """[1, heads, tokens, width] each -> [1, tokens, heads, width].

    `families`: what each token sees, bool[count, length, length] for so many families of one length that follow each
    other; all of them are the row.  Raises OperatorError("unsupported_model") for what only transformers' code serves.
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
    sizes = [len(seen) * seen.shape[-1] for seen in families]
    split = (torch.split(each[0], sizes, dim=1) for each in (query, key, value))
    found = []
    for asking, keyed, told, seen in zip(*split, families, strict=True):
        q, k, v = (_stack(each, len(seen)) for each in (asking, keyed, told))
        attended, _ = sdpa_attention_forward(module, q, k, v, seen[:, None], scaling=scaling)
        found.append(attended.flatten(0, 1))
    return torch.cat(found)[None], None


def build_mask(branches: Tensor) -> Tensor:
    """[count, length] -> bool[count, length, length]: a token sees those before it and itself, of its prompt (branch 0)
    and its own completion.  In place: of 32,768 tokens it is a gigabyte."""
    mask = branches[:, :, None] == branches[:, None, :]
    mask |= branches[:, None, :] == 0
    return mask.tril_()


def _stack(states: Tensor, count: int) -> Tensor:
    """[heads, count x length, width] -> [count, heads, length, width]."""
    heads, tokens, width = states.shape
    return states.view(heads, count, tokens // count, width).transpose(0, 1)


AttentionInterface.register("sdpa", attend)
