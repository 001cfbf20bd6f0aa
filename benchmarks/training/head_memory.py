"""Memory and time of the tiled language-model head, against a dense head: log-probabilities, entropy and gradients.

The dense head computes all logits, a log-softmax and autograd.  The tiled head, `trainer.algorithm.lm_head`, keeps no
logits: it computes its products twice, which is a third more arithmetic, and saves the memory traffic of the logits.
Each run is a fresh process with one thread.  Memory is the peak beyond inputs, weight and their gradients, which
both heads must hold.  The ratio of memory compares the worst run of the tiled head with the best of the dense one.
"""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks import isolated_process
from benchmarks.harness import finish
from benchmarks.isolated_process import read_peak
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from covey.model.policy_files import DTYPES
from trainer.algorithm.lm_head import compute_head

DENSE, TILED = "dense", "tiled"
BARS = {"head_memory_ratio": Bar(most=0.05), "head_time_ratio": Bar(most=1.5)}
DENSE_COPIES = 4
"""Matrices of all logits in float32 that the dense head holds at its peak: logits, log p, p and p log p."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSize:
    """Size of one pass.  Example: HeadSize(tokens=4096, vocabulary=128_000, hidden=1024, dtype="float32")."""

    tokens: int
    """Number of hidden states."""
    vocabulary: int
    """Number of entries of the vocabulary."""
    hidden: int
    """Width of the hidden states."""
    dtype: str
    """Number format of hidden states and weight, "float32" or "bfloat16"."""


def compute_dense(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities, with a gradient, and entropies with PyTorch's own operators."""
    logprobs = torch.log_softmax((hidden @ weight.T).float(), dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy


def run_once(side: str, sizes: dict[str, Any]) -> dict[str, float]:
    """Measure extra bytes and seconds of one forward and backward pass in this process, which must be a fresh one.

    `sizes` holds the fields of a `HeadSize`.
    """
    size = HeadSize(**sizes)
    dtype = DTYPES[size.dtype]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(size.tokens, size.hidden, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(size.vocabulary, size.hidden, generator=generator, dtype=dtype).mul_(0.05).requires_grad_()
    targets = torch.randint(0, size.vocabulary, (size.tokens,), generator=generator)
    factors = torch.randn(size.tokens, generator=generator)
    warm_up = compute_head(hidden[:64], weight[:64], targets[:64] % 64, dtype=dtype)[
        0
    ]  # what the libraries allocate once
    torch.autograd.grad(warm_up.sum(), hidden)
    before = read_peak()
    wall, cpu = time.perf_counter(), time.process_time()
    if side == DENSE:
        logprobs, _ = compute_dense(hidden, weight, targets)
    else:
        logprobs, _ = compute_head(hidden, weight, targets, dtype=dtype)
    torch.autograd.backward((factors * logprobs).sum())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert hidden.grad is not None
    assert weight.grad is not None
    return {"extra": read_peak() - before - hidden.grad.nbytes - weight.grad.nbytes, "wall": wall, "cpu": cpu}


def measure(side: str, size: HeadSize) -> dict[str, float]:
    """Call `run_once` in a fresh process."""
    values: dict[str, float] = isolated_process.call("benchmarks.training.head_memory:run_once", side, size)
    return values


def fit(size: HeadSize, available: float) -> HeadSize:
    """Halve the tokens until the dense head fits into `available` bytes."""
    tokens = size.tokens
    fixed = 2 * size.vocabulary * size.hidden * DTYPES[size.dtype].itemsize
    while tokens > 1 and fixed + DENSE_COPIES * 4 * tokens * size.vocabulary > available:
        tokens //= 2
    return replace(size, tokens=tokens)


def build_measurements(
    size: HeadSize, dense: HeadSize, runs: Mapping[str, Sequence[Mapping[str, float]]]
) -> list[Measurement]:
    """Build the ratios, then the bytes and seconds that they divide.

    If the dense head ran on fewer tokens (`dense`), its numbers are multiplied to those of `size`.
    """
    scale, n = size.tokens / dense.tokens, len(runs[TILED])
    extra = {DENSE: scale * min(run["extra"] for run in runs[DENSE]), TILED: max(run["extra"] for run in runs[TILED])}
    seconds = {
        clock: {DENSE: scale * min(run[clock] for run in runs[DENSE]), TILED: min(run[clock] for run in runs[TILED])}
        for clock in ("wall", "cpu")
    }
    peer = f"dense, {dense.tokens} tokens" + (f", times {scale:g}" if scale > 1 else "")
    ratios = {
        "head_memory_ratio": extra[TILED] / extra[DENSE],
        "head_time_ratio": seconds["wall"][TILED] / seconds["wall"][DENSE],
        "head_time_ratio_by_cpu": seconds["cpu"][TILED] / seconds["cpu"][DENSE],
    }
    measurements = [Measurement(name=name, value=value, unit="ratio", n=n, peer=peer) for name, value in ratios.items()]
    for side, shown in ((TILED, ""), (DENSE, peer)):
        measurements += [
            Measurement(name=f"head_extra_mb.{side}", value=extra[side] / 1e6, unit="MB", n=n, peer=shown),
            Measurement(name=f"head_seconds.{side}", value=seconds["wall"][side], unit="s", n=n, peer=shown),
            Measurement(name=f"head_cpu_seconds.{side}", value=seconds["cpu"][side], unit="s", n=n, peer=shown),
        ]
    return set_bars(measurements, BARS)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make bench NAME=memory", description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096, help="hidden states of a pass; default: 4096")
    parser.add_argument("--vocabulary", type=int, default=128_000, help="entries of the vocabulary; default: 128000")
    parser.add_argument("--hidden", type=int, default=1024, help="width of the hidden states; default: 1024")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32", help="number format; default: float32")
    parser.add_argument(
        "--runs", type=int, default=3, help="runs of each head, of which the fastest counts; default: 3"
    )
    options = parser.parse_args(arguments)
    size = HeadSize(tokens=options.tokens, vocabulary=options.vocabulary, hidden=options.hidden, dtype=options.dtype)
    dense = fit(size, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    runs: dict[str, list[dict[str, float]]] = {DENSE: [], TILED: []}
    for _ in range(options.runs):
        runs[DENSE].append(measure(DENSE, dense))
        runs[TILED].append(measure(TILED, size))
    measurements = build_measurements(size, dense, runs)
    return finish("memory", measurements, find_misses(measurements), arguments)
