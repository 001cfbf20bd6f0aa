"""Makes a language-model head with float32 logits multiply blocks with a fixed number of rows, in both lanes.

The exact lane requires it. The calibrated lane has the same head, so that its limits hold for the same logits.
A product of one shape has one kernel with one order of sums, so a row's logits do not depend on the number of rows in
the batch. Without it libraries choose other kernels for a single row, and vLLM's batch-invariant mode does not replace
products of bfloat16 with float32 results.
"""

from typing import Any

import torch
import torch.nn.functional as F
from vllm.model_executor.layers.logits_processor import LogitsProcessor

ROWS = 64
"""Number of rows of a block on a GPU, where a product of so few rows takes as long as reading the weights."""
CPU_ROWS = 16
"""Number of rows of a block on a CPU."""


def multiply_in_blocks(model: torch.nn.Module) -> None:
    """Change the head of a model that vLLM has loaded, if its logits are wider than its states.

    The last block is padded with zeros.
    """
    for module in model.modules():
        if isinstance(module, LogitsProcessor) and module.head_dtype is torch.float32:
            setattr(module, "_apply_head", _build_blocked(module._apply_head))  # noqa: B010


def _build_blocked(project: Any) -> Any:
    def apply(head: torch.nn.Module, states: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows, flat = CPU_ROWS if states.device.type == "cpu" else ROWS, states.flatten(0, -2)
        padded = F.pad(flat, (0, 0, 0, -len(flat) % rows))
        logits: torch.Tensor = torch.cat([project(head, block, bias) for block in torch.split(padded, rows)])
        return logits[: len(flat)].view(*states.shape[:-1], -1)

    return apply
