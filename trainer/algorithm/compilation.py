"""Compiles the layers of a model with torch.compile. The attention of packed samples in them is not compiled.

Lengths are dynamic, so that a new number of tokens compiles nothing again.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


def compile_layers(model: PreTrainedModel, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile each layer at its first call. Call this after `recompute_activations` if that is called at all."""

    @cache
    def compile_forward(forward: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(forward, dynamic=True, backend=backend)

    def compute_again(run: partial[Any], *inputs: Any) -> Any:
        """Compile what is inside of the checkpoint, because dynamo skips functions that have one."""
        compiled = partial(compile_forward(run.func), *run.args, **run.keywords)
        return checkpoint(compiled, *inputs, use_reentrant=False)

    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            if layer.gradient_checkpointing:
                setattr(layer, "_gradient_checkpointing_func", compute_again)  # noqa: B010
            else:
                layer.compile(dynamic=True, backend=backend)
