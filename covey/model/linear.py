"""Linear layers by oneDNN on processors to which MKL gives half their width: those with AVX-512 that are not Intel's.

torch computes float32 products with MKL, which runs AVX2 there: on an AMD EPYC of family 26 at 95 GFLOP/s a core where
oneDNN, which torch has beside it, comes to 220.  Called where models are loaded.
"""

import functools
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BLOCK = 256
"""Rows that are multiplied together: oneDNN makes its kernels anew for every number of rows, and keeps them."""
WORTH = 1 << 14
"""Weights of a layer from which on the longer way into oneDNN, some microseconds a block, is made good."""


def quicken(model: nn.Module) -> None:
    """Have the model's plain linear layers compute as said above, with gradients; elsewhere nothing changes."""
    if is_worth_it():
        for layer in model.modules():
            if type(layer) is nn.Linear and layer.weight.numel() >= WORTH:
                layer.__class__ = QuickLinear


@functools.cache
def is_worth_it() -> bool:
    """Whether MKL leaves half of this processor unused, and oneDNN is there."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        return "GenuineIntel" not in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


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
        if torch.is_grad_enabled():
            return cast(Tensor, _Linear.apply(input, weight, bias))  # type: ignore[no-untyped-call]
        return multiply(input, weight, bias)


def multiply(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """left [..., K] @ right [N, K].T + bias [N], float32 on a CPU, whatever the strides."""
    rows = left.flatten(0, -2)
    whole = len(rows) // BLOCK * BLOCK
    parts = [_multiply_block(block, right, bias) for block in torch.split(rows[:whole], BLOCK)]
    if whole < len(rows):
        parts.append(F.linear(rows[whole:], right, bias))
    found = parts[0] if len(parts) == 1 else torch.cat(parts)
    return found.view(*left.shape[:-1], len(right))


def _multiply_block(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return found


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return multiply(hidden, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            multiply(slopes, weight.T) if wanted[0] else None,
            _sum_products(slopes.flatten(0, -2), hidden.flatten(0, -2)) if wanted[1] else None,
            slopes.flatten(0, -2).sum(dim=0) if wanted[2] else None,
        )


def _sum_products(left: Tensor, right: Tensor) -> Tensor:
    """left [n, N].T @ right [n, K]."""
    whole = len(left) // BLOCK * BLOCK
    total = left[whole:].T @ right[whole:]
    for a, b in zip(torch.split(left[:whole], BLOCK), torch.split(right[:whole], BLOCK), strict=True):
        total += _multiply_block(a.T, b.T)
    return total
