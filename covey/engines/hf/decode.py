"""Decoding of a ragged batch with a transformers model, for `hf`: prompts once, then token by token.

Siblings share a prompt and often the first tokens behind it: what is equal so far is computed once, with one key-value
cache.  Rows are right-aligned (padding on the left), so the next token is always predicted by the last column.
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
"""One a row."""


@dataclass(slots=True, kw_only=True, eq=False)
class Prefix:
    """What the rows of a batch are so far, each distinct one once; `append` adds to it."""

    cache: DynamicCache
    mask: torch.Tensor | None
    """int64[distinct, columns]: 1 where a token is; None where all are tokens."""
    lengths: torch.Tensor
    """int64[distinct]: tokens."""
    hidden: torch.Tensor
    """[distinct, hidden]: the state of the last token."""
    logits: torch.Tensor
    """float32[distinct, V]: what follows it."""

    def select(self, places: torch.Tensor) -> None:
        """Keep the prefixes at `places`, int64[m], in this order; one may be named more than once."""
        self.cache.reorder_cache(cast(torch.LongTensor, places))  # of recurrent layers, too
        self.mask = None if self.mask is None else self.mask[places]
        self.lengths = self.lengths[places]


def read_prompts(model: PreTrainedModel, prompts: Sequence[tuple[int, ...]]) -> tuple[Prefix, Places]:
    """Compute each distinct prompt once; also where each row's stands in the prefix."""
    distinct = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
    tokens, mask = _align([*distinct], model.device)
    cache = DynamicCache(config=model.config)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    kept = None if len(set(map(len, distinct))) == 1 else mask
    hidden, logits = _forward(model, inputs=tokens, mask=kept, positions=positions, cache=cache)
    prefix = Prefix(cache=cache, mask=kept, lengths=mask.sum(dim=1), hidden=hidden, logits=logits)
    return prefix, np.array([distinct[prompt] for prompt in prompts])


def append(model: PreTrainedModel, prefix: Prefix, places: Places, tokens: Places) -> Places:
    """One more token for each row, int64[n], behind its place in the prefix; where it stands then.

    Rows that still agree are computed once: they differ in nothing but the noise that they are sampled with.
    """
    if not np.array_equal(places, np.arange(len(prefix.logits))):
        pairs = [*zip(places.tolist(), tokens.tolist(), strict=True)]
        distinct = {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}
        origins, found = zip(*distinct, strict=True)
        if origins != tuple(range(len(prefix.logits))):  # somebody left, or parted
            prefix.select(torch.tensor(origins, device=model.device))
        places, tokens = np.array([distinct[pair] for pair in pairs]), np.array(found)
    fresh = torch.from_numpy(tokens).to(model.device)
    if prefix.mask is not None:
        prefix.mask = torch.cat([prefix.mask, prefix.mask.new_ones(len(fresh), 1)], dim=1)
    prefix.hidden, prefix.logits = _forward(
        model, inputs=fresh[:, None], mask=prefix.mask, positions=prefix.lengths[:, None], cache=prefix.cache
    )
    prefix.lengths = prefix.lengths + 1
    return places


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
