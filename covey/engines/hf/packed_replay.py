"""Sequence packing for the replay of `hf`: one forward pass over many completions without padding.

All tokens are in one row: each distinct prompt once, then the completions. A completion attends to its prompt and to
itself. All layers except attention process the row as a plain list of tokens.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils.generic import ModelOutput

from covey.engines.cpu_tuning import MASKED_TOKENS, feed_in_blocks
from covey.engines.hf.decode import catch_states
from covey.errors import OperatorError
from covey.model.ragged_attention import has_ragged_kernel

NAME = "covey_packed"
"""Name under which the packed attention is registered with transformers."""
LENGTH_DEPENDENT = {"dynamic", "longrope"}
"""Types of rotary position embeddings whose frequencies depend on the length of the row."""
LAYERS = {"full_attention", "sliding_attention"}
"""Types of layers that `_attend` supports. Recurrent and convolutional layers would carry state across completions."""
UNSERVED = ("softcap", "position_bias", "s_aux")
"""Arguments of a model's attention that `_attend` does not support."""


class Span(NamedTuple):
    """Consecutive tokens of the row, starting where the previous span ends. Example: Span(tokens=3, prompt=0)."""

    tokens: int
    """Number of tokens."""
    prompt: int | None = None
    """Index of the prompt's span if this span is a completion. None if this span is a prompt."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Spans:
    """The spans of a row, and what a GPU's kernel for sequences of different lengths needs to know about them."""

    spans: Sequence[Span]
    keys: torch.Tensor
    """Index in the row of each key: for each span those of its prompt, then its own, int64[keys]."""
    query_borders: torch.Tensor
    """Index of each span's first token in the row, and the number of tokens, int32[spans + 1]."""
    key_borders: torch.Tensor
    """Index of each span's first entry in `keys`, and the number of entries, int32[spans + 1]."""
    longest: int
    """Maximum number of keys of a span."""

    @classmethod
    def build(cls, spans: Sequence[Span], device: torch.device) -> Self:
        """Arrange spans for the kernels of a device."""
        ends = np.cumsum([0, *(span.tokens for span in spans)])
        keys = [
            np.concatenate([*([] if prompt is None else [np.arange(ends[prompt], ends[prompt + 1])]), own])
            for (_, prompt), own in zip(spans, map(np.arange, ends[:-1], ends[1:]), strict=True)
        ]
        counts = [len(each) for each in keys]
        return cls(
            spans=spans,
            keys=torch.from_numpy(np.concatenate(keys)).to(device),
            query_borders=torch.from_numpy(ends.astype(np.int32)).to(device),
            key_borders=torch.from_numpy(np.cumsum([0, *counts]).astype(np.int32)).to(device),
            longest=max(counts),
        )


