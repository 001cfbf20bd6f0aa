"""One forward pass over many completions without padding, for the replay of `hf`.

All tokens stand in one row: each distinct prompt once, then the completions.  A completion attends to its prompt and to
itself; everything but attention sees a plain list of tokens.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, PreTrainedModel

from covey.engines.forward import catch_states
from covey.errors import OperatorError

NAME = "covey_packed"
LENGTH_DEPENDENT = {"dynamic", "longrope"}
"""Kinds of rotary positions whose frequencies change with the length of the row."""
LAYERS = {"full_attention", "sliding_attention"}
"""Kinds of layers that `_attend` serves.  Recurrent and convolutional ones would carry states across completions."""
UNSERVED = ("softcap", "position_bias", "s_aux")
"""What a model may ask of its attention beyond `_attend`."""
MASKED = 1024
"""Tokens up to which a CPU reads a mask of 4 MiB faster than it computes the prompt's queries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A run of tokens of the row and the prompt before it.  Example: Span(start=9, end=12, prompt=(0, 4))."""

    start: int
    end: int
    prompt: tuple[int, int] = (0, 0)

    @property
    def seen(self) -> int:
        """Tokens that the last one sees: prompt and run."""
        return self.prompt[1] - self.prompt[0] + self.end - self.start


def read_completions(
    model: PreTrainedModel, prompts: Sequence[tuple[int, ...]], completions: Sequence[tuple[int, ...]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """States [N, hidden] and logits float32[N, V] of the rows that predict each token, completion by completion.

    N is the number of all completion tokens; the first row of a completion belongs to its prompt's last token.
    """
    spans, tokens, positions = _lay_out(prompts, completions)
    kept = torch.tensor([row for rows in _find_rows(spans, completions) for row in rows], device=model.device)
    with _packed(model), catch_states(model) as caught:
        logits = model(
            input_ids=torch.tensor([tokens], device=model.device),
            position_ids=torch.tensor([positions], device=model.device),
            use_cache=False,
            logits_to_keep=kept,
            spans=spans,
        ).logits
    return caught[0][0], logits[0].float()


def _lay_out(
    prompts: Sequence[tuple[int, ...]], completions: Sequence[tuple[int, ...]]
) -> tuple[list[Span], list[int], list[int]]:
    """Spans (distinct prompts, then one a completion), tokens and positions of the row.

    A completion's last token predicts nothing that is asked for, so it is left out.
    """
    tokens: list[int] = []
    positions: list[int] = []
    places: dict[tuple[int, ...], tuple[int, int]] = {}
    for prompt in prompts:
        if prompt not in places:
            places[prompt] = (len(tokens), len(tokens) + len(prompt))
            tokens += prompt
            positions += range(len(prompt))
    spans = [Span(start=start, end=end) for start, end in places.values()]
    for prompt, completion in zip(prompts, completions, strict=True):
        read = completion[:-1]
        spans.append(Span(start=len(tokens), end=len(tokens) + len(read), prompt=places[prompt]))
        tokens += read
        positions += range(len(prompt), len(prompt) + len(read))
    return spans, tokens, positions


def _find_rows(spans: Sequence[Span], completions: Sequence[tuple[int, ...]]) -> Iterator[list[int]]:
    for span in spans[-len(completions) :]:
        yield [span.prompt[1] - 1, *range(span.start, span.end)]


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    spans: Sequence[Span],
    scaling: float | None = None,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers' own attention, span by span; [1, heads, tokens, width] -> [1, tokens, heads, width]."""
    if any(rest.get(name) is not None for name in UNSERVED):
        raise _unsupported(f"{type(module).__name__} has an attention of its own")
    found = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
    mask = _build_mask(max(span.seen for span in spans), sliding_window, query)
    for span in spans:
        if span.end == span.start:
            continue
        before, own = slice(*span.prompt), slice(span.start, span.end)
        queries, n = query[:, :, own], span.end - span.start
        if mask is None:
            # The prompt's queries come along: a square is causal by itself.
            queries = torch.cat([query[:, :, before], queries], dim=2)
        attended = F.scaled_dot_product_attention(
            queries,
            torch.cat([key[:, :, before], key[:, :, own]], dim=2),
            torch.cat([value[:, :, before], value[:, :, own]], dim=2),
            attn_mask=None if mask is None else mask[span.seen - n : span.seen, : span.seen],
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        found[:, own] = attended[:, :, -n:].transpose(1, 2)
    return found, None


def _build_mask(length: int, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
    """[length, length]: what each token sees, as booleans or as 0 and -inf; None where none is worth its memory."""
    is_short, is_plain = length <= MASKED and like.device.type == "cpu", window is None or window >= length
    if is_plain and not is_short:
        return None
    seen = torch.ones(length, length, dtype=torch.bool, device=like.device).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    # What is added is read faster than booleans and takes four times their memory.
    return like.new_zeros(length, length).masked_fill_(~seen, -math.inf) if is_short else seen


@contextmanager
def _packed(model: PreTrainedModel) -> Iterator[None]:
    """The model with `_attend`; its own attention comes back afterwards."""
    before = model.config._attn_implementation
    _require_attention(model, "sdpa")
    model.set_attn_implementation(NAME)
    try:
        _require_attention(model, NAME)
        yield
    finally:
        model.set_attn_implementation(before)


def _require_attention(model: PreTrainedModel, wanted: str) -> None:
    """Raise OperatorError for a model of which `_attend` would compute something else than its own code.

    One that transformers does not run with SDPA has more in its attention: soft caps, sinks, biases.
    """
    kind = type(model).__name__
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or LAYERS)
    if model.config._attn_implementation != wanted or not layers <= LAYERS:
        raise _unsupported(f"{kind} has an attention of its own")
    if _find_rope_types(getattr(config, "rope_parameters", None) or {}) & LENGTH_DEPENDENT:
        # Its angles follow the longest row of a pass, so a completion would depend on what is replayed beside it.
        raise _unsupported(f"{kind} has positions that depend on length")


def _find_rope_types(parameters: Mapping[str, Any]) -> set[str]:
    """Of all layers: some models name the parameters by type of layer."""
    nested = [_find_rope_types(each) for each in parameters.values() if isinstance(each, Mapping)]
    return {str(parameters.get("rope_type", "default"))}.union(*nested)


def _unsupported(message: str) -> OperatorError:
    return OperatorError("unsupported_model", message, fix="Use another model")


AttentionInterface.register(NAME, _attend)
