"""Generation: ours on vLLM, without and with proofs, against plain vLLM and the Hugging Face engine, in one run.

`make bench NAME=engine`; ARGS="--rounds 3 --dtype bfloat16 --vocabulary 32000".  Tokens a second of 64 requests at
once, wall time, the least of rounds in which the sides take turns; one thread each.
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
from benchmarks.harness import Measurement, find_misses, finish
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
LEAST = {
    "with_sampler_over_plain": 0.9,
    "with_sampler_over_plain_by_cpu": 0.9,
    "with_proofs_over_plain": 0.9,
    "with_proofs_over_plain_by_cpu": 0.9,
}
PLAIN, SAMPLER, PROOFS, HF = "plain", "with_sampler", "with_proofs", "hf"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationWorkload:
    """One policy.  Example: GenerationWorkload(suffix=".v32000", vocabulary=32_000, tokens=64, rounds=11)."""

    suffix: str
    vocabulary: int
    tokens: int
    """Of a completion at most."""
    rounds: int
    """More where they are short."""


CASES = (
    GenerationWorkload(suffix="", vocabulary=259, tokens=128, rounds=21),
    GenerationWorkload(suffix=".v32000", vocabulary=32_000, tokens=64, rounds=11),
    GenerationWorkload(suffix=".v152000", vocabulary=152_000, tokens=32, rounds=7),
)


@dataclass(slots=True)
class Timing:
    """What one side took: seconds of each run for so many tokens, on the clock and of all its processes."""

    tokens: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, found: Mapping[str, float]) -> None:
        """One run."""
        self.tokens.append(found["tokens"])
        self.wall.append(found["wall"])
        self.cpu.append(found["cpu"])

    def compute_rate(self) -> float:
        """Tokens a second of the fastest run."""
        return max(tokens / seconds for tokens, seconds in zip(self.tokens, self.wall, strict=True))

    def compute_costs(self) -> list[float]:
        """CPU microseconds a token of each run."""
        return [seconds / tokens * 1e6 for tokens, seconds in zip(self.tokens, self.cpu, strict=True)]


Timings = dict[str, Timing]


def build_requests(case: GenerationWorkload, round_: int) -> list[GenerationRequest]:
    """Groups of siblings, as a task has them; each round has prompts of its own."""
    prompts = [
        (2, *(3 + (round_ * 101 + group * 37 + i * (11 + group)) % 256 for i in range(PROMPT - 1)))
        for group in range(GROUPS)
    ]
    return [
        GenerationRequest(
            prompt=prompts[i // SIBLINGS], seed=(round_ * BATCH + i) * 0x9E3779B97F4A7C15 % 2**63, max_tokens=tokens
        )
        for i, tokens in enumerate([case.tokens] * BATCH)
    ]


def generate(engine: Engine, requests: Sequence[GenerationRequest], *, with_proofs: bool) -> list[Completion]:
    """What a worker does for its submission: completions and the bytes of their proofs."""
    completions = engine.generate(requests, temperature=1.0, capture=CAPTURE if with_proofs else None)
    if with_proofs:
        proofs.build_many([each.tops for each in completions])
    return completions


def measure(case: GenerationWorkload, dtype: str, rounds: int | None) -> Timings:
    """All sides on one policy; two engines at most are alive at a time.  `rounds`: None for those of the case."""
    rounds = rounds or case.rounds
    timings: Timings = defaultdict(Timing)
    with VllmEngine(dtype=dtype, max_batch=BATCH) as ours:
        folder = build_policies("qwen2") / "true" if case.vocabulary == 259 else build_wide(case.vocabulary)
        ours.load_policy(folder, 0)

        def run_ours(
            requests: Sequence[GenerationRequest], *, with_proofs: bool
        ) -> tuple[list[Completion], dict[str, float]]:
            ours.load_policy(folder, 0)  # empties the cache of prompts
            assert ours.process_id is not None
            return _time(partial(generate, ours, requests, with_proofs=with_proofs), ours.process_id)

        with VllmPeer(folder, dtype, BATCH) as peer:
            for round_ in range(-1, rounds):
                requests = build_requests(case, round_)
                completions, sampler = run_ours(requests, with_proofs=False)
                _, both = run_ours(requests, with_proofs=True)
                # As many tokens of each request as ours had, whose end is its own.
                prompts, limits = [each.prompt for each in requests], [len(each.tokens) for each in completions]
                plain = {mode: peer.run(mode, prompts, limits) for mode in MODES}
                if round_ >= 0:  # the first one warms everything up
                    for side, found in {SAMPLER: sampler, PROOFS: both, **plain}.items():
                        timings[side].add(found)
        reference = HuggingFaceEngine(dtype=dtype, max_batch=BATCH)
        reference.load_policy(folder, 0)
        for round_ in range(-1, rounds):
            requests = build_requests(case, round_)
            _, both = run_ours(requests, with_proofs=True)
            _, slow = _time(partial(generate, reference, requests, with_proofs=True), None)
            if round_ >= 0:
                timings[f"{PROOFS}_beside_hf"].add(both)
                timings[HF].add(slow)
    return timings


def build_claims(case: GenerationWorkload, timings: Timings) -> list[Measurement]:
    """The ratios with what they were divided by, then every side's rate and its median CPU time.

    On a machine that others use, the ratio of CPU times can be repeated: it is the median of those of each round, whose
    runs follow each other.
    """
    rates, claims = {side: each.compute_rate() for side, each in timings.items()}, []
    for name, side, peer in (
        ("with_sampler_over_plain", SAMPLER, PLAIN),
        ("with_proofs_over_plain", PROOFS, PLAIN),
        ("vllm_over_hf", f"{PROOFS}_beside_hf", HF),
    ):
        n, costs = len(timings[side].wall), timings[peer].compute_costs()
        by_cpu = median(b / a for a, b in zip(timings[side].compute_costs(), costs, strict=True))
        rate, cost = f"{peer} {rates[peer]:,.0f} tokens/s", f"{peer} {median(costs):,.0f} us a token"
        claims += [
            Measurement(name=name + case.suffix, value=rates[side] / rates[peer], unit="ratio", n=n, peer=rate),
            Measurement(name=f"{name}_by_cpu{case.suffix}", value=by_cpu, unit="ratio", n=n, peer=cost),
        ]
    for side, timing in timings.items():
        n, shown = len(timing.wall), f"{timing.tokens[0]:,.0f} tokens a run"
        claims += [
            Measurement(name=f"tokens_per_second.{side}{case.suffix}", value=rates[side], unit="1/s", n=n, peer=shown),
            Measurement(
                name=f"cpu_per_token.{side}{case.suffix}", value=median(timing.compute_costs()), unit="us", n=n
            ),
        ]
    return claims


def find_failures(
    claims: Sequence[Measurement], cases: Sequence[GenerationWorkload], rounds: int | None = None
) -> list[str]:
    """Ratios to plain vLLM that fall short, and what was not measured, or in fewer rounds than were ordered."""
    found = {claim.name: claim for claim in claims}
    wrong = find_misses(claims, least=LEAST)
    for case in cases:
        for name in (
            f"{each}{case.suffix}" for each in ("with_sampler_over_plain", "with_proofs_over_plain", "vllm_over_hf")
        ):
            if name not in found:
                wrong.append(f"{name} was not measured")
            elif found[name].n < (rounds or case.rounds):
                wrong.append(f"{name} has an n of {found[name].n} only")
    return wrong


def _time(call: Callable[[], list[Completion]], child: int | None) -> tuple[list[Completion], dict[str, float]]:
    """What a call gave, its wall and CPU seconds in this process and in `child`, and its tokens."""
    wall, cpu = time.perf_counter(), time.process_time() + _read_seconds(child)
    completions = call()
    found = {"wall": time.perf_counter() - wall, "cpu": time.process_time() + _read_seconds(child) - cpu}
    return completions, {**found, "tokens": float(sum(len(each.tokens) for each in completions))}


def _read_seconds(process: int | None) -> float:
    """CPU time of a living process, all its threads, from the kernel's table."""
    if process is None:
        return 0.0
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="runs of each side, of which the fastest counts")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    sizes = [case.vocabulary for case in CASES]
    parser.add_argument("--vocabulary", type=int, choices=sizes, help="measure this one alone")
    options = parser.parse_args(arguments)
    prepare_process(threads=1)
    cases = [case for case in CASES if options.vocabulary in {None, case.vocabulary}]
    try:
        claims = [each for case in cases for each in build_claims(case, measure(case, options.dtype, options.rounds))]
    except OperatorError as error:  # vLLM is not there, or does not run here
        print(error, file=sys.stderr)
        return 1
    return finish("engine", claims, find_failures(claims, cases, options.rounds))
