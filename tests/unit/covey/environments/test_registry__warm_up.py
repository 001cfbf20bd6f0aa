"""Warm-up of a grading process: it loads what grades need, and changes no grade."""

import pytest

from benchmarks.verification.grading_cases import build_spec, list_cases
from covey.environments.base import EnvironmentSpec, Reply
from covey.environments.kinds.mathematics import mathematics
from covey.environments.kinds.reasoning_gym.reasoning_items import HASHED
from covey.environments.registry import load

pytestmark = pytest.mark.unit

KINDS = ("math", "short_answer", "reasoning_gym")


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up__before_between_or_never__changes_no_grade(kind: str):
    cases = list_cases(kind, 60)
    cold, warm = load(build_spec(kind)), load(build_spec(kind))
    expected = [float(case.is_right) for case in cases]
    assert [cold.grade(case.reply).reward for case in cases] == expected
    warm.warm_up()
    assert [warm.grade(case.reply).reward for case in reversed(cases)] == expected[::-1]
    warm.warm_up()
    assert [warm.grade(case.reply).reward for case in cases] == expected


def test_warm_up__multiple_choice__changes_no_grade():
    environment = load(build_spec("multiple_choice"))
    verification = {"choices": ["red", "blue"], "right": 1}
    replies = [
        Reply(verification=verification, target=None, text=f"<answer>{text}</answer>", finished=True, tokens=9)
        for text in ("A", "B", "blue", "B) red")
    ]
    before = [environment.grade(reply).reward for reply in replies]
    environment.warm_up()
    assert [environment.grade(reply).reward for reply in replies] == before == [0.0, 1.0, 1.0, 0.0]


def test_warm_up__mathematics__grades_the_typical_answers_by_reading_them(monkeypatch: pytest.MonkeyPatch):
    """A pair of equal texts is decided before it is parsed, and would warm up nothing."""
    read: list[str] = []
    monkeypatch.setattr(mathematics, "read_value", read.append)
    mathematics.warm_up()
    assert len(mathematics._TYPICAL) >= 12
    assert len(set(read)) >= 12


@pytest.mark.parametrize("name", sorted(HASHED))
def test_warm_up__generator_that_depends_on_hashes__makes_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    environment = load(EnvironmentSpec(kind="reasoning_gym", options={"name": name}))

    class Untouched:
        def __getitem__(self, item: int):
            raise AssertionError("an item was made")

    monkeypatch.setattr(environment.source, "_dataset", Untouched())
    environment.warm_up()
