"""What verification finds, what it wrongly rejects, and what it costs: `make bench NAME=verification`.

Each architecture runs in a process of its own; ARGS="--scale 0.1" takes a tenth of every n, without the cost and what
has no bar.  Exit 1 if a rate with a bar is below it, honest work was rejected or a forgery passed.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.cheating import (
    SUBMISSION,
    SUBMISSION_CHEATS,
    VALIDATOR_BATCH,
    WINDOW_CHEATS,
    WITHOUT_A_BAR,
    Cheat,
    Job,
    World,
)
from benchmarks.cost import measure_cost
from benchmarks.harness import Claim, report
from benchmarks.policies import ARCHITECTURES
from covey.engines.base import Completion, Request
from covey.engines.hf import set_threads
from covey.protocol.params import VerificationParams
from covey.protocol.rollout import Rollout
from covey.protocol.verdict import Severity
from covey.toploc.proofs import WINDOW, Bits, build_many, compare
from covey.toploc.thresholds import is_within
from validator.calibration import count_passes, propose
from validator.checks import Claim as Submitted
from validator.checks import Tools, check_termination
from validator.limits import Breach, find_breach
from validator.replay import RolloutDistances, measure

SUBMISSIONS = 150
"""Of each architecture, number format and cheat; 300 in all."""
WINDOW_SUBMISSIONS = 48
"""Of each architecture: over 1,500 windows of 32 tokens, 3,000 in all."""
CALIBRATION = 40
CURVE = {32: 1, 128: 4, 512: 16}
"""Tokens checked: windows."""
CURVE_CHEATS = ("int8", "int4", "stale_lr1e-5")
BF16_CHEATS = tuple(name for name in WINDOW_CHEATS if name not in WITHOUT_A_BAR)
BARS = {
    "detection.fp32.window": (0.999, 3000),
    "detection.fp32.submission": (0.99, 300),
    "detection.bf16.submission": (0.99, 300),
}
"""By the beginning of a claim's name: the least rate, and the n that it wants in a full run."""
MOST = {"cost_full": 0.3, "cost_audit_10": 0.04}
HONEST_WINDOWS = 30_000

DTYPES = ("float32", "bfloat16")

Counts = dict[str, list[int]]
"""Claim -> [hits, n]."""


