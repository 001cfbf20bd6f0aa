"""What the benchmarks of verification share: one validator's counts, the processes that make them, bars for the claims.

A benchmark is one process for each architecture and number format; each writes its counts to a file of its own.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import Measurement, finish
from benchmarks.verification.attacks import SimulatedWorker
from benchmarks.verification.policy_variants import ARCHITECTURES
from covey.engines.base import Completion, Engine, GenerationRequest
from covey.engines.hf.engine import prepare_process
from covey.protocol.params import VerificationParams
from covey.protocol.submission_file.rows import Rollout
from covey.protocol.verdict import Severity
from covey.toploc.proofs import WINDOW
from validator.calibration.calibrate import propose
from validator.checks import Claim as Submitted
from validator.checks import Tools, check_termination
from validator.distance_limits import Breach, find_breach
from validator.replay import RolloutDistances, measure

SHORT = {"float32": "fp32", "bfloat16": "bf16"}
"""Number formats, and what claims call them."""
RATES = ("detection.", "observed.", "curve.", "token_match.")
"""Claims whose value is hits over n; of others it is the hits."""
NEVER = ("false_rejects", "false_slashes")
"""Ends of claims that are lawful at 0 only."""

Counts = dict[str, list[int]]
"""Measurement -> [hits, n]."""
Look = Callable[[Sequence[RolloutDistances]], None]


class RejectionCounter:
    """One validator under some rules: what it finds in the work that it is given, counted by claim."""

    def __init__(self, name: str, worker: SimulatedWorker, validator: Engine, rules: VerificationParams) -> None:
        self.name, self.worker, self.validator, self.rules = name, worker, validator, rules
        self.counts: Counts = defaultdict(lambda: [0, 0])
        self.reasons: dict[str, Counter[str]] = defaultdict(Counter)

    def calibrate(self, requests: Sequence[GenerationRequest], completions: Sequence[Completion]) -> None:
        """Thresholds from honest work that is used for nothing else."""
        found = list(self.measure(requests, completions))
        self.rules = self.rules.model_copy(update={"thresholds": propose(found, false_reject_rate=1e-6)})

    def measure(
        self, requests: Sequence[GenerationRequest], completions: Sequence[Completion]
    ) -> Iterator[list[RolloutDistances]]:
        """Distances of each submission."""
        for rollouts in self.worker.build_submissions(requests, completions):
            yield measure(rollouts, self.validator, self.worker.params)

    def honest(
        self,
        requests: Sequence[GenerationRequest],
        completions: Sequence[Completion],
        *,
        prefix: str = "",
        match: str = "",
    ) -> None:
        """Honest work, a window at a time and a submission at a time.

        `prefix` of the claims' names; `match`: the claim that counts tokens that are the replay's seeded argmax.
        """
        started = time.monotonic()
        for distances in self.measure(requests, completions):
            windows = [w for each in distances for w in split(each)]
            breach = find_breach(distances, self.rules)
            beyond = sum(find_breach([w], self.rules) is not None for w in windows)
            self.count(f"{prefix}honest_windows", len(windows), len(windows))
            self.count(f"{prefix}honest_submissions", 1, 1)
            self.count(f"{prefix}false_rejects", beyond + (breach is not None), len(windows))
            self.count(f"{prefix}false_slashes", breach is not None and breach.reason.severity is Severity.HARD, 1)
            if breach is not None:
                print(f"{self.name}: honest work was rejected: {breach}", flush=True)
            for each in distances if match else ():
                self.count(match, (each.margins == 0).sum(), each.tokens)
        self._say(f"{prefix}false_rejects", started)

    def windows(
        self, claim: str, requests: Sequence[GenerationRequest], completions: Sequence[Completion], *, short: str
    ) -> None:
        """Whether each window of 32 tokens, as a submission of its own, is rejected; shorter ones count as `short`."""
        started = time.monotonic()
        for distances in self.measure(requests, completions):
            for window in (w for each in distances for w in split(each)):
                kind = claim if window.tokens == WINDOW else short
                self._count_breach(kind, find_breach([window], self.rules))
        self._say(claim, started)

    def submissions(
        self,
        claim: str,
        requests: Sequence[GenerationRequest],
        completions: Sequence[Completion],
        look: Look | None = None,
    ) -> None:
        """Whether each submission is rejected, by its replay or by how it ends; `look` sees the replayed ones."""
        started = time.monotonic()
        for rollouts in self.worker.build_submissions(requests, completions):
            if not self._ends_well(rollouts):
                self.count(claim, 1, 1)
                self.reasons[claim]["FALSE_TERMINATION"] += 1
                continue
            distances = measure(rollouts, self.validator, self.worker.params)
            self._count_breach(claim, find_breach(distances, self.rules))
            if look is not None:
                look(distances)
        self._say(claim, started)

    def count(self, claim: str, hits: float, n: int) -> None:
        self.counts[claim][0] += int(hits)
        self.counts[claim][1] += n

    def _ends_well(self, rollouts: tuple[Rollout, ...]) -> bool:
        """The validator's own check of lengths and end tokens."""
        claim = Submitted(receipt=None, signature="", manifest_hash=None, file=b"", rollouts=list(rollouts))  # type: ignore[arg-type]
        tools = Tools(
            params=self.worker.params, engine=self.validator,
            domain=None, environment=None, decode=None, grade=None,  # type: ignore[arg-type]
        )  # fmt: skip
        return check_termination(claim, tools) is None

    def _count_breach(self, claim: str, breach: Breach | None) -> None:
        self.count(claim, breach is not None, 1)
        self.reasons[claim][breach.reason.name if breach else "MISSED"] += 1

    def _say(self, claim: str, started: float) -> None:
        hits, n = self.counts[claim]
        told = ", ".join(f"{reason} {count}" for reason, count in self.reasons[claim].most_common())
        print(f"{self.name}: {claim} {hits}/{n} ({told}) in {time.monotonic() - started:.0f} s", flush=True)


