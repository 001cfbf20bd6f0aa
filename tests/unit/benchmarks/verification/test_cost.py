"""The cost of a validator: ratios from the times of three processes, and the time of a call."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.verification import cost
from benchmarks.verification.cost import RUNS, measure_cost

pytestmark = pytest.mark.unit


def test_measure_cost__three_processes__are_medians_of_their_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {"generate": 2.0, "cheap": 0.2, "turns_alone": 0.4, "turns_together": 0.3}
    runs = [{**shared, "full": full} for full in (0.5, 0.6, 0.8)]
    calls: list[tuple[str, str]] = []

    def call(function: str, folder: str) -> dict[str, float]:
        calls.append((function, folder))
        return runs[len(calls) % 3]

    monkeypatch.setattr(cost.isolated_process, "call", call)
    monkeypatch.setattr(cost, "build_policies", lambda _: Path("small"))
    monkeypatch.setattr(cost, "build_large", lambda: "large")
    values = {each.name: each.value for each in measure_cost()}
    assert values == pytest.approx(
        {
            "cost_full": 0.3,
            "cost_audit_10": 0.1 * 0.3 + 0.9 * 0.1,
            "cost_cheap_checks": 0.1,
            "cost_rows": 0.3 / (4 * 2),  # 16 turns of 16 rows are four times 64 completions
            "turns_together_over_alone": 0.75,
            "cost_full.large": 0.3,
            "cost_audit_10.large": 0.12,
            "cost_cheap_checks.large": 0.1,
            "cost_rows.large": 0.3 / (4 * 2),
            "turns_together_over_alone.large": 0.75,
        }
    )
    function = "benchmarks.verification.cost:measure"
    assert calls == [(function, "small/true")] * 3 + [(function, "large")] * 3


def test_time__some_runs__is_the_least_of_this_process_and_its_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox: Any = SimpleNamespace(cpu_seconds=0.0)
    clock = iter(float(i) for i in range(2 * RUNS))  # each run takes 1 s of this process
    used = iter([3.0, 2.0, 5.0, 4.0, 6.0])
    monkeypatch.setattr(cost.time, "process_time", lambda: next(clock))

    def call() -> None:
        sandbox.cpu_seconds += next(used)

    assert cost._time(call, (sandbox,)) == 1 + 2
