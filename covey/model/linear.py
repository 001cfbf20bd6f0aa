"""Linear layers by oneDNN on processors to which MKL gives half their width: AMD's from family 26 (Zen 5) on.

torch computes float32 products with MKL, which runs AVX2 there: on an AMD EPYC of family 26 at 95 GFLOP/s a core where
oneDNN, which torch has beside it, comes to 220.  Called where models are loaded.
"""

import functools
import re
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

FULL_WIDTH = 26
"""AMD's family whose servers compute 512 bits at once.  The one before takes twice as long for them as for AVX2's
256, so there oneDNN gains a few percent, which the longer way into it takes."""
BLOCK = 256
"""Rows that are multiplied together: oneDNN makes kernels for every number of rows, and keeps megabytes of each."""
NARROWEST, WORTH = 64, 8192
"""Values that a layer takes and gives, and weights that it has, at least: below, the longer way into oneDNN,
microseconds a block, and a megabyte for each kernel are not made good."""


def quicken(model: nn.Module) -> None:
    """Have the model's plain linear layers compute as said above, with gradients; elsewhere nothing changes."""
    if is_worth_it():
        for layer in model.modules():
            if type(layer) is nn.Linear and min(layer.weight.shape) >= NARROWEST and layer.weight.numel() >= WORTH:
                layer.__class__ = QuickLinear


@functools.cache
def is_worth_it() -> bool:
    """Whether MKL leaves half of this processor unused, and oneDNN is there."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not has_onednn():
        return False
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    family = re.search(r"^cpu family\s*: (\d+)$", told, re.MULTILINE)
    return "AuthenticAMD" in told and family is not None and int(family[1]) >= FULL_WIDTH


def has_onednn() -> bool:
    """Whether this build of torch can multiply by it."""
    is_there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_there and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class QuickLinear(nn.Linear):
    """A linear layer that computes by oneDNN; less than a block, other dtypes and other devices go the usual way."""

    def forward(self, input: Tensor) -> Tensor:
        """As `nn.Linear`."""
        weight, bias = self.weight, self.bias
        if (
            input.numel() < BLOCK * weight.shape[1]
            or not input.is_cpu
            or not (input.dtype is weight.dtype is torch.float32)
            or torch.is_autocast_enabled("cpu")
        ):
            return F.linear(input, weight, bias)
        rows = input.flatten(0, -2)
        if torch.is_grad_enabled():
            found = cast(Tensor, _Linear.apply(rows, weight, bias))  # type: ignore[no-untyped-call]
        else:
            found = multiply(rows, weight, bias)
        # Here: what a Function gives as a view cannot be changed in place.
        return found.view(*input.shape[:-1], -1)


def multiply(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """left [n, K] @ right [N, K].T + bias [N], float32 on a CPU, whatever the strides."""
    if len(left) == BLOCK:
        return _multiply_block(left, right, bias)
    found, whole = left.new_empty(len(left), len(right)), _count_whole(left)
    for start in range(0, whole, BLOCK):
        found[start : start + BLOCK] = _multiply_block(left[start : start + BLOCK], right, bias)
    found[whole:] = F.linear(left[whole:], right, bias)
    return found


def _count_whole(rows: Tensor) -> int:
    return len(rows) // BLOCK * BLOCK


def _multiply_block(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return found


class _Linear(torch.autograd.Function):
    """Once differentiable; keeps what the gradients that are asked for want."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        by_hidden, by_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(hidden if by_weight else None, weight if by_hidden else None)
        return multiply(hidden, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        return (
            None if weight is None else multiply(slopes, weight.T),
            None if hidden is None else _sum_products(slopes, hidden),
            slopes.sum(dim=0) if ctx.needs_input_grad[2] else None,
        )


def _sum_products(left: Tensor, right: Tensor) -> Tensor:
    """left [n, N].T @ right [n, K]."""
    whole = _count_whole(left)
    total = left[whole:].T @ right[whole:]
    for start in range(0, whole, BLOCK):
        total += _multiply_block(left[start : start + BLOCK].T, right[start : start + BLOCK].T)
    return total
