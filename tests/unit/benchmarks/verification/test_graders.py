"""What the benchmark of graders makes of its measurements, and the cases that it grades."""

import pytest

from benchmarks.harness import find_misses
from benchmarks.verification.graders import LEAST, MOST, GradingTimes, build_claims, count_zombies
from benchmarks.verification.grading_cases import build_spec, list_cases
from covey.environments.registry import load

pytestmark = pytest.mark.unit


def build_measured(seconds: float, *, wrong: int = 0, zombies: int = 0) -> GradingTimes:
    latencies = [0.001 * number for number in range(1, 101)]
    return GradingTimes(seconds=seconds, latencies=latencies, cpu_seconds=0.5, wrong=wrong, zombies=zombies)


def test_build_claims__slower_trivial_kind__has_the_bar():
    measured = {
        "reasoning_gym": build_measured(0.25),
        "short_answer": build_measured(0.5, wrong=1),
        "math": build_measured(1.0, zombies=2),
        "code": build_measured(5.0),
    }
    claims = build_claims(measured)
    values = {claim.name: claim.value for claim in claims}
    assert values["trivial_grades_per_s"] == 200.0
    assert values["reasoning_gym_grades_per_s"] == 400.0
    assert values["math_grades_per_s"] == 100.0
    assert values["code_grades_per_s"] == 20.0
    assert values["code_child_cpu_ms"] == 5.0
    assert values["math_p50_ms"] == pytest.approx(50.5)
    assert values["math_p99_ms"] == pytest.approx(99.01)
    assert (values["wrong_grades"], values["zombies"]) == (1, 2)
    assert find_misses(claims, least=LEAST, most=MOST) == [
        "wrong_grades is 1.000, above 0.0",
        "zombies is 2.000, above 0.0",
    ]


def test_count_zombies__process_without_descendants__has_none():
    assert count_zombies(1 << 30) == 0


@pytest.mark.parametrize("kind", ["math", "short_answer", "reasoning_gym", "code"])
def test_list_cases__each_kind__mixes_right_and_wrong_and_repeats_none(kind: str):
    cases = list_cases(kind, 600)
    assert len(cases) == 600
    assert len({(str(case.reply.verification), case.reply.text) for case in cases}) == 600
    assert 200 < sum(case.is_right for case in cases) < 400
    assert [case.reply for case in list_cases(kind, 600)] == [case.reply for case in cases]


@pytest.mark.parametrize("kind", ["short_answer", "reasoning_gym"])
def test_list_cases__labels__are_what_the_environment_grades(kind: str):
    environment = load(build_spec(kind))
    cases = list_cases(kind, 400, seed=3)
    assert [case for case in cases if environment.grade(case.reply).reward != float(case.is_right)] == []
