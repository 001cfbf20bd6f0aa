"""The head without logits against the dense one: memory and time of one forward and backward pass, in one run.

`make bench NAME=memory`; ARGS="--tokens 4096 --vocabulary 128000 --hidden 1024 --dtype float32 --runs 3".  Each run is
a process of its own, one thread.  Memory is the peak beyond inputs, weight and their gradients, which both must hold.
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
from benchmarks.harness import Measurement, find_misses, finish
from benchmarks.isolated_process import read_peak
from covey.model.policy_files import DTYPES
from trainer.algorithm.lm_head import compute_head

DENSE, TILED = "dense", "tiled"
MOST = {"head_memory_ratio": 0.05, "head_time_ratio": 1.5}
DENSE_COPIES = 4
"""Matrices of all logits in float32 that the dense head holds at its peak: logits, log p, p and their product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSize:
    """Example: HeadSize(tokens=4096, vocabulary=128_000, hidden=1024, dtype="float32")."""

    tokens: int
    vocabulary: int
    hidden: int
    dtype: str


def compute_dense(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute what `trainer.algorithm.lm_head` does with torch's own operators: log p with a gradient, and entropy."""
    logprobs = torch.log_softmax((hidden @ weight.T).float(), dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy


def run_once(side: str, sizes: dict[str, Any]) -> dict[str, float]:
    """Bytes and seconds of one pass of one side on a `HeadSize`, in this process, which should be a fresh one."""
    case = HeadSize(**sizes)
    dtype = DTYPES[case.dtype]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(case.tokens, case.hidden, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(case.vocabulary, case.hidden, generator=generator, dtype=dtype).mul_(0.05).requires_grad_()
    targets = torch.randint(0, case.vocabulary, (case.tokens,), generator=generator)
    factors = torch.randn(case.tokens, generator=generator)
    warm_up = compute_head(hidden[:64], weight[:64], targets[:64] % 64, dtype=dtype)[0]  # what the libraries allocate
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


def measure(side: str, case: HeadSize) -> dict[str, float]:
    """`run_once` in a fresh process."""
    found: dict[str, float] = isolated_process.call("benchmarks.training.head_memory:run_once", side, case)
    return found


def fit(case: HeadSize, available: float) -> HeadSize:
    """The case with as many tokens as the dense head has room for in so many bytes."""
    tokens = case.tokens
    fixed = 2 * case.vocabulary * case.hidden * DTYPES[case.dtype].itemsize
    while tokens > 1 and fixed + DENSE_COPIES * 4 * tokens * case.vocabulary > available:
        tokens //= 2
    return replace(case, tokens=tokens)


def build_claims(
    case: HeadSize, dense: HeadSize, runs: Mapping[str, Sequence[Mapping[str, float]]]
) -> list[Measurement]:
    """Ratios, then what they were made of; of memory the worst run of ours and the best of the dense head."""
    scale, n = case.tokens / dense.tokens, len(runs[TILED])
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
    claims = [Measurement(name=name, value=value, unit="ratio", n=n, peer=peer) for name, value in ratios.items()]
    for side, shown in ((TILED, ""), (DENSE, peer)):
        claims += [
            Measurement(name=f"head_extra_mb.{side}", value=extra[side] / 1e6, unit="MB", n=n, peer=shown),
            Measurement(name=f"head_seconds.{side}", value=seconds["wall"][side], unit="s", n=n, peer=shown),
            Measurement(name=f"head_cpu_seconds.{side}", value=seconds["cpu"][side], unit="s", n=n, peer=shown),
        ]
    return claims


def find_failures(claims: Sequence[Measurement]) -> list[str]:
    """Ratios above their bars."""
    return find_misses(claims, most=MOST)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=128_000)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--runs", type=int, default=3, help="runs of each side, of which the fastest counts")
    options = parser.parse_args(arguments)
    case = HeadSize(tokens=options.tokens, vocabulary=options.vocabulary, hidden=options.hidden, dtype=options.dtype)
    dense = fit(case, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    runs: dict[str, list[dict[str, float]]] = {DENSE: [], TILED: []}
    for _ in range(options.runs):
        runs[DENSE].append(measure(DENSE, dense))
        runs[TILED].append(measure(TILED, case))
    claims = build_claims(case, dense, runs)
    return finish("memory", claims, find_failures(claims))
