"""Rows and a reward function of Python as an environment."""

import pytest

from covey.environments.base import Reply
from covey.environments.python_rewards import PythonEnvironment
from covey.errors import OperatorError

pytestmark = pytest.mark.unit
ROWS = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(20)]


def reward(completion: str, row) -> float:
    return float(completion == row["answer"])


def reply_to(prompt, text: str) -> Reply:
    return prompt.build_reply(text, finished=True, tokens=3)


def test_prompts__rows__every_eighth_is_held_out_and_never_drawn():
    environment = PythonEnvironment(ROWS, reward)
    held_out = [prompt.text for prompt in environment.held_out(99)]
    drawn = {environment.prompt(number).text for number in range(400)}
    assert held_out == ["What is 7 + 1?", "What is 15 + 1?"]
    assert drawn == {row["prompt"] for row in ROWS} - set(held_out)
    assert environment.held_out(1)[0].text == held_out[0]


def test_prompts__two_rows__the_last_one_is_held_out():
    environment = PythonEnvironment(ROWS[:2], reward)
    assert [prompt.text for prompt in environment.held_out(9)] == ["What is 1 + 1?"]
    assert {environment.prompt(number).text for number in range(20)} == {"What is 0 + 1?"}


def test_grade__function__sees_the_whole_text_and_the_row():
    seen = []
    environment = PythonEnvironment(ROWS, lambda text, row: seen.append((text, row["answer"])) or 0.25)
    prompt = environment.held_out(1)[0]
    grade = environment.grade(reply_to(prompt, "<think>8</think> 8 "))
    assert (grade.reward, grade.parts) == (0.25, {"task": 0.25})
    assert seen == [("<think>8</think> 8 ", "8")]
    assert environment.has_answer(reply_to(prompt, "x"))
    assert not environment.has_answer(reply_to(prompt, " \n"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1"])
def test_grade__no_finite_number__is_refused(value):
    environment = PythonEnvironment(ROWS, lambda _text, _row: value)
    with pytest.raises(OperatorError, match="bad_reward: the reward function returned"):
        environment.grade(reply_to(environment.held_out(1)[0], "x"))


def test_grade__function_raises__its_own_error_is_kept():
    environment = PythonEnvironment(ROWS, lambda _text, row: row["nothing"])
    with pytest.raises(KeyError, match="nothing"):
        environment.grade(reply_to(environment.held_out(1)[0], "x"))


@pytest.mark.parametrize(
    "rows", [[], [ROWS[0]], [ROWS[0], {"question": "x"}], [ROWS[0], {"prompt": " "}], [ROWS[0], 3]]
)
def test_rows__wrong__are_refused(rows):
    with pytest.raises(OperatorError, match="bad_rows"):
        PythonEnvironment(rows, reward)