def read_completions(
    model: PreTrainedModel,
    prompts: Sequence[tuple[int, ...]],
    completions: Sequence[tuple[int, ...]],
    *,
    rows: int,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield states [n, hidden] and logits float32[n, V] of the rows that predict the completion tokens, in order.

    The model must be `packed`. The sum of all n is the number of completion tokens. The first row of a completion
    belongs to its prompt's last token. The layers process all tokens at once, but the head processes `rows` rows at a
    time, because the logits of a long completion take more memory than everything else.
    """
    spans, tokens, positions = _lay_out(prompts, completions)
    ends = list(accumulate(span.tokens for span in spans))
    predicting_rows = [
        indices
        for span, end in zip(spans, ends, strict=True)
        if span.prompt is not None
        for indices in ([ends[span.prompt] - 1], range(end - span.tokens, end))
    ]
    output = model.base_model(
        input_ids=_join(tokens)[None].to(model.device),
        position_ids=_join(positions)[None].to(model.device),
        use_cache=False,
        spans=Spans.build(spans, model.device),
    )
    states = output.last_hidden_state[0, _join(predicting_rows).to(model.device)]
    for chunk in torch.split(states, rows):
        output.last_hidden_state = chunk[None]
        yield _read_head(model, output)


def _read_head(model: PreTrainedModel, output: ModelOutput) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input of the head and its logits.

    The model's own code computes them, with its layers replaced by a function that returns `output`.
    """
    layers = model.base_model
    setattr(layers, "forward", lambda *_, **__: output)  # noqa: B010
    try:
        with catch_states(model) as states:
            logits = model(use_cache=False).logits
    finally:
        del layers.forward
    return states[0][0], logits[0].float()


def _lay_out(
    prompts: Sequence[tuple[int, ...]], completions: Sequence[tuple[int, ...]]
) -> tuple[list[Span], list[Sequence[int]], list[Sequence[int]]]:
    """Return the spans (distinct prompts, then one per completion), and the tokens and position ids of each span.

    The last token of a completion is not fed to the model, because nothing that it predicts is needed.
    """
    tokens: list[Sequence[int]] = list(dict.fromkeys(prompts))
    places = {prompt: i for i, prompt in enumerate(tokens)}
    spans = [Span(len(prompt)) for prompt in tokens]
    positions: list[Sequence[int]] = [range(len(prompt)) for prompt in tokens]
    for prompt, completion in zip(prompts, completions, strict=True):
        inputs = completion[:-1]
        spans.append(Span(len(inputs), prompt=places[prompt]))
        tokens.append(inputs)
        positions.append(range(len(prompt), len(prompt) + len(inputs)))
    return spans, tokens, positions


def _join(parts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Concatenate all parts into one int64 tensor. numpy does this, because torch converts lists of integers slowly."""
    return torch.from_numpy(np.concatenate([np.asarray(part, np.int64) for part in parts]))


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    spans: Spans | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the same result as transformers' own attention, span by span.

    The input is [1, heads, tokens, width] and the result [1, tokens, heads, width]. Raises
    OperatorError("unsupported_model") if the model passes no spans or an argument in `UNSERVED`.
    """
    if spans is None or any(rest.get(name) is not None for name in UNSERVED):
        raise _unsupported(f"packed replay does not support the attention of {type(module).__name__}")
    if has_ragged_kernel(query.device, query.dtype, query.shape[-1]):
        return _attend_together(query, key, value, spans, scaling, sliding_window), None
    if query.is_cuda:  # Only half precision has a kernel with fewer heads for keys that does not write all weights.
        key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (key, value))
    return _attend_singly(query, key, value, spans.spans, scaling, sliding_window), None


def _attend_together(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spans: Spans, scaling: float | None, window: int | None
) -> torch.Tensor:
    """Compute the attention of all spans in one call, on a GPU in half precision."""
    queries, (keys, values) = query[0].transpose(0, 1), (each[0].transpose(0, 1)[spans.keys] for each in (key, value))
    attended = varlen_attn(
        queries, keys, values, spans.query_borders, spans.key_borders, spans.longest, spans.longest,
        scale=scaling, window_size=(-1 if window is None else window - 1, 0), enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return cast(torch.Tensor, attended)[None]


def _attend_singly(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    spans: Sequence[Span],
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """Compute the attention span by span."""
    sizes = [span.tokens for span in spans]
    queries, keys, values = (torch.split(each, sizes, dim=2) for each in (query, key, value))
    lengths = [span.tokens + (0 if span.prompt is None else spans[span.prompt].tokens) for span in spans]
    mask = _build_mask(max(lengths), sliding_window, query)
    outputs = []
    for i, (n, prompt) in enumerate(spans):
        if n == 0:
            continue
        span_queries, span_keys, span_values = queries[i], keys[i], values[i]
        if prompt is not None:
            span_keys = torch.cat([keys[prompt], span_keys], dim=2)
            span_values = torch.cat([values[prompt], span_values], dim=2)
            if mask is None:
                # Without a mask, is_causal requires as many queries as keys, so the prompt's queries are included.
                span_queries = torch.cat([queries[prompt], span_queries], dim=2)
        attended = F.scaled_dot_product_attention(
            span_queries,
            span_keys,
            span_values,
            attn_mask=None if mask is None else mask[lengths[i] - n : lengths[i], : lengths[i]],
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        outputs.append(attended[:, :, -n:].transpose(1, 2))
    return torch.cat(outputs, dim=1)


def _build_mask(length: int, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
    """Return the attention mask [length, length], as booleans or as 0 and -inf.

    Returns None if the attention is plainly causal and a mask would cost more than it saves.
    """
    is_short, is_plain = length <= MASKED_TOKENS and like.device.type == "cpu", window is None or window >= length
    if is_plain and not is_short:
        return None
    if is_short and is_plain:  # an additive mask is read faster than booleans, but takes four times their memory
        return like.new_full((length, length), -math.inf).triu_(1)
    visible = torch.ones(length, length, dtype=torch.bool, device=like.device).tril()
    if window is not None:
        visible = visible.triu(1 - window)
    return like.new_zeros(length, length).masked_fill_(~visible, -math.inf) if is_short else visible


@contextmanager
def packed(model: PreTrainedModel) -> Iterator[None]:
    """Make the model use `_attend` and, on a CPU, feed-forward networks in blocks. Undo both on exit.

    Raises OperatorError("unsupported_model") if `_attend` would compute something other than the model's own attention.
    """
    before = model.config._attn_implementation
    _require_attention(model, "sdpa")
    model.set_attn_implementation(NAME)
    try:
        _require_attention(model, NAME)
        with feed_in_blocks(model):
            yield
    finally:
        model.set_attn_implementation(before)


def _require_attention(model: PreTrainedModel, implementation: str) -> None:
    """Raise OperatorError("unsupported_model") if `_attend` would compute something other than the model's own code.

    If transformers does not run a model with SDPA, its attention has extras such as soft caps, sinks or biases.
    """
    kind = type(model).__name__
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or LAYERS)
    if model.config._attn_implementation != implementation or not layers <= LAYERS:
        raise _unsupported(f"packed replay does not support the attention of {kind}")
    if model.base_model is model:
        raise _unsupported(f"{kind} has no separate base model that contains its layers")
    if _find_rope_types(getattr(config, "rope_parameters", None) or {}) & LENGTH_DEPENDENT:
        # The angles follow the longest row of a pass. A completion would depend on those that are replayed with it.
        raise _unsupported(f"the rotary position embeddings of {kind} depend on the row length")


def _find_rope_types(parameters: Mapping[str, Any]) -> set[str]:
    """Return the rope types of all layers. Some models have separate parameters for each type of layer."""
    nested = [_find_rope_types(each) for each in parameters.values() if isinstance(each, Mapping)]
    return {str(parameters.get("rope_type", "default"))}.union(*nested)


def _unsupported(message: str) -> OperatorError:
    return OperatorError("unsupported_model", message, fix="Use a different model")


AttentionInterface.register(NAME, _attend)
