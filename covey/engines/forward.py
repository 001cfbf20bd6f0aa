"""Forward passes of a transformers model over ragged batches, for `hf`: prompts once, completions on top of them.

Siblings share a prompt, so each distinct prompt is computed once and its key-value cache handed to all of them.
Prompts are right-aligned (padding on the left), completions left-aligned after them; positions never count padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

from covey.model.files import get_head


@dataclass(slots=True, kw_only=True, eq=False)
class Prefix:
    """A batch whose tokens so far are computed; `extend` appends to it."""

    cache: DynamicCache
    mask: torch.Tensor
    """int64[n, columns]: 1 where a token is."""
    lengths: torch.Tensor
    """int64[n]: tokens of each row."""
    hidden: torch.Tensor
    """[n, hidden]: the state of each row's last token."""
    logits: torch.Tensor
    """float32[n, V]: what follows it."""

    def select(self, rows: torch.Tensor) -> None:
        """Keep `rows`, int64[m], in this order; a row may be named more than once."""
        self.cache.batch_select_indices(rows)
        self.mask, self.lengths = self.mask[rows], self.lengths[rows]
        self.hidden, self.logits = self.hidden[rows], self.logits[rows]


def read_prompts(model: PreTrainedModel, prompts: Sequence[tuple[int, ...]]) -> Prefix:
    """Compute each distinct prompt once, for all rows that have it."""
    distinct = list(dict.fromkeys(prompts))
    tokens, mask = _align(distinct, left=True, device=model.device)
    cache = DynamicCache(config=model.config)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    hidden, logits = _forward(model, kept=1, inputs=tokens, mask=mask, positions=positions, cache=cache)
    prefix = Prefix(cache=cache, mask=mask, lengths=mask.sum(dim=1), hidden=hidden[:, -1], logits=logits[:, -1].float())
    if len(distinct) < len(prompts):
        places = {prompt: i for i, prompt in enumerate(distinct)}
        prefix.select(torch.tensor([places[prompt] for prompt in prompts], device=model.device))
    return prefix


def append(model: PreTrainedModel, prefix: Prefix, tokens: torch.Tensor) -> None:
    """One more token a row, int64[n]: what the prefix says of its last token is that token's afterwards."""
    prefix.mask = torch.cat([prefix.mask, prefix.mask.new_ones(len(tokens), 1)], dim=1)
    positions = prefix.lengths[:, None]
    hidden, logits = _forward(
        model, kept=1, inputs=tokens[:, None], mask=prefix.mask, positions=positions, cache=prefix.cache
    )
    prefix.lengths = prefix.lengths + 1
    prefix.hidden, prefix.logits = hidden[:, -1], logits[:, -1].float()


def extend(
    model: PreTrainedModel, prefix: Prefix, tokens: Sequence[tuple[int, ...]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """States [N, hidden] and logits float32[N, V] of all tokens, row by row, no padding.  Ends the prefix's life."""
    if not any(tokens):
        return prefix.hidden[:0], prefix.logits[:0]
    inputs, real = _align(tokens, left=False, device=prefix.mask.device)
    positions = prefix.lengths[:, None] + torch.arange(inputs.shape[1], device=inputs.device)
    mask = torch.cat([prefix.mask, real], dim=1)
    hidden, logits = _forward(
        model, kept=inputs.shape[1], inputs=inputs, mask=mask, positions=positions, cache=prefix.cache
    )
    kept = real.bool()
    return hidden[:, -inputs.shape[1] :][kept], logits[kept].float()


def compute_logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """float32[n]: log p of each token, int64[n], under its row of `logits`, float32[n, V]."""
    return logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)


def _align(rows: Sequence[tuple[int, ...]], *, left: bool, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """int64[n, longest] tokens and mask, padded with token 0 on the left or on the right."""
    longest = max(map(len, rows))
    filled = [[0] * (longest - len(row)) for row in rows]
    ones = [[1] * len(row) for row in rows]
    pairs = list(zip(filled, rows, ones, strict=True))
    tokens = torch.tensor([[*pad, *row] if left else [*row, *pad] for pad, row, _ in pairs], device=device)
    mask = torch.tensor([[*pad, *one] if left else [*one, *pad] for pad, _, one in pairs], device=device)
    return tokens, mask


def _forward(
    model: PreTrainedModel,
    *,
    kept: int,
    inputs: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    cache: DynamicCache,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden states after the final norm [n, kept, hidden] and logits [n, kept, V] of the last `kept` columns.

    The states are what the language-model head is given, so whatever the model does to its logits afterwards
    (scaling, soft caps) is in the logits and not in the proof.
    """
    caught: list[torch.Tensor] = []
    handle = get_head(model).register_forward_pre_hook(lambda _, given: caught.append(given[0]))
    try:
        output = model(
            input_ids=inputs,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=kept,
        )
    finally:
        handle.remove()
    return caught[0], output.logits
