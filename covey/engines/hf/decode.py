"""Decodes a batch of sequences of different lengths with a transformers model: each prompt once, then token by token.

Siblings share a prompt and often their first tokens. An equal prefix is computed once, with one KV cache. Rows are
right-aligned (padded on the left), so the last column always predicts the next token.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from transformers import PreTrainedModel

from covey.engines.hf.kv_cache import BLOCK, BlockCache, keep_rows
from covey.model.policy_files import get_head

Places = NDArray[np.int64]
"""Indices into a `Prefix`, one per row of the batch."""


@dataclass(slots=True, kw_only=True, eq=False)
class Prefix:
    """The distinct token sequences of a batch so far. `append` extends them."""

    cache: BlockCache
    """KV cache of the sequences."""
    mask: torch.Tensor | None
    """Attention mask, int64[distinct, at least columns]: 1 for a token and 0 for padding. Columns of future tokens are
    1. None if there is no padding.
    """
    columns: int
    """Number of tokens of each sequence with its padding."""
    lengths: torch.Tensor
    """Number of tokens of each sequence, int64[distinct]."""
    hidden: torch.Tensor
    """Hidden state of the last token of each sequence, [distinct, hidden]."""
    logits: torch.Tensor
    """Logits of the next token of each sequence, float32[distinct, V]."""

    def select(self, places: Sequence[int]) -> None:
        """Keep the sequences at `places`, in this order. An index may occur more than once."""
        index = self.cache.rearrange(places, self.lengths.device)
        self.mask = None if self.mask is None else self.mask[index]
        self.lengths = self.lengths[index]

    def extend(self) -> torch.Tensor | None:
        """Add a column of tokens, and return the attention mask of all columns."""
        self.columns += 1
        self.lengths = self.lengths + 1
        if self.mask is not None and self.columns > self.mask.shape[1]:
            self.mask = F.pad(self.mask, (0, BLOCK), value=1)
        return None if self.mask is None else self.mask[:, : self.columns]


def read_prompts(model: PreTrainedModel, prompts: Sequence[tuple[int, ...]]) -> tuple[Prefix, Places]:
    """Prefill each distinct prompt once. Return the prefix and the index of each row's prompt in it."""
    distinct = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
    tokens, mask = _align([*distinct], model.device)
    cache = BlockCache(model.config, most_rows=len(prompts))
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    needed_mask = None if len(set(map(len, distinct))) == 1 else mask
    hidden, logits = _forward(model, inputs=tokens, mask=needed_mask, positions=positions, cache=cache)
    prefix = Prefix(
        cache=cache,
        mask=needed_mask,
        columns=tokens.shape[1],
        lengths=mask.sum(dim=1),
        hidden=hidden,
        logits=logits,
    )
    return prefix, np.array([distinct[prompt] for prompt in prompts])


def append(model: PreTrainedModel, prefix: Prefix, places: Places, tokens: Places) -> Places:
    """Append one token to each row, and return the new index of each row in the prefix.

    `places`, int64[n], contains the current index of each row, and `tokens`, int64[n], its next token. Rows with equal
    sequences are computed once, because they differ only in their sampling noise.
    """
    count = len(prefix.logits)
    if not np.array_equal(places, np.arange(count)):
        pairs = [*zip(places.tolist(), tokens.tolist(), strict=True)]
        distinct = [*dict.fromkeys(pairs)]
        rows = keep_rows([place for place, _ in distinct])
        ordered = [distinct[i] for i in np.argsort(rows)]
        if (sources := [place for place, _ in ordered]) != [*range(count)]:  # a row has ended, or two rows now differ
            prefix.select(sources)
        new_places = dict(zip(distinct, rows, strict=True))
        places = np.array([new_places[pair] for pair in pairs])
        tokens = np.array([token for _, token in ordered])
    positions = prefix.lengths[:, None]
    prefix.hidden, prefix.logits = _forward(
        model,
        inputs=torch.from_numpy(tokens).to(model.device)[:, None],
        mask=prefix.extend(),
        positions=positions,
        cache=prefix.cache,
    )
    return places


def widen_head(model: PreTrainedModel) -> None:
    """Make the language-model head of a model in half precision return float32 logits on a GPU.

    The products have the model's dtype and are summed in float32 anyway. Rounding the sums to bfloat16 would make the
    margins of honest tokens about twice as large. Only CUDA has such a product.
    """
    head = get_head(model)
    if model.device.type != "cuda" or head.weight.dtype is torch.float32:
        return

    def project(states: torch.Tensor) -> torch.Tensor:
        logits = torch.mm(states.flatten(0, -2), head.weight.T, out_dtype=torch.float32)
        if getattr(head, "bias", None) is not None:
            logits += head.bias
        return logits.view(*states.shape[:-1], -1)

    setattr(head, "forward", project)  # noqa: B010


def _align(rows: Sequence[tuple[int, ...]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and mask, both int64[n, longest], padded on the left with token 0."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return tokens, mask


@contextmanager
def catch_states(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """Collect the inputs of the language-model head, one tensor per pass. They are the last hidden states after the
    final norm.

    If the model changes its logits afterwards (scaling, soft caps), the logits include the change but the proof does
    not.
    """
    states: list[torch.Tensor] = []
    handle = get_head(model).register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    try:
        yield states
    finally:
        handle.remove()


def _forward(
    model: PreTrainedModel,
    *,
    inputs: torch.Tensor,
    mask: torch.Tensor | None,
    positions: torch.Tensor,
    cache: BlockCache,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the state [n, hidden] and the logits float32[n, V] of the last column."""
    with catch_states(model) as states:
        logits = model(
            input_ids=inputs,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
    return states[0][:, -1], logits[:, -1].float()
