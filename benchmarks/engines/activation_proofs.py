"""CPU time and bytes of activation proofs, against the public package `toploc` 0.1.6, on one core.

Times are end to end, and the least of several runs: from activations in memory to bytes, and from bytes and activations
to distances.  Both include the search for the top values.  The package has no rule for equal magnitudes at rank 128,
where Covey takes the lower index.  So bytes are compared end to end only in windows without such a tie.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.engines import toploc_peer
from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from covey.toploc import proofs
from covey.toploc.backend import choose
from covey.toploc.proofs import Bits
from covey.toploc.topk import Capture

HIDDEN, WINDOW, TOP_K = 5120, proofs.WINDOW, proofs.TOP_K
PAPER = Capture(window=WINDOW, top_k=TOP_K)
"""Window and number of values of the paper on TOPLOC."""
COMPLETION = 4
"""Windows of a completion."""
CHUNK = 64
"""Windows that are in memory at a time, which take 21 MB."""
BARS = {"build_speedup": Bar(least=15), "verify_speedup": Bar(least=10), "bytes_different": Bar(most=0)}


@dataclass(slots=True)
class ByteComparison:
    """Counts of windows by what the comparison of bytes and verdicts found."""

    windows: int = 0
    """Windows that were compared."""
    identical: int = 0
    """Windows whose bytes are equal where both sides get the same indices and values."""
    tied: int = 0
    """Windows with equal magnitudes at ranks 128 and 129."""
    untied_identical: int = 0
    """Windows without a tie whose bytes are equal end to end."""
    accepted_by_both: int = 0
    """Windows without a tie in which each side finds no distance in the other's proof."""


def draw(rng: np.random.Generator, gains: NDArray[np.float32], windows: int) -> Bits:
    """Draw the bfloat16 bits of normal values times a gain per channel, uint16[windows * 32, hidden]."""
    drawn = rng.standard_normal((windows * WINDOW, HIDDEN), np.float32)
    drawn *= gains
    bits = torch.from_numpy(drawn).to(torch.bfloat16).view(torch.int16).numpy()
    return bits.view(np.uint16)


