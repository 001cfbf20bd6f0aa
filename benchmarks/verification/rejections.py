"""Counts of the windows and submissions that one validator rejects, by the name of the measurement."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from benchmarks.verification.attacks import VALIDATOR_BATCH, WORKER_BATCH, SimulatedWorker, build_params
from benchmarks.verification.policy_variants import build_policies
from covey.engines.base import Completion, Engine, GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.protocol.params import VerificationParams
from covey.protocol.submission_file.rows import Rollout
from covey.protocol.verdict import Severity
from covey.toploc.proofs import WINDOW
from validator.calibration.calibrate import propose
from validator.checks import CheckTools, check_termination
from validator.checks import SubmissionClaim as Submitted
from validator.distance_limits import Breach, find_breach
from validator.replay import RolloutDistances, measure

Counts = dict[str, list[int]]
"""[hits, n] by the name of the measurement."""
Observer = Callable[[Sequence[RolloutDistances]], None]
"""Called with the distances of each replayed submission."""


class RejectionCounter:
    """One validator under given rules, and counts of what it rejects in the work that it replays."""

    def __init__(self, name: str, worker: SimulatedWorker, validator: Engine, rules: VerificationParams) -> None:
        self.name, self.worker, self.validator, self.rules = name, worker, validator, rules
        self.counts: Counts = defaultdict(lambda: [0, 0])
        self.reasons: dict[str, Counter[str]] = defaultdict(Counter)

    def calibrate(self, requests: Sequence[GenerationRequest], completions: Sequence[Completion]) -> None:
        """Set the thresholds from honest work, which must be used for nothing else."""
        distances = list(self.replay(requests, completions))
        self.rules = self.rules.model_copy(update={"thresholds": propose(distances, false_reject_rate=1e-6)})

    def replay(
        self, requests: Sequence[GenerationRequest], completions: Sequence[Completion]
    ) -> Iterator[list[RolloutDistances]]:
        """Yield the distances of each submission."""
        for rollouts in self.worker.build_submissions(requests, completions):
            yield self.measure(rollouts)

    def measure(self, rollouts: tuple[Rollout, ...]) -> list[RolloutDistances]:
        """Replay the rows of a submission and return their distances."""
        return measure(rollouts, self.validator, self.worker.params)

    def count_honest(
        self,
        requests: Sequence[GenerationRequest],
        completions: Sequence[Completion],
        *,
        prefix: str = "",
        match: str = "",
    ) -> None:
        """Count rejections of honest work, by window and by submission.

        `prefix` begins the names of the measurements.  `match` names the measurement that counts tokens that are the
        seeded argmax of the replay; if it is empty, they are not counted.
        """
        started = time.monotonic()
        for distances in self.replay(requests, completions):
            windows = [window for rollout in distances for window in split(rollout)]
            breach = find_breach(distances, self.rules)
            beyond = sum(find_breach([window], self.rules) is not None for window in windows)
            self.count(f"{prefix}honest_windows", len(windows), len(windows))
            self.count(f"{prefix}honest_submissions", 1, 1)
            self.count(f"{prefix}false_rejects", beyond + (breach is not None), len(windows))
            self.count(f"{prefix}false_slashes", breach is not None and breach.reason.severity is Severity.HARD, 1)
            if breach is not None:
                print(f"{self.name}: honest work was rejected: {breach}", flush=True)
            for rollout in distances if match else ():
                self.count(match, (rollout.margins == 0).sum(), rollout.tokens)
        self._print_progress(f"{prefix}false_rejects", started)

    def count_windows(
        self, name: str, requests: Sequence[GenerationRequest], completions: Sequence[Completion], *, short: str
    ) -> None:
        """Count the windows that are rejected when each is judged as a submission.

        Windows of 32 tokens count under `name`, shorter ones under `short`.
        """
        started = time.monotonic()
        for distances in self.replay(requests, completions):
            for window in (window for rollout in distances for window in split(rollout)):
                self._count_breach(name if window.tokens == WINDOW else short, find_breach([window], self.rules))
        self._print_progress(name, started)

    def count_submissions(
        self,
        name: str,
        requests: Sequence[GenerationRequest],
        completions: Sequence[Completion],
        observer: Observer | None = None,
    ) -> None:
        """Count the submissions that are rejected for their distances or for how they end."""
        started = time.monotonic()
        for rollouts in self.worker.build_submissions(requests, completions):
            if not self.ends_well(rollouts):
                self.count(name, 1, 1)
                self.reasons[name]["FALSE_TERMINATION"] += 1
                continue
            distances = self.measure(rollouts)
            self._count_breach(name, find_breach(distances, self.rules))
            if observer is not None:
                observer(distances)
        self._print_progress(name, started)

    def count(self, name: str, hits: float, n: int) -> None:
        """Add hits and samples to a measurement."""
        self.counts[name][0] += int(hits)
        self.counts[name][1] += n

    def ends_well(self, rollouts: tuple[Rollout, ...]) -> bool:
        """Run the validator's own check of lengths and end tokens."""
        claim = Submitted(
            receipt=None, signature="", record_hash=None, contract="",  # type: ignore[arg-type]
            drawn=(), file=b"", rollouts=list(rollouts),
        )  # fmt: skip
        tools = CheckTools(
            params=self.worker.params, engine=self.validator,
            domain=None, environment=None, decode=None, grade=None,  # type: ignore[arg-type]
        )  # fmt: skip
        return check_termination(claim, tools) is None

    def _count_breach(self, name: str, breach: Breach | None) -> None:
        self.count(name, breach is not None, 1)
        self.reasons[name][breach.reason.name if breach else "MISSED"] += 1

    def _print_progress(self, name: str, started: float) -> None:
        hits, n = self.counts[name]
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.reasons[name].most_common())
        print(f"{self.name}: {name} {hits}/{n} ({reasons}) in {time.monotonic() - started:.0f} s", flush=True)


def build_counter(architecture: str, dtype: str, *, batch: int = WORKER_BATCH) -> RejectionCounter:
    """Build the counter of a validator that runs Hugging Face, as the worker does in batches of `batch`.

    bfloat16 names both engines and the hardware, because its thresholds need calibration.
    """
    pair = {"worker_engine": "hf", "validator_engine": "hf", "hardware": "cpu"} if dtype == "bfloat16" else {}
    params = build_params(dtype, **pair)
    worker = SimulatedWorker(
        folder=build_policies(architecture),
        params=params,
        build_worker=partial(HuggingFaceEngine, dtype=dtype, max_batch=batch),
    )
    validator = HuggingFaceEngine(dtype=dtype, max_batch=VALIDATOR_BATCH)
    validator.load_policy(worker.folder / "true", 0)
    return RejectionCounter(f"{architecture} {dtype}", worker, validator, params.verification)


def split(distances: RolloutDistances, step: int = WINDOW) -> list[RolloutDistances]:
    """Split a rollout's distances into one rollout for each window."""
    return [
        RolloutDistances(
            windows=(window,),
            margins=distances.margins[i * step : (i + 1) * step],
            deviations=distances.deviations[i * step : (i + 1) * step],
            finished=distances.finished and i == len(distances.windows) - 1,
        )
        for i, window in enumerate(distances.windows)
    ]
