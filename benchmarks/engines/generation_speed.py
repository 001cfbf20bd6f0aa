"""Tokens per second of Covey's engine on vLLM, against plain vLLM and against the Hugging Face engine, one thread each.

64 requests at once.  "with_sampler" is Covey's seeded sampler, "with_proofs" the sampler and activation proofs; "plain"
is vLLM's own sampler at temperature 1 with the log-probabilities of the chosen tokens, which a worker must report.
Rates are those of the fastest round by wall time.  The sides take turns, and each begins with an empty prefix cache.

Covey computes log-probabilities with one log-softmax, where vLLM ranks every token.  Models this small say little about
the Hugging Face engine, whose time is that of Python.  On a CPU with AMX, Covey turns its tiles off and plain vLLM uses
them where its kernels find them, which matters in bfloat16 only.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.engines.vllm_peer import MODES, VllmPeer
from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.verification.policy_variants import build_policies, build_wide
from covey.engines.base import Completion, Engine, GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from covey.engines.vllm.engine import VllmEngine
from covey.errors import OperatorError
from covey.toploc import proofs
from covey.toploc.topk import Capture

GROUPS, SIBLINGS, PROMPT = 8, 8, 40
BATCH = GROUPS * SIBLINGS
CAPTURE = Capture(window=proofs.WINDOW, top_k=proofs.TOP_K)
RATIOS = ("with_sampler_over_plain", "with_proofs_over_plain", "vllm_over_hf")
BARS = {
    "with_sampler_over_plain": Bar(least=0.9),
    "with_sampler_over_plain_by_cpu": Bar(least=0.9),
    "with_proofs_over_plain": Bar(least=0.9),
    "with_proofs_over_plain_by_cpu": Bar(least=0.9),
}
PLAIN, SAMPLER, PROOFS, HF = "plain", "with_sampler", "with_proofs", "hf"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationWorkload:
    """One vocabulary.  Example: GenerationWorkload(suffix=".v32000", vocabulary=32_000, tokens=64, rounds=11)."""

    suffix: str
    """End of the names of the measurements."""
    vocabulary: int
    """Number of tokens of the vocabulary."""
    tokens: int
    """Largest number of tokens of a completion."""
    rounds: int
    """Number of counted rounds: more where a round is short."""


WORKLOADS = (
    GenerationWorkload(suffix="", vocabulary=259, tokens=128, rounds=21),
    GenerationWorkload(suffix=".v32000", vocabulary=32_000, tokens=64, rounds=11),
    GenerationWorkload(suffix=".v152000", vocabulary=152_000, tokens=32, rounds=7),
)


@dataclass(slots=True)
class EngineTimes:
    """Tokens and seconds of each round of one side."""

    tokens: list[float] = field(default_factory=list)
    """Number of generated tokens."""
    wall: list[float] = field(default_factory=list)
    """Wall seconds."""
    cpu: list[float] = field(default_factory=list)
    """CPU seconds of all processes of the side."""

    def add(self, values: Mapping[str, float]) -> None:
        """Add a round with the keys "tokens", "wall" and "cpu"."""
        self.tokens.append(values["tokens"])
        self.wall.append(values["wall"])
        self.cpu.append(values["cpu"])

    def compute_rate(self) -> float:
        """Compute the tokens per second of the fastest round."""
        return max(tokens / seconds for tokens, seconds in zip(self.tokens, self.wall, strict=True))

    def compute_costs(self) -> list[float]:
        """Compute the CPU microseconds per token of each round."""
        return [seconds / tokens * 1e6 for tokens, seconds in zip(self.tokens, self.cpu, strict=True)]


TimesBySide = dict[str, EngineTimes]


def build_requests(workload: GenerationWorkload, round_: int) -> list[GenerationRequest]:
    """Build groups of siblings, as a task has them, with prompts that no other round has."""
    prompts = [
        (2, *(3 + (round_ * 101 + group * 37 + i * (11 + group)) % 256 for i in range(PROMPT - 1)))
        for group in range(GROUPS)
    ]
    return [
        GenerationRequest(
            prompt=prompts[i // SIBLINGS], seed=(round_ * BATCH + i) * 0x9E3779B97F4A7C15 % 2**63, max_tokens=tokens
        )
        for i, tokens in enumerate([workload.tokens] * BATCH)
    ]


def generate(engine: Engine, requests: Sequence[GenerationRequest], *, with_proofs: bool) -> list[Completion]:
    """Generate as a worker does for its submission: completions and, if wanted, the bytes of their proofs."""
    completions = engine.generate(requests, temperature=1.0, capture=CAPTURE if with_proofs else None)
    if with_proofs:
        proofs.build_many([each.tops for each in completions])
    return completions


def measure(workload: GenerationWorkload, dtype: str, rounds: int | None) -> TimesBySide:
    """Measure all sides.  At most two engines are alive at a time.  If `rounds` is None, the workload's count."""
    rounds = rounds or workload.rounds
    times: TimesBySide = defaultdict(EngineTimes)
    with VllmEngine(dtype=dtype, max_batch=BATCH) as ours:
        vocabulary = workload.vocabulary
        folder = build_policies("qwen2") / "true" if vocabulary == 259 else build_wide(vocabulary)
        ours.load_policy(folder, 0)

        def run_ours(
            requests: Sequence[GenerationRequest], *, with_proofs: bool
        ) -> tuple[list[Completion], dict[str, float]]:
            ours.load_policy(folder, 0)  # empties the prefix cache
            assert ours.process_id is not None
            return _time(partial(generate, ours, requests, with_proofs=with_proofs), ours.process_id)

        with VllmPeer(folder, dtype, BATCH) as peer:
            for round_ in range(-1, rounds):
                requests = build_requests(workload, round_)
                completions, sampler = run_ours(requests, with_proofs=False)
                _, both = run_ours(requests, with_proofs=True)
                # Plain vLLM generates as many tokens per request as ours did, because each side ends elsewhere.
                prompts, limits = [each.prompt for each in requests], [len(each.tokens) for each in completions]
                plain = {mode: peer.run(mode, prompts, limits) for mode in MODES}
                if round_ >= 0:  # round -1 warms everything up
                    for side, values in {SAMPLER: sampler, PROOFS: both, **plain}.items():
                        times[side].add(values)
        reference = HuggingFaceEngine(dtype=dtype, max_batch=BATCH)
        reference.load_policy(folder, 0)
        for round_ in range(-1, rounds):
            requests = build_requests(workload, round_)
            _, both = run_ours(requests, with_proofs=True)
            _, slow = _time(partial(generate, reference, requests, with_proofs=True), None)
            if round_ >= 0:
                times[f"{PROOFS}_beside_hf"].add(both)
                times[HF].add(slow)
    return times


