"""One forward pass over many completions without padding, for the replay of `hf`.

All tokens stand in one row: each distinct prompt once, then the completions.  A completion attends to its prompt and to
itself; everything but attention sees a plain list of tokens.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils.generic import ModelOutput

from covey.engines.hf.decode import catch_states
from covey.errors import OperatorError

NAME = "covey_packed"
LENGTH_DEPENDENT = {"dynamic", "longrope"}
"""Kinds of rotary positions whose frequencies change with the length of the row."""
LAYERS = {"full_attention", "sliding_attention"}
"""Kinds of layers that `_attend` serves.  Recurrent and convolutional ones would carry states across completions."""
UNSERVED = ("softcap", "position_bias", "s_aux")
"""What a model may ask of its attention beyond `_attend`."""
BLOCK = 256
"""Tokens that a CPU puts through a feed-forward network together, so that what it makes of them stays in its cache."""
MASKED = 1024
"""Tokens up to which a CPU reads a mask of 4 MiB faster than it computes the prompt's queries again."""


class Span(NamedTuple):
    """A run of tokens of the row; it begins where the last one ends.  Example: Span(tokens=3, prompt=0)."""

    tokens: int
    prompt: int | None = None
    """Number of the span that it follows; None for a prompt itself."""


def read_completions(
    model: PreTrainedModel,
    prompts: Sequence[tuple[int, ...]],
    completions: Sequence[tuple[int, ...]],
    *,
    rows: int,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """States [n, hidden] and logits float32[n, V] of the rows that predict each token, completion by completion.

    The model is `packed`.  All n together are the completion tokens; the first row of a completion belongs to its
    prompt's last token.  The layers go over all tokens at once, the head over `rows` rows at a time, because the logits
    of a long completion take more memory than all else.
    """
    spans, tokens, positions = _lay_out(prompts, completions)
    ends = list(accumulate(span.tokens for span in spans))
    kept = [
        part
        for span, end in zip(spans, ends, strict=True)
        if span.prompt is not None
        for part in ([ends[span.prompt] - 1], range(end - span.tokens, end))
    ]
    output = model.base_model(
        input_ids=_join(tokens)[None].to(model.device),
        position_ids=_join(positions)[None].to(model.device),
        use_cache=False,
        spans=spans,
    )
    states = output.last_hidden_state[0, _join(kept).to(model.device)]
    for part in torch.split(states, rows):
        output.last_hidden_state = part[None]
        yield _read_head(model, output)


def _read_head(model: PreTrainedModel, output: ModelOutput) -> tuple[torch.Tensor, torch.Tensor]:
    """What the head is given and its logits, by the model's own code, whose layers answer `output`."""
    layers = model.base_model
    setattr(layers, "forward", lambda *_, **__: output)  # noqa: B010
    try:
        with catch_states(model) as caught:
            logits = model(use_cache=False).logits
    finally:
        del layers.forward
    return caught[0][0], logits[0].float()


def _lay_out(
    prompts: Sequence[tuple[int, ...]], completions: Sequence[tuple[int, ...]]
) -> tuple[list[Span], list[Sequence[int]], list[Sequence[int]]]:
    """Spans (distinct prompts, then one a completion), and of each the tokens and positions.

    A completion's last token predicts nothing that is asked for, so it is left out.
    """
    tokens: list[Sequence[int]] = list(dict.fromkeys(prompts))
    places = {prompt: i for i, prompt in enumerate(tokens)}
    spans = [Span(len(prompt)) for prompt in tokens]
    positions: list[Sequence[int]] = [range(len(prompt)) for prompt in tokens]
    for prompt, completion in zip(prompts, completions, strict=True):
        read = completion[:-1]
        spans.append(Span(len(read), prompt=places[prompt]))
        tokens.append(read)
        positions.append(range(len(prompt), len(prompt) + len(read)))
    return spans, tokens, positions


def _join(parts: Sequence[Sequence[int]]) -> torch.Tensor:
    """int64 of all parts; a list of Python's integers takes torch ten times as long."""
    return torch.from_numpy(np.concatenate([np.asarray(part, np.int64) for part in parts]))


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    spans: Sequence[Span] | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers' own attention, span by span; [1, heads, tokens, width] -> [1, tokens, heads, width]."""
    if spans is None or any(rest.get(name) is not None for name in UNSERVED):
        raise _unsupported(f"{type(module).__name__} has an attention of its own")
    sizes = [span.tokens for span in spans]
    queries, keys, values = (torch.split(each, sizes, dim=2) for each in (query, key, value))
    seen = [span.tokens + (0 if span.prompt is None else spans[span.prompt].tokens) for span in spans]
    mask = _build_mask(max(seen), sliding_window, query)
    found = []
    for i, (n, prompt) in enumerate(spans):
        if n == 0:
            continue
        asking, keyed, told = queries[i], keys[i], values[i]
        if prompt is not None:
            keyed, told = torch.cat([keys[prompt], keyed], dim=2), torch.cat([values[prompt], told], dim=2)
            if mask is None:
                # The prompt's queries come along: a square is causal by itself.
                asking = torch.cat([queries[prompt], asking], dim=2)
        attended = F.scaled_dot_product_attention(
            asking,
            keyed,
            told,
            attn_mask=None if mask is None else mask[seen[i] - n : seen[i], : seen[i]],
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        found.append(attended[:, :, -n:].transpose(1, 2))
    return torch.cat(found, dim=1), None


def _build_mask(length: int, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
    """[length, length]: what each token sees, as booleans or as 0 and -inf; None where none is worth its memory."""
    is_short, is_plain = length <= MASKED and like.device.type == "cpu", window is None or window >= length
    if is_plain and not is_short:
        return None
    if is_short and is_plain:  # what is added is read faster than booleans and takes four times their memory
        return like.new_full((length, length), -math.inf).triu_(1)
    seen = torch.ones(length, length, dtype=torch.bool, device=like.device).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    return like.new_zeros(length, length).masked_fill_(~seen, -math.inf) if is_short else seen


@contextmanager
def packed(model: PreTrainedModel) -> Iterator[None]:
    """The model with `_attend`, and in blocks on a CPU; its own ways come back afterwards.

    Raises OperatorError("unsupported_model") for one that has more in its attention.
    """
    before = model.config._attn_implementation
    _require_attention(model, "sdpa")
    model.set_attn_implementation(NAME)
    try:
        _require_attention(model, NAME)
        with _in_blocks(model):
            yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def _in_blocks(model: PreTrainedModel) -> Iterator[None]:
    """On a CPU, the model with feed-forward networks that take BLOCK tokens at a time, what is made of which stays in a
    core's cache; their own way comes back."""
    is_cpu = model.device.type == "cpu"
    networks = [each for name, each in model.named_modules() if is_cpu and name.endswith(".mlp") and _is_dense(each)]
    for network in networks:
        setattr(network, "forward", partial(_feed_blocks, network.forward))  # noqa: B010
    try:
        yield
    finally:
        for network in networks:
            del network.forward


def _is_dense(network: torch.nn.Module) -> bool:
    """Whether all that it has learned are plain layers, as in Llama and Qwen: one tensor in, one out, by token."""
    return all(isinstance(each, torch.nn.Linear) for each in network.modules() if [*each.parameters(recurse=False)])


def _feed_blocks(forward: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor) -> torch.Tensor:
    return torch.cat([forward(block) for block in torch.split(hidden, BLOCK, dim=1)], dim=1)


def _require_attention(model: PreTrainedModel, wanted: str) -> None:
    """Raise OperatorError for a model of which `_attend` would compute something else than its own code.

    One that transformers does not run with SDPA has more in its attention: soft caps, sinks, biases.
    """
    kind = type(model).__name__
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or LAYERS)
    if model.config._attn_implementation != wanted or not layers <= LAYERS:
        raise _unsupported(f"{kind} has an attention of its own")
    if model.base_model is model:
        raise _unsupported(f"{kind} does not have its layers in a model of their own")
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
