"""The benchmark of detection: which names it counts, the curve of tokens, and forgeries.

`make rates` runs the benchmark itself at a tenth of its size every night.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.verification import detection, schemes
from benchmarks.verification.attacks import OBSERVED_ATTACKS, SUBMISSION, SUBMISSION_ATTACKS, WINDOW_ATTACKS
from benchmarks.verification.detection import BARS, SUBMISSION_NAMES, WINDOW_NAMES, count_curve, count_forgeries, run
from covey.engines.base import Completion
from covey.protocol.params import VerificationParams
from covey.toploc.proofs import Distances, find_tops
from covey.toploc.topk import Capture
from validator.replay import RolloutDistances

pytestmark = pytest.mark.unit


class RecordingCounter:
    """Counter that keeps the names and sizes of what it is given."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}
        self.rules = VerificationParams()
        self.worker: Any = SimpleNamespace(
            draw_requests=lambda submissions, seed: [seed] * (submissions * SUBMISSION),
            generate=lambda policy, requests: list(requests),
            read_states=list,
        )
        self.calibrated = 0

    def calibrate(self, requests: list[int], completions: list[int]) -> None:
        self.calibrated = len(requests)

    def count_honest(self, requests: list[int], completions: list[int]) -> None:
        self.counts["honest"] = [len(requests), len(completions)]

    def count_windows(self, name: str, requests: list[int], completions: list[int], *, short: str) -> None:
        self.counts[name] = self.counts[short] = [len(requests), len(completions)]

    def count_submissions(self, name: str, requests: list[int], completions: list[int], observer: Any = None) -> None:
        self.counts[name] = [len(requests), observer is not None]

    def count(self, name: str, hits: float, n: int) -> None:
        before = self.counts.setdefault(name, [0, 0])
        self.counts[name] = [before[0] + int(hits), before[1] + n]


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> RecordingCounter:
    """The counter of a benchmark whose attacks return the requests."""
    counter = RecordingCounter()
    monkeypatch.setattr(detection, "build_counter", lambda *_: counter)
    monkeypatch.setattr(detection, "count_forgeries", lambda _, requests, __: counter.count("forged", 0, len(requests)))
    table = {"table.fp32.some.whole": [1, 2]}
    monkeypatch.setattr(detection.schemes, "run_table", lambda *_: table)
    for attacks in (WINDOW_ATTACKS, SUBMISSION_ATTACKS, OBSERVED_ATTACKS):
        for name in attacks:
            monkeypatch.setitem(attacks, name, lambda inputs: inputs.requests)  # type: ignore[arg-type]
    return counter


def test_names__that_must_be_present__are_those_of_all_attacks() -> None:
    assert {*WINDOW_NAMES, "stale_lr1e-6", "swapped_token"} == set(WINDOW_ATTACKS)
    assert set(SUBMISSION_NAMES) == set(SUBMISSION_ATTACKS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_run__full__counts_every_name_that_has_a_bar(counter: RecordingCounter, dtype: str) -> None:
    counts = run("qwen2", dtype, 1.0)
    short = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
    own = {*BARS.names} - {*schemes.BARS.names}
    assert {name for name in own if f".{short}." in name} <= counts.keys()
    assert counts["table.fp32.some.whole"] == [1, 2]
    assert counts["honest"] == [150 * SUBMISSION] * 2
    assert counts["forged"] == [0, 48 * SUBMISSION]
    assert counts[f"observed.{short}.submission.false_eos_best_place"][0] == 50 * SUBMISSION
    assert counter.calibrated == (40 * SUBMISSION if short == "bf16" else 0)
    if short == "bf16":
        assert counts["detection.bf16.submission.int4"] == [150 * SUBMISSION, True]  # with a curve
        assert counts["detection.bf16.submission.truncated"] == [150 * SUBMISSION, False]
    else:
        assert counts["observed.fp32.short_window.int8"] == [48 * SUBMISSION] * 2


def test_run__a_tenth__leaves_out_what_is_only_observed(counter: RecordingCounter) -> None:
    counts = run("llama", "bfloat16", 0.1)
    assert not any(name.startswith("observed.") for name in counts)
    assert counts["honest"] == [15 * SUBMISSION] * 2


def test_count_curve__one_bad_window_of_eight__rejects_the_runs_that_hold_it() -> None:
    windows = tuple(
        Distances(sign_exponent_mismatches=128 * (i == 5), mantissa_mean=0.0, mantissa_median=0.0, mantissa_rest=0.0)
        for i in range(8)
    )
    rollout = RolloutDistances(
        windows=windows, margins=np.zeros(256, np.float32), deviations=np.zeros(256), finished=False
    )
    counter: Any = RecordingCounter()
    count_curve(counter, "int8", [rollout])
    assert counter.counts == {"curve.bf16.32.int8": [1, 8], "curve.bf16.128.int8": [1, 2]}


def test_count_forgeries__proofs_of_the_same_states__pass_as_those_of_a_previous_policy() -> None:
    rng = np.random.default_rng(0)
    states = [rng.standard_normal((40, 64), np.float32).view(np.uint32).astype(np.uint32) for _ in range(2)]
    bits = [(each >> 16).astype(np.uint16) for each in states]
    counter: Any = RecordingCounter()
    tops = find_tops(bits, Capture(window=32, top_k=128))
    counter.worker.generate = lambda policy, requests: [
        Completion(policy_version=0, tokens=(5,) * 40, logprobs=(0.0,) * 40, tops=each, finished=False)
        for each in (tops if policy == "stale_lr1e-3" else [])
    ]
    count_forgeries(counter, [], bits)
    assert counter.counts.pop("forgery_passes.previous_policy") == [4, 4]
    assert set(counter.counts) == {f"forgery_passes.{name}" for name in ("constant", "profile", "shuffled", "channels")}
    assert all(n == 4 for _, n in counter.counts.values())
