"""The language-model head without full logits: log p of the targets and entropy, from hidden states and weight.

Logits exist for one tile of tokens and vocabulary at a time. The backward pass computes them again.
Sources: the running log-sum-exp of arXiv 1805.02867 (algorithm 3), and recomputed tiles as in arXiv 2411.09009.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Partial

TILE, CPU_TILE = (4096, 16384), (512, 4096)
"""Number of tokens and of vocabulary entries in a tile: 256 MiB on a GPU, where launching small ones takes as long as
computing them, and 8 MiB on a CPU, whose caches are small.
"""


def compute_head(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, dtype: torch.dtype, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Map hidden [n, H], weight [V, H] and targets int64 [n] to log p(target) and entropy in nats, both float32 [n].

    p = softmax(hidden @ weight.T / temperature). Matrix products take inputs of `dtype` and accumulate in float32. On a
    CPU products have the dtype `dtype`, and only sums over tiles are float32. Everything else is float32. If `dtype` is
    float64, everything is float64. Gradients of both outputs are exact and reach `hidden` and `weight` in their own
    dtypes.

    A sharded weight is gathered here, and its gradient is summed over the ranks.
    """
    if isinstance(weight, DTensor):
        weight = weight.full_tensor(grad_placements=[Partial()] * weight.device_mesh.ndim)
    logprobs, entropy = _Head.apply(hidden, weight, targets, dtype, temperature)  # type: ignore[no-untyped-call]
    return logprobs, entropy


class ModelHead(torch.nn.Linear):
    """A head that can be sharded apart from the rest of the model. FSDP gathers its weight for `predict`."""

    def predict(self, hidden: Tensor, targets: Tensor, dtype: torch.dtype, temperature: float) -> tuple[Tensor, Tensor]:
        """Return `compute_head` with the weight of this head."""
        return compute_head(hidden, self.weight, targets, dtype=dtype, temperature=temperature)


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype, temperature: float
    ) -> tuple[Tensor, Tensor]:
        states, wide = hidden.to(dtype), _widen(dtype)
        highest = hidden.new_full((len(hidden),), torch.finfo(wide).min, dtype=wide)
        total, moment, chosen = (torch.zeros_like(highest) for _ in range(3))
        for columns, entries in _split(weight, dtype):
            for rows in _split_rows(hidden):
                logits = _multiply(states[rows], entries.T, temperature)
                chosen[rows] += _pick(logits, targets[rows] - columns.start)
                top = torch.maximum(highest[rows], logits.amax(dim=1))
                shift = highest[rows] - top
                odds = logits.sub_(top[:, None]).exp()
                # Sums of e^(l - top) and of (l - top) e^(l - top), moved to the new top.
                moment[rows] = shift.exp() * (moment[rows] + shift * total[rows]) + logits.mul_(odds).sum(dim=1)
                total[rows] = shift.exp() * total[rows] + odds.sum(dim=1)
                highest[rows] = top
        normaliser = highest + total.log()
        entropy = total.log() - moment / total
        ctx.save_for_backward(hidden, weight, targets, normaliser, entropy)
        ctx.set_materialize_grads(False)
        ctx.dtype, ctx.temperature = dtype, temperature
        return chosen - normaliser, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, by_logprob: Tensor | None, by_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        """Compute dlogits = g (onehot - p) - g_H p (log p + H), tile by tile.

        The outer loop runs over the vocabulary, so that the gradient of a tile's weight is complete before it is
        rounded.
        """
        hidden, weight, targets, normaliser, entropy = ctx.saved_tensors
        states, wide = hidden.to(ctx.dtype), _widen(ctx.dtype)
        by_logprob = torch.zeros_like(normaliser) if by_logprob is None else by_logprob
        by_hidden = torch.zeros(hidden.shape, dtype=wide, device=hidden.device)
        by_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        for columns, entries in _split(weight, ctx.dtype):
            by_entries = torch.zeros(entries.shape, dtype=wide, device=weight.device)
            for rows in _split_rows(hidden):
                logprobs = _multiply(states[rows], entries.T, ctx.temperature).sub_(normaliser[rows, None])
                slopes = logprobs.exp()
                if by_entropy is None:
                    slopes.mul_(-by_logprob[rows, None])
                else:
                    bias = by_logprob[rows] + by_entropy[rows] * entropy[rows]
                    slopes.mul_(logprobs.mul_(-by_entropy[rows, None]).sub_(bias[:, None]))
                _put(slopes, targets[rows] - columns.start, by_logprob[rows])
                if ctx.temperature != 1:
                    slopes.div_(ctx.temperature)
                slopes = slopes.to(ctx.dtype)
                _add_product(by_hidden[rows], slopes, entries)
                if by_weight is not None:
                    _add_product(by_entries, slopes.T, states[rows])
            if by_weight is not None:
                by_weight[columns] = by_entries
        return by_hidden.to(hidden.dtype), by_weight, None, None, None


def _widen(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums of `dtype`: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def _split(weight: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    _, size = CPU_TILE if weight.is_cpu else TILE
    for start in range(0, len(weight), size):
        columns = slice(start, start + size)
        yield columns, weight[columns].to(dtype)


def _split_rows(hidden: Tensor) -> Iterator[slice]:
    size, _ = CPU_TILE if hidden.is_cpu else TILE
    return (slice(start, start + size) for start in range(0, len(hidden), size))


def _pick(logits: Tensor, columns: Tensor) -> Tensor:
    """Return the logit at each row's column, or 0 if the column is outside the tile.

    There is no branch, because it would synchronise with a GPU.
    """
    is_inside = (columns >= 0) & (columns < logits.shape[1])
    return logits.gather(1, columns.where(is_inside, 0)[:, None])[:, 0].where(is_inside, 0)


def _put(slopes: Tensor, columns: Tensor, values: Tensor) -> None:
    """Add each row's value at its column if the column is inside the tile."""
    is_inside = (columns >= 0) & (columns < slopes.shape[1])
    slopes.scatter_add_(1, columns.where(is_inside, 0)[:, None], values.where(is_inside, 0)[:, None])


def _multiply(left: Tensor, right: Tensor, temperature: float = 1.0) -> Tensor:
    """Multiply two matrices, and divide by a temperature. The product has the widened dtype of the factors."""
    wide = _widen(left.dtype)
    if left.is_cuda and left.dtype is not wide:
        product = torch.mm(left, right, out_dtype=wide)
    else:
        product = (left @ right).to(wide)
    return product if temperature == 1 else product.div_(temperature)


def _add_product(into: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype is into.dtype:
        into.addmm_(left, right)
    else:
        into += _multiply(left, right)
