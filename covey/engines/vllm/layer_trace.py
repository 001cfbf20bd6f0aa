"""Records what each layer computes for one token, so that two computations of it can be compared layer by layer.

An eager model calls hooks of its layers and of their parts. A compiled one calls only its attention, of which the
queries, keys and values are recorded. CUDA graphs call nothing, so none are used during a trace.
"""

import hashlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from vllm.config import CUDAGraphMode

_TRACED = re.compile(r"(.*\.)?layers\.[0-9]+(\.[a-z_]+)?")
"""Decoder layers and their parts, such as "model.layers.3.self_attn"."""


class LayerTrace:
    """Trace of one token of one request. Call `stop` when the request has finished."""

    def __init__(self, runner: Any, key_name: str, key: int, position: int) -> None:
        """`key` is the request's number in its extra argument `key_name`. `position` is the token's in its sequence."""
        self._runner, self._key_name, self._key, self._position = runner, key_name, key, position
        self._digests: dict[str, str] = {}
        self._hooks = [
            module.register_forward_hook(partial(self._record, name))
            for name, module in runner.get_model().named_modules()
            if _TRACED.fullmatch(name)
        ]
        self._attention = runner.compilation_config.static_forward_context
        for name, layer in self._attention.items():
            if hasattr(layer, "impl"):
                layer.impl.forward = partial(self._attend, f"{name} (its input)", layer.impl.forward)
        dispatch = runner.cudagraph_dispatcher.dispatch
        runner.cudagraph_dispatcher.dispatch = lambda *sizes, **values: dispatch(
            *sizes, **{**values, "valid_modes": {CUDAGraphMode.NONE}, "invalid_modes": None}
        )

    def stop(self) -> dict[str, str]:
        """Remove the hooks, and return the digest of each layer's result by name, in the order of computation."""
        for hook in self._hooks:
            hook.remove()
        for layer in self._attention.values():
            if hasattr(layer, "impl"):
                vars(layer.impl).pop("forward", None)
        del self._runner.cudagraph_dispatcher.dispatch
        return self._digests

    def _attend(self, name: str, forward: Callable[..., Any], layer: Any, *inputs: Any, **named: Any) -> Any:
        self._add(name, inputs[:3])  # queries, keys and values
        return forward(layer, *inputs, **named)

    def _record(self, name: str, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        self._add(name, output if isinstance(output, tuple) else (output,))

    def _add(self, name: str, tensors: tuple[Any, ...]) -> None:
        row = self._find_row()
        if row is None:
            return
        digest = hashlib.sha256()
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                digest.update(tensor[row].contiguous().view(torch.uint8).cpu().numpy().tobytes())
        self._digests[name] = digest.hexdigest()

    def _find_row(self) -> int | None:
        """Return the token's row in the step that is being computed. None if the step does not compute it."""
        batch, starts = self._runner.input_batch, self._runner.query_start_loc.np
        for i, name in enumerate(batch.req_ids):
            extra = self._runner.requests[name].sampling_params.extra_args or {}
            offset = self._position - int(batch.num_computed_tokens_cpu[i])
            if extra.get(self._key_name) == self._key and 0 <= offset < int(starts[i + 1]) - int(starts[i]):
                return int(starts[i]) + offset
        return None