def draw_gains(rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw gains with heavy tails, as last hidden states of language models have.

    They are log-normal, and those of eight channels are twelve times larger.
    """
    gains = np.exp(rng.normal(scale=0.5, size=HIDDEN))
    gains[rng.permutation(HIDDEN)[:8]] *= 12
    return gains.astype(np.float32)


def is_tied(windows: Bits) -> NDArray[np.bool_]:
    """Tell for each window whether the magnitudes at ranks 128 and 129 are equal."""
    _, values = choose().find_top(windows, TOP_K + 1)
    magnitudes = np.sort(values & np.uint16(0x7FFF), axis=1)
    return np.asarray(magnitudes[:, 0] == magnitudes[:, 1])


def compare_bytes(peer: ModuleType, windows: int, seed: int) -> ByteComparison:
    """Compare the bytes of both sides, for equal (index, value) input and end to end, and their verdicts.

    Each side verifies the proofs of the other one.
    """
    rng = np.random.default_rng(seed)
    gains, comparison = draw_gains(rng), ByteComparison()
    while comparison.windows < windows:
        states = draw(rng, gains, min(CHUNK, windows - comparison.windows))
        flat = states.reshape(-1, WINDOW * HIDDEN)
        top = choose().find_top(flat, TOP_K)
        ours, theirs = proofs.build(states), toploc_peer.build(peer, toploc_peer.to_tensor(flat), TOP_K)
        equal_input = toploc_peer.build_from_top(peer, *top)
        by_them = toploc_peer.verify(peer, toploc_peer.to_tensor(states), ours, WINDOW, TOP_K)
        by_us = proofs.compare_all(theirs, states)
        for w, tied in enumerate(is_tied(flat)):
            comparison.windows += 1
            comparison.identical += ours[w] == equal_input[w]
            comparison.tied += bool(tied)
            if not tied:
                distances = by_us[w]
                zero = distances.sign_exponent_mismatches == distances.mantissa_mean == 0
                comparison.untied_identical += ours[w] == theirs[w]
                comparison.accepted_by_both += zero and by_them[w] == (0, 0.0, 0.0)
    return comparison


def take_least(runs: int, functions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Measure the CPU microseconds per window of each function, the least of `runs` runs that take turns."""
    least = dict.fromkeys(functions, float("inf"))
    for _ in range(runs):
        for name, function in functions.items():
            started = time.process_time()
            function()
            least[name] = min(least[name], (time.process_time() - started) / CHUNK * 1e6)
    return least


def time_both(peer: ModuleType, runs: int, seed: int) -> dict[str, float]:
    """Measure the microseconds per window of building and verifying, of both sides, on equal activations."""
    rng = np.random.default_rng(seed)
    states = draw(rng, draw_gains(rng), CHUNK)
    completions = list(states.reshape(CHUNK // COMPLETION, COMPLETION * WINDOW, HIDDEN))
    tensor = toploc_peer.to_tensor(states)
    flat = tensor.reshape(CHUNK, -1)
    built = proofs.build_many(proofs.find_tops(completions, PAPER))
    by_window = [proof for completion in built for proof in completion]
    return take_least(
        runs,
        {
            "build": lambda: proofs.build_many(proofs.find_tops(completions, PAPER)),
            "peer_build": lambda: toploc_peer.build(peer, flat, TOP_K),
            "verify": lambda: proofs.compare_many(built, proofs.find_tops(completions, PAPER)),
            "peer_verify": lambda: toploc_peer.verify(peer, tensor, by_window, WINDOW, TOP_K),
        },
    )


def build_measurements(times: dict[str, float], comparison: ByteComparison, runs: int) -> list[Measurement]:
    """Build speedups and times, then the counts of windows.  All windows without a tie must be accepted by both."""
    peer = f"toploc {toploc_peer.VERSION}"
    windows, untied = comparison.windows, comparison.windows - comparison.tied
    different = windows - comparison.identical + untied - comparison.untied_identical
    speedups = {f"{name}_speedup": times[f"peer_{name}"] / times[name] for name in ("build", "verify")}
    measurements = [
        Measurement(name=name, value=value, unit="times", n=runs, peer=peer) for name, value in speedups.items()
    ]
    for name in ("build", "verify"):
        ours, theirs = times[name], times[f"peer_{name}"]
        measurements.append(Measurement(name=f"{name}_us", value=ours, unit="us/window", n=runs))
        measurements.append(Measurement(name=f"peer_{name}_us", value=theirs, unit="us/window", n=runs, peer=peer))
    counts = (
        ("bytes_identical", comparison.identical, windows),
        ("bytes_identical_end_to_end", comparison.untied_identical, untied),
        ("bytes_different", different, windows + untied),
        ("ties_at_rank_128", comparison.tied, windows),
        ("cross_verified", comparison.accepted_by_both, untied),
    )
    measurements += [Measurement(name=name, value=value, unit="windows", n=n, peer=peer) for name, value, n in counts]
    return set_bars(measurements, BARS | {"cross_verified": Bar(least=untied)})


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make bench NAME=toploc", description=__doc__)
    parser.add_argument("--windows", type=int, default=8_000, help="windows whose bytes are compared; default: 8000")
    parser.add_argument("--runs", type=int, default=15, help="runs of which the least counts; default: 15")
    parser.add_argument("--seed", type=int, default=1, help="seed of the activations; default: 1")
    options = parser.parse_args(arguments)
    # The package asks for the number of cores when it is loaded, so that it must see one.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    try:
        peer = toploc_peer.load()
    except ImportError as error:
        print(error, file=sys.stderr)
        return 1
    times = time_both(peer, options.runs, options.seed)
    comparison = compare_bytes(peer, options.windows, options.seed)
    measurements = build_measurements(times, comparison, options.runs)
    return finish("toploc", measurements, find_misses(measurements), arguments)