def split(distances: RolloutDistances, step: int = WINDOW) -> list[RolloutDistances]:
    """Each window as if it were a rollout of its own."""
    return [
        RolloutDistances(
            windows=(window,),
            margins=distances.margins[i * step : (i + 1) * step],
            deviations=distances.deviations[i * step : (i + 1) * step],
            finished=distances.finished and i == len(distances.windows) - 1,
        )
        for i, window in enumerate(distances.windows)
    ]


def scale_count(count: int, scale: float) -> int:
    """A share of `count`, at least one."""
    return max(1, round(count * scale))


@dataclass(frozen=True, kw_only=True)
class VerificationBars:
    """What claims must show; honest work rejected and forgeries that pass are never lawful."""

    rates: Mapping[str, tuple[float, int]]
    """By the beginning of a claim's name: the least rate, and the n that it wants in a full run."""
    names: tuple[str, ...] = ()
    """Claims that must be there: one that counted nothing would be missing."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """By name: the n alone."""
    most: Mapping[str, float] = field(default_factory=dict)
    """By name: the largest value."""


def find_failures(claims: Sequence[Measurement], bars: VerificationBars, scale: float) -> list[str]:
    """What falls short: rates, their n in a full run (one miss is no rate in a part of it), honest work rejected,
    forgeries that pass, what a validator costs."""
    is_full, names = scale >= 1, {claim.name for claim in claims}
    wrong = [f"{name} was not measured" for name in (*bars.names, *bars.sizes) if name not in names]
    for claim in claims:
        bar, n = next((each for prefix, each in bars.rates.items() if claim.name.startswith(prefix)), (None, 0))
        misses = round((1 - claim.value) * claim.n)
        if bar is not None and claim.value < bar and (is_full or misses > 1):
            wrong.append(f"{claim.name} is {claim.value:.4f}, below {bar}")
        if is_full and claim.n < bars.sizes.get(claim.name, n):
            wrong.append(f"{claim.name} has an n of {claim.n} only")
        if claim.value and (claim.name.startswith("forgery_passes.") or claim.name.endswith(NEVER)):
            wrong.append(f"{claim.name} is {claim.value:.0f}, not 0")
        if claim.value > bars.most.get(claim.name, float("inf")):
            wrong.append(f"{claim.name} is {claim.value:.3f}, over {bars.most[claim.name]}")
    return wrong


def build_claims(counts: Counts) -> list[Measurement]:
    """Rates with their n; counts of what must not happen as they are."""
    claims = []
    for name, (hits, n) in sorted(counts.items()):
        is_rate = name.startswith(RATES)
        claims.append(
            Measurement(name=name, value=hits / n if is_rate else hits, unit="rate" if is_rate else "count", n=n)
        )
    return claims


def build_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that these benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--scale", type=float, default=1.0, help="Share of every n.")
    parser.add_argument("--dtype", choices=SHORT, help="Run one number format, take the other from the last run.")
    parser.add_argument("--one", choices=ARCHITECTURES, help=argparse.SUPPRESS)
    return parser


def run_one(name: str, options: argparse.Namespace, run: Callable[[str, str, float], Counts]) -> None:
    """In a process of its own: one architecture in one number format; counts go to a file of its own."""
    prepare_process(threads=1)
    counts = run(options.one, options.dtype, options.scale)
    path = get_path(name, options.one, options.dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"scale": options.scale, "counts": counts}))


def run_all(name: str, options: argparse.Namespace) -> bool:
    """Each architecture beside the other, one number format after the other; whether all went well."""
    for dtype in (options.dtype,) if options.dtype else SHORT:
        scale = str(options.scale)
        command = [sys.executable, "-m", "benchmarks", name, "--scale", scale, "--dtype", dtype, "--one"]
        running = [subprocess.Popen([*command, architecture]) for architecture in ARCHITECTURES]
        if any([child.wait() for child in running]):  # noqa: C419  every child is waited for
            return False
    return True


def conclude(
    name: str, scale: float, bars: VerificationBars, measure_more: Callable[[], Sequence[Measurement]] = tuple
) -> int:
    """Sum up what the processes counted, report it, say what falls short; the exit code."""
    counts: Counts = defaultdict(lambda: [0, 0])
    for path in (get_path(name, architecture, dtype) for architecture in ARCHITECTURES for dtype in SHORT):
        if not path.exists():
            print(f"{path} is missing: run make bench NAME={name} before", file=sys.stderr)
            return 1
        found = json.loads(path.read_text())
        if found["scale"] != scale:
            print(f"{path} is of scale {found['scale']}, not {scale}: run that one again", file=sys.stderr)
            return 1
        for claim, (hits, n) in found["counts"].items():
            counts[claim][0] += hits
            counts[claim][1] += n
    claims = [*build_claims(counts), *measure_more()]
    return finish(name, claims, find_failures(claims, bars, scale))


def get_path(name: str, architecture: str, dtype: str) -> Path:
    """Where the counts of one process lie."""
    return Path("build/bench") / f"{name}-{architecture}-{dtype}.json"
