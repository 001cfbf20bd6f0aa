"""Decodes a batch of sequences of different lengths with a transformers model: each prompt once, then token by token.

Siblings share a prompt and often their first tokens. An equal prefix is computed once, with one KV cache. Rows are
right-aligned (padded on the left), so the last column always predicts the next token.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel

from covey.model.policy_files import get_head

Places = NDArray[np.int64]
"""Indices into a `Prefix`, one per row of the batch."""


@dataclass(slots=True, kw_only=True, eq=False)
class Prefix:
    """The distinct token sequences of a batch so far. `append` extends them."""

    cache: DynamicCache
    """KV cache of the sequences."""
    mask: torch.Tensor | None
    """Attention mask, int64[distinct, columns]: 1 for a token and 0 for padding. None if there is no padding."""
    lengths: torch.Tensor
    """Number of tokens of each sequence, int64[distinct]."""
    hidden: torch.Tensor
    """Hidden state of the last token of each sequence, [distinct, hidden]."""
    logits: torch.Tensor
    """Logits of the next token of each sequence, float32[distinct, V]."""

    def select(self, places: torch.Tensor) -> None:
        """Keep the sequences at `places`, int64[m], in this order. An index may occur more than once."""
        self.cache.reorder_cache(cast(torch.LongTensor, places))  # also reorders the states of recurrent layers
        self.mask = None if self.mask is None else self.mask[places]
        self.lengths = self.lengths[places]


def read_prompts(model: PreTrainedModel, prompts: Sequence[tuple[int, ...]]) -> tuple[Prefix, Places]:
    """Prefill each distinct prompt once. Return the prefix and the index of each row's prompt in it."""
    distinct = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
    tokens, mask = _align([*distinct], model.device)
    cache = DynamicCache(config=model.config)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    needed_mask = None if len(set(map(len, distinct))) == 1 else mask
    hidden, logits = _forward(model, inputs=tokens, mask=needed_mask, positions=positions, cache=cache)
    prefix = Prefix(cache=cache, mask=needed_mask, lengths=mask.sum(dim=1), hidden=hidden, logits=logits)
    return prefix, np.array([distinct[prompt] for prompt in prompts])


def append(model: PreTrainedModel, prefix: Prefix, places: Places, tokens: Places) -> Places:
    """Append one token to each row, and return the new index of each row in the prefix.

    `places`, int64[n], contains the current index of each row, and `tokens`, int64[n], its next token. Rows with equal
    sequences are computed once, because they differ only in their sampling noise.
    """
    if not np.array_equal(places, np.arange(len(prefix.logits))):
        pairs = [*zip(places.tolist(), tokens.tolist(), strict=True)]
        distinct = {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}
        origins, next_tokens = zip(*distinct, strict=True)
        if origins != tuple(range(len(prefix.logits))):  # a row has ended, or two rows now differ
            prefix.select(torch.tensor(origins, device=model.device))
        places, tokens = np.array([distinct[pair] for pair in pairs]), np.array(next_tokens)
    fresh = torch.from_numpy(tokens).to(model.device)
    if prefix.mask is not None:
        prefix.mask = torch.cat([prefix.mask, prefix.mask.new_ones(len(fresh), 1)], dim=1)
    prefix.hidden, prefix.logits = _forward(
        model, inputs=fresh[:, None], mask=prefix.mask, positions=prefix.lengths[:, None], cache=prefix.cache
    )
    prefix.lengths = prefix.lengths + 1
    return places


def compute_logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return float32[n]: log p of each token in `tokens`, int64[n], under its row of `logits`, float32[n, V]."""
    return logits.log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0]


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
    cache: DynamicCache,
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
