"""Constants and tricks earn nothing where they are not the answer: every generator of reasoning-gym and our kinds.

By default each generator is tried with one item. COVEY_FULL=1 (make nightly) tries several, and the slow generators
with all tricks. test_registry__exploits and test_hostile_answers try kinds that run a model's code.
"""

import json
import re
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from reasoning_gym.factory import DATASETS

from covey.environments.base import EnvironmentSpec, Reply, Task, refuse_data_sets
from covey.environments.environment import SharedOptions, TaskEnvironment
from covey.environments.kinds.reasoning_gym import reasoning_items
from covey.environments.kinds.reasoning_gym.reasoning_answers import ALGEBRA
from covey.environments.kinds.reasoning_gym.reasoning_gym import ReasoningGymSource
from covey.environments.kinds.reasoning_gym.reasoning_items import COMPOSITE, REFUSED
from covey.environments.registry import load
from tests.conftest import IS_FULL
from tests.fakes.grading_tricks import CONSTANTS, list_tricks
from tests.fakes.kept_items import keep_items

pytestmark = [
    pytest.mark.unit,
    # Data packages of reasoning-gym leave files open.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

GENERATORS = sorted(DATASETS.keys() - REFUSED.keys() - {COMPOSITE})
ITEMS = 5 if IS_FULL else 1
HUGE = re.compile(r"e[+-]?[0-9]{4}")
SLOW = {"intermediate_integration": 9, "simple_integration": 3}
"""Generators whose scoring functions are slow. By default, one of every N of their tricks is tried."""
LABELS = [
    json.loads(line)
    for line in (Path(__file__).parents[3] / "data/grading/reasoning_gym.jsonl").read_text("utf-8").splitlines()
]
THINKING = "<think>\nLet me see: 1, 2, 3.\n</think>\n\n{}\n"
ROWS = {
    "math": ({"ground_truth": ["42"]}, "42", "41"),
    "short_answer": ({"answers": ["Lake Chad"]}, "Lake Chad", "Lake Malawi"),
    "multiple_choice": ({"choices": ["red pine", "blue fir", "yew"], "right": 1}, "blue fir", "red pine"),
}
"""Verification data, the right answer and a wrong one, by kind whose answers are texts."""


@cache
def open_source(name: str) -> ReasoningGymSource:
    """Open a generator in this process, where its questions may differ from those of a pool but its grades do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reasoning_items, "is_inside", lambda: True)
        source = ReasoningGymSource({"name": name}, refuse_data_sets)
    return keep_items(source)


def list_answered(source: ReasoningGymSource, name: str) -> list[tuple[Task, str]]:
    """List tasks with a right answer: the item's own, or a labelled one for a generator that has none."""
    drawn = [source.draw(number) for number in range(ITEMS)]
    if source.find_answer(drawn[0]) != "None":
        return [(task, source.find_answer(task)) for task in drawn]
    right = {case["item"]: case["answer"] for case in LABELS if case["options"] == {"name": name} and case["right"]}
    return [(source._build_task(item), answer) for item, answer in right.items()][:ITEMS]


def find_other(source: ReasoningGymSource, task: Task, right: str) -> str:
    """Return a wrong answer: that of another task if there is one."""
    answers = [source.find_answer(source.draw(number)) for number in range(100, 104)]
    return next((each for each in answers if each != "None" and not source.grade(task.verification, each)), "No")


def is_equal(text: str, right: str) -> bool:
    """Return whether a trick is the right answer: letter for letter, or the same number to Python.

    The rules under test are not used, because they would excuse their own mistakes.
    """
    text, right = ("".join(each.split()).strip("\"'\u00b0").casefold() for each in (text, right))
    if text == right:
        return True
    if HUGE.search(text):  # Python would compute all digits of such a number.
        return False
    try:
        return Fraction(text) == Fraction(right)
    except (ValueError, ZeroDivisionError):
        return False


@pytest.mark.parametrize("name", GENERATORS)
def test_reward__reasoning_gym__tricks_earn_nothing(name: str) -> None:
    source = open_source(name)
    paid = []
    for task, right in list_answered(source, name):
        tricks = list_tricks(task.question, right, find_other(source, task, right))
        if name in ("intermediate_integration", "simple_integration"):
            tricks.pop("a digit before the answer")  # another constant of integration
        if name in ALGEBRA | {"countdown", "puzzle24"}:
            tricks.pop("'--' before the answer")  # an expression of the same value
        step = 1 if IS_FULL else SLOW.get(name, 1)
        paid += [
            (task.verification["item"], trick, text[:200])
            for trick, text in [*tricks.items()][::step]
            if not is_equal(text, right) and source.grade(task.verification, text) != 0
        ]
        assert len(tricks) >= 100
    assert paid == []


@pytest.mark.parametrize("name", GENERATORS)
def test_reward__reasoning_gym__right_answer_of_a_thinking_model_is_one(name: str) -> None:
    source = open_source(name)
    environment = TaskEnvironment(source, SharedOptions())
    answered = [(task, right) for task, right in list_answered(source, name) if right]
    assert answered or name == "polynomial_equations"
    for task, right in answered:
        for text in (right, f"\n\n{right}\n", THINKING.format(right), f"\n</think>\n\n\n{right}  \n\n"):
            reply = environment.build_prompt(task).build_reply(text, finished=True, tokens=9)
            assert environment.grade(reply).reward == 1.0, (name, text)


@pytest.mark.parametrize("kind", ROWS)
def test_reward__our_kinds__tricks_earn_nothing(kind: str) -> None:
    verification, right, other = ROWS[kind]
    source = load(EnvironmentSpec(kind=kind, options={"dataset": "0x" + "00" * 32})).source
    options = tuple(verification.get("choices", ()))
    tricks = list_tricks("Which one is it?\nA. red pine\nB. blue fir\nC. yew", right, other, options)
    if kind == "math":  # In LaTeX a tilde is a space. Two signs cancel, and a percent sign is a unit.
        for symbol in ("'~' before", "'--' before", "'%' after"):
            tricks.pop(f"{symbol} the answer")
    assert source.grade(verification, right) == 1.0
    assert source.grade(verification, other) == 0.0
    paid = [trick for trick, text in tricks.items() if source.grade(verification, text) != 0]
    assert paid == []


@pytest.mark.parametrize("kind", [*ROWS, "code"])
def test_reward__our_kinds__tricks_as_whole_replies_earn_nothing(kind: str) -> None:
    verification, right, other = ROWS.get(kind, ({"inputs": ["2"], "outputs": ["4"]}, "print(4)", "print(5)"))
    environment = load(EnvironmentSpec(kind=kind, options={"dataset": "0x" + "00" * 32}))
    texts = list_tricks("Which one is it?", right, other).values()
    replies = [Reply(verification=verification, target=None, text=text, finished=True, tokens=9) for text in texts]
    assert [reply.text[:99] for reply in replies if environment.grade(reply).reward != 0] == []


def test_constants__are_many() -> None:
    assert len(set(CONSTANTS)) == len(CONSTANTS) >= 60
