"""The second score of an evaluation."""

import pytest

from covey.environments.base import EnvironmentSpec, Grade, Reply
from covey.errors import OperatorError
from covey.standalone.lenient_score import TwoScores, load_lenient

pytestmark = pytest.mark.unit
MATH = EnvironmentSpec(kind="math", options={"dataset": "0x" + "ab" * 32, "instruction": "Use a box."})


def reply(text: str) -> Reply:
    return Reply(verification={"ground_truth": ["7"]}, target=None, text=text, finished=True, tokens=3)


def test_load_lenient__final_number__finds_an_answer_without_its_box():
    spec, environment = load_lenient(MATH, "final_number")
    texts = ["It is 7.", r"It is \boxed{7}", "It is 8.", "None."]
    assert [environment.grade(reply(text)).reward for text in texts] == [1.0, 1.0, 0.0, 0.0]
    assert spec.options["instruction"] == "Use a box."


@pytest.mark.parametrize(
    ("spec", "extraction", "code"),
    [
        (MATH, "first_number", "bad_environment"),
        (EnvironmentSpec(kind="mixture", options={"parts": []}), "final_number", "bad_settings"),
        (EnvironmentSpec(kind="python", options={}), "final_number", "bad_settings"),
    ],
)
def test_load_lenient__what_has_no_second_extraction__is_refused(spec, extraction, code):
    with pytest.raises(OperatorError, match=code):
        load_lenient(spec, extraction)


def test_two_scores__replies__returns_strict_grades_and_keeps_the_lenient_mean():
    def grade(rewards: dict[str, float]):
        return lambda replies: [Grade(reward=rewards[each.text], parts={}) for each in replies]

    scores = TwoScores(grade({"a": 0.0, "b": 1.0}), grade({"a": 0.5, "b": 1.0}))
    assert [each.reward for each in scores([reply("a"), reply("b")])] == [0.0, 1.0]
    assert scores.mean == 0.75
