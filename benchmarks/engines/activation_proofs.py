"""Proofs of activations: our speed and bytes against the public package `toploc` 0.1.6, on one core in one run.

`make bench NAME=toploc`; ARGS="--windows 8000 --runs 15".  Speeds are CPU time end to end, the least of several runs:
activations in memory to bytes, and bytes with activations to distances.  They include the search for the top values.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.engines import toploc_peer
from benchmarks.harness import Measurement, find_misses, finish
from covey.toploc import proofs
from covey.toploc.backend import choose
from covey.toploc.topk import Capture

HIDDEN, WINDOW, TOP_K = 5120, proofs.WINDOW, proofs.TOP_K
PAPER = Capture(window=WINDOW, top_k=TOP_K)
COMPLETION = 4
"""Windows of a completion."""
CHUNK = 64
"""Windows in memory at a time: 21 MB."""

T = TypeVar("T")
Bits = NDArray[np.uint16]


@dataclass(slots=True)
class Tally:
    """What the comparison of bytes and of verdicts counted, in windows."""

    windows: int = 0
    identical: int = 0
    tied: int = 0
    untied_identical: int = 0
    accepted_by_both: int = 0


def draw(rng: np.random.Generator, gains: NDArray[np.float32], windows: int) -> Bits:
    """uint16[windows * 32, hidden]: bfloat16 bits of normal values times a gain a channel, some of them outliers."""
    drawn = rng.standard_normal((windows * WINDOW, HIDDEN), np.float32)
    drawn *= gains
    bits = torch.from_numpy(drawn).to(torch.bfloat16).view(torch.int16).numpy()
    return bits.view(np.uint16)


def draw_gains(rng: np.random.Generator) -> NDArray[np.float32]:
    """Heavy-tailed, as last hidden states of language models are: log-normal, eight channels twelve times larger."""
    gains = np.exp(rng.normal(scale=0.5, size=HIDDEN))
    gains[rng.permutation(HIDDEN)[:8]] *= 12
    return gains.astype(np.float32)


def is_tied(windows: Bits) -> NDArray[np.bool_]:
    """Whether the magnitudes at ranks 128 and 129 are equal, so that the package may choose as it likes."""
    _, values = choose().find_top(windows, TOP_K + 1)
    magnitudes = np.sort(values & np.uint16(0x7FFF), axis=1)
    return np.asarray(magnitudes[:, 0] == magnitudes[:, 1])


def compare_bytes(peer: ModuleType, windows: int, seed: int) -> Tally:
    """Bytes of both for equal (index, value) input and end to end, and the verdict of each on the other's proofs."""
    rng = np.random.default_rng(seed)
    gains, tally = draw_gains(rng), Tally()
    while tally.windows < windows:
        states = draw(rng, gains, min(CHUNK, windows - tally.windows))
        flat = states.reshape(-1, WINDOW * HIDDEN)
        top = choose().find_top(flat, TOP_K)
        ours, theirs = proofs.build(states), toploc_peer.build(peer, toploc_peer.to_tensor(flat), TOP_K)
        equal_input = toploc_peer.build_from_top(peer, *top)
        by_them = toploc_peer.verify(peer, toploc_peer.to_tensor(states), ours, WINDOW, TOP_K)
        by_us = proofs.compare_all(theirs, states)
        for w, tied in enumerate(is_tied(flat)):
            tally.windows += 1
            tally.identical += ours[w] == equal_input[w]
            tally.tied += bool(tied)
            if not tied:
                distances = by_us[w]
                zero = distances.sign_exponent_mismatches == distances.mantissa_mean == 0
                tally.untied_identical += ours[w] == theirs[w]
                tally.accepted_by_both += zero and by_them[w] == (0, 0.0, 0.0)
    return tally


def take_least(runs: int, functions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """CPU microseconds a window of each, the least of `runs` that take turns."""
    least = dict.fromkeys(functions, float("inf"))
    for _ in range(runs):
        for name, function in functions.items():
            started = time.process_time()
            function()
            least[name] = min(least[name], (time.process_time() - started) / CHUNK * 1e6)
    return least


def time_both(peer: ModuleType, runs: int, seed: int) -> dict[str, float]:
    """Microseconds a window of building and verifying, ours and the package's, on equal activations."""
    rng = np.random.default_rng(seed)
    states = draw(rng, draw_gains(rng), CHUNK)
    completions = list(states.reshape(CHUNK // COMPLETION, COMPLETION * WINDOW, HIDDEN))
    tensor = toploc_peer.to_tensor(states)
    flat = tensor.reshape(CHUNK, -1)
    built = proofs.build_many(proofs.find_tops(completions, PAPER))
    lines = [proof for each in built for proof in each]
    return take_least(
        runs,
        {
            "build": lambda: proofs.build_many(proofs.find_tops(completions, PAPER)),
            "peer_build": lambda: toploc_peer.build(peer, flat, TOP_K),
            "verify": lambda: proofs.compare_many(built, proofs.find_tops(completions, PAPER)),
            "peer_verify": lambda: toploc_peer.verify(peer, tensor, lines, WINDOW, TOP_K),
        },
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=8_000, help="windows whose bytes are compared")
    parser.add_argument("--runs", type=int, default=15, help="runs of which the least counts")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    # Before the package is loaded: it asks how many threads to start.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    try:
        peer = toploc_peer.load()
    except ImportError as error:
        print(error, file=sys.stderr)
        return 1
    times = time_both(peer, options.runs, options.seed)
    tally = compare_bytes(peer, options.windows, options.seed)
    untied, name = tally.windows - tally.tied, f"toploc {toploc_peer.VERSION}"
    build_speedup, verify_speedup = times["peer_build"] / times["build"], times["peer_verify"] / times["verify"]
    different = tally.windows - tally.identical + untied - tally.untied_identical
    runs, windows = options.runs, tally.windows
    claims = [
        Measurement(name="build_speedup", value=build_speedup, unit="times", n=runs, peer=name),
        Measurement(name="verify_speedup", value=verify_speedup, unit="times", n=runs, peer=name),
        Measurement(name="build_us", value=times["build"], unit="us a window", n=runs),
        Measurement(name="peer_build_us", value=times["peer_build"], unit="us a window", n=runs, peer=name),
        Measurement(name="verify_us", value=times["verify"], unit="us a window", n=runs),
        Measurement(name="peer_verify_us", value=times["peer_verify"], unit="us a window", n=runs, peer=name),
        Measurement(name="bytes_identical", value=tally.identical, unit="windows", n=windows, peer=name),
        Measurement(
            name="bytes_identical_end_to_end", value=tally.untied_identical, unit="windows", n=untied, peer=name
        ),
        Measurement(name="bytes_different", value=different, unit="windows", n=windows + untied, peer=name),
        Measurement(name="ties_at_rank_128", value=tally.tied, unit="windows", n=windows, peer=name),
        Measurement(name="cross_verified", value=tally.accepted_by_both, unit="windows", n=untied, peer=name),
    ]
    failures = find_misses(claims, least={"build_speedup": 15, "verify_speedup": 10}, most={"bytes_different": 0})
    if tally.accepted_by_both < untied:
        failures.append(f"{untied - tally.accepted_by_both} windows are not cross-verified")
    return finish("toploc", claims, failures)
