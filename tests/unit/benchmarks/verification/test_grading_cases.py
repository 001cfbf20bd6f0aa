"""Cases for graders: that they mix right and wrong, repeat none, and have the labels that environments give."""

import pytest

from benchmarks.verification.grading_cases import build_spec, list_cases
from covey.environments.registry import load

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", ["math", "short_answer", "reasoning_gym", "code"])
def test_list_cases__each_kind__mixes_right_and_wrong_and_repeats_none(kind: str) -> None:
    cases = list_cases(kind, 600)
    assert len(cases) == 600
    assert len({(str(case.reply.verification), case.reply.text) for case in cases}) == 600
    assert 150 < sum(case.is_right for case in cases) < 450
    assert [case.reply for case in list_cases(kind, 600)] == [case.reply for case in cases]


@pytest.mark.parametrize("kind", ["short_answer", "reasoning_gym"])
def test_list_cases__labels__are_what_the_environment_grades(kind: str) -> None:
    environment = load(build_spec(kind))
    cases = list_cases(kind, 400, seed=3)
    assert [case for case in cases if environment.grade(case.reply).reward != float(case.is_right)] == []
