"""What the benchmark of graders makes of its measurements."""

import os

import pytest

from benchmarks.measurement import find_misses
from benchmarks.verification.graders import GradingTimes, build_measurements, count_zombies

pytestmark = pytest.mark.unit


def make_times(seconds: float, *, cpu_seconds: float = 0.5, wrong: int = 0, zombies: int = 0) -> GradingTimes:
    latencies = [0.001 * number for number in range(1, 101)]
    return GradingTimes(seconds=seconds, latencies=latencies, cpu_seconds=cpu_seconds, wrong=wrong, zombies=zombies)


def test_build_measurements__slower_trivial_kind__has_the_bar() -> None:
    times = {
        "reasoning_gym": make_times(0.25),
        "short_answer": make_times(0.5, cpu_seconds=0, wrong=1),
        "math": make_times(1.0, zombies=2),
        "code": make_times(5.0),
    }
    measurements = build_measurements(times)
    values = {each.name: each.value for each in measurements}
    assert values["trivial_grades_per_s"] == 200.0
    assert values["reasoning_gym_grades_per_s"] == 400.0
    assert values["math_grades_per_s"] == 100.0
    assert values["code_grades_per_s"] == 20.0
    assert values["code_child_cpu_ms"] == 5.0
    assert "trivial_child_cpu_ms" not in values
    assert values["math_p50_ms"] == pytest.approx(50.5)
    assert values["math_p99_ms"] == pytest.approx(99.01)
    assert (values["wrong_grades"], values["zombies"]) == (1, 2)
    assert find_misses(measurements) == ["wrong_grades is 1, above 0", "zombies is 2, above 0"]


def test_count_zombies__process_without_descendants__has_none() -> None:
    assert count_zombies(1 << 30) == 0


def test_count_zombies__descendants_that_nobody_waited_for__are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {"7": "7 (a) b) S 1", "8": "8 (c) Z 7", "9": "9 (d) S 7", "10": "10 (e) Z 9", "11": "11 (f) Z 1"}
    monkeypatch.setattr(os, "listdir", lambda _: [*lines, "self"])
    monkeypatch.setattr("benchmarks.verification.graders.Path", lambda path: FakePath(lines[path.split("/")[2]]))
    assert count_zombies(7) == 2


class FakePath:
    """A file with one line."""

    def __init__(self, line: str) -> None:
        self._line = line

    def read_text(self) -> str:
        return self._line
