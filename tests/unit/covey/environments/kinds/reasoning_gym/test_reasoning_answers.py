import re
from pathlib import Path

import pytest
import reasoning_gym

from covey.environments.base import refuse_data_sets
from covey.environments.environment import TaskEnvironment
from covey.environments.kinds.reasoning_gym.reasoning_answers import CHARACTERS, is_harmless
from covey.environments.kinds.reasoning_gym.reasoning_gym import ReasoningGymSource

pytestmark = pytest.mark.unit
MODULE = "__import__('covey.environments.environment',fromlist=['a'])"
PATCH = f"setattr({MODULE}.TaskEnvironment,'_compute_cost',lambda *_: -1.0)"
EXPLOITS = (PATCH, f"[{PATCH}]", f"({PATCH})+1", "[0 for TaskEnvironment.grade in [1]]", "x.__class__")


@pytest.mark.parametrize("generator", sorted(CHARACTERS))
def test_grade__answer_that_is_a_program__earns_nothing_and_is_not_run(generator: str) -> None:
    source = ReasoningGymSource({"name": generator}, refuse_data_sets)
    cost = TaskEnvironment._compute_cost
    for answer in EXPLOITS:
        assert not is_harmless(generator, answer)
        assert source.grade({"item": 3}, answer) == 0.0
    assert TaskEnvironment._compute_cost is cost


@pytest.mark.parametrize("generator", sorted(CHARACTERS))
def test_grade__reference_answer__is_harmless_and_right(generator: str) -> None:
    source = ReasoningGymSource({"name": generator}, refuse_data_sets)
    for number in range(5):
        task = source.draw(number)
        assert source.grade(task.verification, source.find_answer(task)) == 1.0


def test_grade__composite__follows_the_rules_of_the_items_generator() -> None:
    config = {"datasets": [{"name": "countdown", "weight": 1}, {"name": "letter_counting", "weight": 1}]}
    source = ReasoningGymSource({"name": "composite", "config": config}, refuse_data_sets)
    tasks = [source.draw(number) for number in range(8)]
    assert {source.grade(task.verification, source.find_answer(task)) for task in tasks} == {1.0}
    assert {source.grade(task.verification, PATCH) for task in tasks} == {0.0}


def test_is_harmless__functions_that_are_not_listed__are_harmful() -> None:
    assert is_harmless("simple_integration", "x**2/2 + exp(3*x)*sin(x) + C")
    for answer in (
        "exec(x)",
        "x.subs(1, 2)",
        "x. subs",
        "lambda x",
        "sympify(x)",
        "x_1",
        "[x]",
        "'x'",
        "x:1",
        "\u212bx",
    ):
        assert not is_harmless("simple_integration", answer)
    assert is_harmless("countdown", "(3 + 4)*2")
    assert not is_harmless("countdown", "x")


def test_characters__every_generator_that_evaluates_an_answer__is_listed() -> None:
    """The package's source is searched, because a new version may evaluate answers in more places."""
    evaluating = set()
    for path in Path(reasoning_gym.__file__).parent.rglob("*.py"):
        text = path.read_text()
        scored = "".join(text.split("def score_answer")[1:])
        if re.search(r"(?<![\w.])(?:eval|exec)\(|parse_expr\(answer", scored):
            evaluating.add(path.stem)
    evaluates_its_own = {"number_sorting", "propositional_logic", "bitwise_arithmetic", "intermediate_integration"}
    assert evaluating - evaluates_its_own == set(CHARACTERS) - evaluates_its_own


def test_grade__puzzle24_with_other_numbers__earns_nothing() -> None:
    source = ReasoningGymSource({"name": "puzzle24"}, refuse_data_sets)
    tasks = [source.draw(number) for number in range(6)]
    assert {source.grade(task.verification, source.find_answer(task)) for task in tasks} == {1.0}
    assert [source.grade(task.verification, "6*4*1*1") for task in tasks].count(1.0) == 0
