"""The benchmark of the exact mode: which names it counts, and attacks that Hugging Face writes.

tests/integration/engines/test_exact.py runs a slice of it on vLLM.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.verification import exact
from benchmarks.verification.attacks import OBSERVED_ATTACKS, SUBMISSION, SUBMISSION_ATTACKS, WINDOW_ATTACKS
from benchmarks.verification.exact import BARS, EXACT_ATTACKS, EXACT_NAMES, run_bfloat16, run_float32, write_elsewhere

pytestmark = pytest.mark.unit


@dataclass
class NamedCounter:
    """Counter that keeps the names of what it counts."""

    worker: Any
    names: set[str] = field(default_factory=set)
    calibrated: int = 0

    def calibrate(self, requests: list[int], completions: list[int]) -> None:
        self.calibrated = len(requests)

    def count_honest(self, requests: list[int], completions: list[int], *, prefix: str, match: str = "") -> None:
        self.names |= {f"{prefix}false_rejects", f"{prefix}honest_windows", match}

    def count_windows(self, name: str, requests: list[int], completions: list[int], *, short: str) -> None:
        assert len(requests) == 5 * SUBMISSION
        self.names |= {name, short}

    def count_submissions(self, name: str, requests: list[int], completions: list[int]) -> None:
        self.names.add(name)


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Counters of both validators, for attacks that return the requests."""
    for attacks in (
        WINDOW_ATTACKS, SUBMISSION_ATTACKS, OBSERVED_ATTACKS, exact.EXACT_ATTACKS, exact.EXACT_OBSERVED_ATTACKS,
        exact.RARE_ATTACKS, exact.WHOLE_ATTACKS,
    ):  # fmt: skip
        for name in attacks:
            monkeypatch.setitem(attacks, name, lambda inputs: inputs.requests)  # type: ignore[arg-type]
    worker = SimpleNamespace(
        draw_requests=lambda submissions, seed: [seed] * (submissions * SUBMISSION),
        generate=lambda policy, requests: list(requests),
        read_states=list,
    )
    return NamedCounter(worker), NamedCounter(worker)


def test_both_formats__a_tenth__count_every_name_that_has_a_bar(counters: tuple[Any, Any]) -> None:
    validator, mixed = counters
    run_float32(validator, mixed, 0.1)
    assert mixed.calibrated == 0
    run_bfloat16(validator, mixed, 0.1)
    assert (validator.calibrated, mixed.calibrated) == (0, exact.CALIBRATION * SUBMISSION)
    assert {*BARS.names, *BARS.sizes} <= validator.names | mixed.names


def test_run_bfloat16__attacks_on_the_exact_mode__are_windows_or_submissions(counters: tuple[Any, Any]) -> None:
    validator, mixed = counters
    run_bfloat16(validator, mixed, 0.1)
    assert {f"detection.exact.window.{name}" for name in EXACT_NAMES} <= validator.names
    assert "observed.exact.window.int8_writes_true_proves" in validator.names
    assert "observed.exact.submission.int8_writes_true_proves" in validator.names
    assert "observed.exact.submission.int8" not in validator.names
    assert "observed.mixed.bf16.submission.int8" in mixed.names


def test_names__of_the_exact_mode__are_those_of_its_attacks() -> None:
    assert set(EXACT_NAMES) == set(EXACT_ATTACKS)


def test_write_elsewhere__attack__runs_on_hugging_face_and_the_workers_engine_proves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclass
    class Worker:
        build_worker: Any
        params: Any

    @dataclass
    class Inputs:
        worker: Worker

    monkeypatch.setattr(exact, "HuggingFaceEngine", lambda **options: ("hf", options))
    monkeypatch.setattr(exact, "prove", lambda inputs, written: (inputs.worker.build_worker(), written))

    def attack(inputs: Any) -> list[Any]:
        engine, options = inputs.worker.build_worker()
        assert (engine, options["dtype"]) == ("hf", "bfloat16")
        return [SimpleNamespace(tokens=(5, 1))]

    params = SimpleNamespace(model=SimpleNamespace(compute_dtype="bfloat16"))
    inputs: Any = Inputs(Worker(build_worker=lambda: "vllm", params=params))
    assert write_elsewhere(attack)(inputs) == ("vllm", [(5, 1)])
