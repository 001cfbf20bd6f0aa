"""Decoding of a ragged batch with a transformers model, for `hf`: prompts once, then token by token.

Siblings share a prompt, so each distinct prompt is computed once and its key-value cache handed to all of them.
Rows are right-aligned (padding on the left), so the next token is always predicted by the last column.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from transformers import DynamicCache, PreTrainedModel

from covey.model.files import get_head


@dataclass(slots=True, kw_only=True, eq=False)
class Prefix:
    """A batch whose tokens so far are computed; `append` adds to it."""

    cache: DynamicCache
    mask: torch.Tensor | None
    """int64[n, columns]: 1 where a token is; None where all are tokens."""
    lengths: torch.Tensor
    """int64[n]: tokens of each row."""
    hidden: torch.Tensor
    """[n, hidden]: the state of each row's last token."""
    logits: torch.Tensor
    """float32[n, V]: what follows it."""

    def select(self, rows: torch.Tensor) -> None:
        """Keep `rows`, int64[m], in this order; a row may be named more than once."""
        self.cache.reorder_cache(cast(torch.LongTensor, rows))  # of any rows, and of recurrent layers, too
        self.mask = None if self.mask is None else self.mask[rows]
        self.lengths = self.lengths[rows]
        self.hidden, self.logits = self.hidden[rows], self.logits[rows]


def read_prompts(model: PreTrainedModel, prompts: Sequence[tuple[int, ...]]) -> Prefix:
    """Compute each distinct prompt once, for all rows that have it."""
    distinct = list(dict.fromkeys(prompts))
    tokens, mask = _align(distinct, model.device)
    cache = DynamicCache(config=model.config)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    kept = None if len({len(prompt) for prompt in distinct}) == 1 else mask
    hidden, logits = _forward(model, inputs=tokens, mask=kept, positions=positions, cache=cache)
    prefix = Prefix(cache=cache, mask=kept, lengths=mask.sum(dim=1), hidden=hidden, logits=logits)
    if len(distinct) < len(prompts):
        places = {prompt: i for i, prompt in enumerate(distinct)}
        prefix.select(torch.tensor([places[prompt] for prompt in prompts], device=model.device))
    return prefix


def append(model: PreTrainedModel, prefix: Prefix, tokens: torch.Tensor) -> None:
    """One more token a row, int64[n]: what the prefix says of its last token is that token's afterwards."""
    if prefix.mask is not None:
        prefix.mask = torch.cat([prefix.mask, prefix.mask.new_ones(len(tokens), 1)], dim=1)
    prefix.hidden, prefix.logits = _forward(
        model, inputs=tokens[:, None], mask=prefix.mask, positions=prefix.lengths[:, None], cache=prefix.cache
    )
    prefix.lengths = prefix.lengths + 1


def compute_logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """float32[n]: log p of each token, int64[n], under its row of `logits`, float32[n, V]."""
    return logits.log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0]


def _align(rows: Sequence[tuple[int, ...]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """int64[n, longest] tokens and mask, padded on the left with token 0."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return tokens, mask


@contextmanager
def catch_states(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """What the language-model head is given, the last hidden states after the final norm, pass by pass.

    Whatever the model does to its logits afterwards (scaling, soft caps) is in the logits and not in the proof.
    """
    caught: list[torch.Tensor] = []
    handle = get_head(model).register_forward_pre_hook(lambda _, given: caught.append(given[0]))
    try:
        yield caught
    finally:
        handle.remove()


def _forward(
    model: PreTrainedModel,
    *,
    inputs: torch.Tensor,
    mask: torch.Tensor | None,
    positions: torch.Tensor,
    cache: DynamicCache,
) -> tuple[torch.Tensor, torch.Tensor]:
    """State [n, hidden] and logits float32[n, V] of the last column."""
    with catch_states(model) as caught:
        logits = model(
            input_ids=inputs,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
    return caught[0][:, -1], logits[:, -1].float()