class Lab:
    """One architecture and number format: honest work, thresholds, and what each cheat earns."""

    def __init__(self, architecture: str, dtype: str, scale: float) -> None:
        self.world = World.build(architecture, dtype)
        self.short = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
        self.name, self.scale = f"{architecture} {self.short}", scale
        self.validator = self.world.load("true", VALIDATOR_BATCH)
        self.rules: VerificationParams = self.world.params.verification
        self.counts: Counts = defaultdict(lambda: [0, 0])
        self.reasons: dict[str, Counter[str]] = defaultdict(Counter)

    def run(self) -> None:
        if self.short == "bf16":
            self.calibrate()
        requests = self.world.draw_requests(self._scaled(SUBMISSIONS), seed=1)
        honest, states = self.world.generate("true", requests), self.world.read_states(requests)
        self.honest(requests, honest)
        job = Job(world=self.world, requests=requests, honest=honest, states=states, rng=random.Random(2))
        cheats = dict(SUBMISSION_CHEATS)
        if self.short == "fp32":
            few = self._scaled(WINDOW_SUBMISSIONS) * SUBMISSION
            part = job.take(few, seed=3)
            for name, cheat in WINDOW_CHEATS.items():
                self.windows(name, part, cheat)
        else:
            cheats |= {name: WINDOW_CHEATS[name] for name in BF16_CHEATS}
        for name, cheat in cheats.items():
            self.submissions(f"detection.{self.short}.submission", name, job, cheat)
        if self.short == "bf16" and self.scale >= 1:
            few = self._scaled(SUBMISSIONS // 3) * SUBMISSION
            part = job.take(few, seed=4)
            for name, cheat in WITHOUT_A_BAR.items():
                self.submissions("observed.bf16.submission", name, part, cheat)
        self.forgeries(requests, states)

    def calibrate(self) -> None:
        """Thresholds from honest work that is used for nothing else."""
        requests = self.world.draw_requests(CALIBRATION, seed=99)
        completions = self.world.generate("true", requests)
        found = list(self.measure(requests, completions))
        self.rules = self.rules.model_copy(update={"thresholds": propose(found, false_reject_rate=1e-6)})

    def measure(
        self, requests: Sequence[Request], completions: Sequence[Completion]
    ) -> Iterable[list[RolloutDistances]]:
        """Distances of each submission."""
        for rollouts in self.world.build_submissions(requests, completions):
            yield measure(rollouts, self.validator, self.world.params)

    def honest(self, requests: Sequence[Request], completions: Sequence[Completion]) -> None:
        """Honest work, a window at a time and a submission at a time."""
        for distances in self.measure(requests, completions):
            windows = [w for each in distances for w in split(each)]
            breach = find_breach(distances, self.rules)
            beyond = sum(find_breach([w], self.rules) is not None for w in windows)
            self._count("honest_windows", len(windows), len(windows))
            self._count("honest_submissions", 1, 1)
            self._count("false_rejects", beyond + (breach is not None), len(windows))
            self._count("false_slashes", breach is not None and breach.reason.severity is Severity.HARD, 1)

    def windows(self, name: str, job: Job, cheat: Cheat) -> None:
        """Whether each window of 32 tokens, as a submission of its own, is rejected; short last ones count apart."""
        started, claim = time.monotonic(), f"detection.fp32.window.{name}"
        for distances in self.measure(job.requests, cheat(job)):
            for window in (w for each in distances for w in split(each)):
                kind = claim if window.tokens == WINDOW else f"observed.fp32.short_window.{name}"
                self._count_breach(kind, find_breach([window], self.rules))
        self._say(claim, started)

    def submissions(self, kind: str, name: str, job: Job, cheat: Cheat) -> None:
        """Whether each submission is rejected, by its replay or by how it ends."""
        started, claim = time.monotonic(), f"{kind}.{name}"
        made = cheat(job)
        for rollouts in self.world.build_submissions(job.requests, made):
            if not self._ends_well(rollouts):
                self._count(claim, 1, 1)
                self.reasons[claim]["FALSE_TERMINATION"] += 1
                continue
            distances = measure(rollouts, self.validator, self.world.params)
            self._count_breach(claim, find_breach(distances, self.rules))
            if self.short == "bf16" and name in CURVE_CHEATS:
                self._count_curve(name, distances)
        self._say(claim, started)

    def _count_curve(self, name: str, distances: Sequence[RolloutDistances]) -> None:
        windows = [w for each in distances for w in split(each)]
        for tokens, size in CURVE.items():
            for start in range(0, len(windows) - size + 1, size):
                hit = find_breach(windows[start : start + size], self.rules) is not None
                self._count(f"curve.bf16.{tokens}.{name}", hit, 1)

    def forgeries(self, requests: Sequence[Request], states: Sequence[Bits]) -> None:
        """Proofs without a forward pass of this policy, on honest windows."""
        limits, step = self.rules.thresholds, self.world.params.verification.proof_window
        few = self._scaled(WINDOW_SUBMISSIONS) * SUBMISSION
        windows = [each[start : start + step] for each in states[:few] for start in range(0, len(each), step)]
        for name, passed in count_passes(windows, limits, np.random.default_rng(5)).items():
            self._count(f"forgery_passes.{name}", sum(passed), len(passed))
        earlier = self.world.generate("stale_lr1e-3", requests[:few])
        for proofs, true in zip(build_many([each.tops for each in earlier]), states, strict=False):
            for i, proof in enumerate(proofs):
                bits = true[i * step : (i + 1) * step]
                if len(proof) == 2 + 2 * min(128, bits.size):
                    self._count("forgery_passes.previous_policy", is_within(limits, compare(proof, bits)), 1)

    def _ends_well(self, rollouts: tuple[Rollout, ...]) -> bool:
        """The validator's own check of lengths and end tokens."""
        claim = Submitted(receipt=None, signature="", manifest_hash=None, file=b"", rollouts=list(rollouts))  # type: ignore[arg-type]
        tools = Tools(
            params=self.world.params, engine=self.validator,
            domain=None, environment=None, spec=None, decode=None, grade=None,  # type: ignore[arg-type]
        )  # fmt: skip
        return check_termination(claim, tools) is None

    def _count(self, claim: str, hits: float, n: int) -> None:
        self.counts[claim][0] += int(hits)
        self.counts[claim][1] += n

    def _count_breach(self, claim: str, breach: Breach | None) -> None:
        self._count(claim, breach is not None, 1)
        self.reasons[claim][breach.reason.name if breach else "MISSED"] += 1

    def _scaled(self, count: int) -> int:
        return max(1, round(count * self.scale))

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


def run_one(architecture: str, dtype: str, scale: float) -> None:
    """One architecture in one number format; counts go to a file of its own."""
    lab = Lab(architecture, dtype, scale)
    lab.run()
    get_path(architecture, dtype).write_text(json.dumps({"scale": scale, "counts": lab.counts}))


def get_path(architecture: str, dtype: str) -> Path:
    """Where the counts of one run lie."""
    return Path("build/bench") / f"verification-{architecture}-{dtype}.json"


def run_all(scale: float, dtypes: Sequence[str]) -> bool:
    """Each architecture beside the other, one number format after the other; whether all went well."""
    for dtype in dtypes:
        command = [sys.executable, "-m", "benchmarks.verification", "--scale", str(scale), "--dtype", dtype, "--one"]
        running = [subprocess.Popen([*command, name]) for name in ARCHITECTURES]
        if any([child.wait() for child in running]):  # noqa: C419  every child is waited for
            return False
    return True


def build_claims(counts: Counts) -> list[Claim]:
    """Rates with their n; counts of what must not happen as they are."""
    claims = []
    for name, (hits, n) in sorted(counts.items()):
        is_rate = name.startswith(("detection.", "observed.", "curve."))
        value = hits / n if is_rate else hits
        claims.append(Claim(name=name, value=value, unit="rate" if is_rate else "count", n=n))
    return claims


def find_failures(claims: Sequence[Claim], scale: float) -> list[str]:
    """What falls short: rates, their n in a full run (one miss is no rate in a part of it), honest work rejected,
    forgeries that pass, what a validator costs."""
    wrong, is_full = [], scale >= 1
    for claim in claims:
        bar, n = next((each for prefix, each in BARS.items() if claim.name.startswith(prefix + ".")), (None, 0))
        misses = round((1 - claim.value) * claim.n)
        if bar is not None and claim.value < bar and (is_full or misses > 1):
            wrong.append(f"{claim.name} is {claim.value:.4f}, below {bar}")
        if is_full and claim.n < (HONEST_WINDOWS if claim.name == "honest_windows" else n):
            wrong.append(f"{claim.name} has an n of {claim.n} only")
        if claim.name.startswith(("false_", "forgery_passes.")) and claim.value:
            wrong.append(f"{claim.name} is {claim.value:.0f}, not 0")
        if claim.value > MOST.get(claim.name, float("inf")):
            wrong.append(f"{claim.name} is {claim.value:.3f}, over {MOST[claim.name]}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="Share of every n.")
    parser.add_argument("--dtype", choices=DTYPES, help="Run one number format, take the other from the last run.")
    parser.add_argument("--cost", action="store_true", help="Measure the cost alone, take the rates of the last run.")
    parser.add_argument("--one", choices=ARCHITECTURES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    set_threads(1)
    Path("build/bench").mkdir(parents=True, exist_ok=True)
    if options.one:
        run_one(options.one, options.dtype, options.scale)
        return 0
    dtypes = (options.dtype,) if options.dtype else DTYPES
    if not options.cost and not run_all(options.scale, dtypes):
        return 1
    counts: Counts = defaultdict(lambda: [0, 0])
    for path in (get_path(name, dtype) for name in ARCHITECTURES for dtype in DTYPES):
        found = json.loads(path.read_text())
        if found["scale"] != options.scale:
            print(f"{path} is of scale {found['scale']}, not {options.scale}: run that one again", file=sys.stderr)
            return 1
        for claim, (hits, n) in found["counts"].items():
            counts[claim][0] += hits
            counts[claim][1] += n
    claims = build_claims(counts) + (measure_cost() if options.scale >= 1 else [])
    report("verification", claims)
    failures = find_failures(claims, options.scale)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