def build_measurements(workload: GenerationWorkload, times: TimesBySide) -> list[Measurement]:
    """Build the ratios with the rates that they divide by, then the rate and the median CPU time of each side.

    The ratio of CPU times is the median over rounds, whose runs follow each other.  It can be repeated on a machine
    that others use.
    """
    rates, measurements = {side: each.compute_rate() for side, each in times.items()}, []
    sides = ((SAMPLER, PLAIN), (PROOFS, PLAIN), (f"{PROOFS}_beside_hf", HF))
    for name, (side, peer) in zip(RATIOS, sides, strict=True):
        n, costs = len(times[side].wall), times[peer].compute_costs()
        by_cpu = median(b / a for a, b in zip(times[side].compute_costs(), costs, strict=True))
        rate, cost = f"{peer} {rates[peer]:,.0f} tokens/s", f"{peer} {median(costs):,.0f} us/token"
        ratio = rates[side] / rates[peer]
        measurements += [
            Measurement(name=name + workload.suffix, value=ratio, unit="ratio", n=n, peer=rate),
            Measurement(name=f"{name}_by_cpu{workload.suffix}", value=by_cpu, unit="ratio", n=n, peer=cost),
        ]
    for side, of_side in times.items():
        n, shown = len(of_side.wall), f"{of_side.tokens[0]:,.0f} tokens per round"
        rate_name, cost_name = f"tokens_per_second.{side}{workload.suffix}", f"cpu_per_token.{side}{workload.suffix}"
        cost_per_token = median(of_side.compute_costs())
        measurements += [
            Measurement(name=rate_name, value=rates[side], unit="tokens/s", n=n, peer=shown),
            Measurement(name=cost_name, value=cost_per_token, unit="us/token", n=n),
        ]
    return set_bars(measurements, BARS)


def find_failures(
    measurements: Sequence[Measurement], workloads: Sequence[GenerationWorkload], rounds: int | None = None
) -> list[str]:
    """Return one line for each ratio below its bar, not measured, or measured in fewer rounds than requested."""
    by_name = {measurement.name: measurement for measurement in measurements}
    failures = find_misses(measurements)
    for workload in workloads:
        wanted = rounds or workload.rounds
        for name in (f"{ratio}{workload.suffix}" for ratio in RATIOS):
            if name not in by_name:
                failures.append(f"{name} was not measured")
            elif by_name[name].n < wanted:
                failures.append(f"{name} has an n of {by_name[name].n}, less than {wanted}")
    return failures


def _time(call: Callable[[], list[Completion]], process: int | None) -> tuple[list[Completion], dict[str, float]]:
    """Return a call's completions, with its tokens, wall seconds and CPU seconds.

    CPU seconds are those of this process and of `process`, None for this one alone.
    """
    wall, cpu = time.perf_counter(), time.process_time() + _read_seconds(process)
    completions = call()
    values = {"wall": time.perf_counter() - wall, "cpu": time.process_time() + _read_seconds(process) - cpu}
    return completions, {**values, "tokens": float(sum(len(each.tokens) for each in completions))}


def _read_seconds(process: int | None) -> float:
    """Read the CPU seconds of all threads of a living process from the kernel's table."""
    if process is None:
        return 0.0
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make bench NAME=engine", description=__doc__)
    parser.add_argument("--rounds", type=int, help="runs of each side, of which the fastest counts; default: 21, 11, 7")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="number format of weights")
    sizes = [workload.vocabulary for workload in WORKLOADS]
    parser.add_argument("--vocabulary", type=int, choices=sizes, help="the one vocabulary to measure; default: all")
    options = parser.parse_args(arguments)
    prepare_process(threads=1)
    workloads = [workload for workload in WORKLOADS if options.vocabulary in {None, workload.vocabulary}]
    try:
        measurements = [
            measurement
            for workload in workloads
            for measurement in build_measurements(workload, measure(workload, options.dtype, options.rounds))
        ]
    except OperatorError as error:  # vLLM is not installed, or does not run here
        print(error, file=sys.stderr)
        return 1
    return finish("engine", measurements, find_failures(measurements, workloads, options.rounds), arguments)
