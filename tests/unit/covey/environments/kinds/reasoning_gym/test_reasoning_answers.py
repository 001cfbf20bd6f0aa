"""Which answers are right, and that no answer runs as a program."""

import json
import re
from pathlib import Path

import pytest
import reasoning_gym
from hypothesis import given
from hypothesis import strategies as st
from reasoning_gym.factory import DATASETS

from covey.environments.base import refuse_data_sets
from covey.environments.environment import TaskEnvironment
from covey.environments.kinds.reasoning_gym.puzzle_checks import CHECKS, VALUES
from covey.environments.kinds.reasoning_gym.reasoning_answers import (
    ALGEBRA,
    EXACT,
    FORMS,
    MAX_CHARACTERS,
    has_same_content,
    is_right,
    normalise,
)
from covey.environments.kinds.reasoning_gym.reasoning_gym import ReasoningGymSource
from tests.fakes.kept_items import keep_items

pytestmark = pytest.mark.unit
MODULE = "__import__('covey.environments.environment',fromlist=['a'])"
PATCH = f"setattr({MODULE}.TaskEnvironment,'prompt',lambda *_: None)"
EXPLOITS = (PATCH, f"[{PATCH}]", f"({PATCH})+1", "[0 for TaskEnvironment.grade in [1]]", "x.__class__")
EVALUATING = sorted(ALGEBRA | EXACT | {"countdown", "n_queens", "puzzle24"})
"""Generators whose scoring functions evaluate an answer."""


def grade(generator: str, answer: str, own: str | None, *, question: str = "", score=lambda _: 1.0) -> bool:
    """Grade an answer with a scoring function that accepts everything."""
    return is_right(answer, {"answer": own, "question": question, "metadata": {}}, generator=generator, score=score)


def refuse(_answer: str) -> float:
    raise AssertionError("the package scored this answer")


@pytest.mark.parametrize("generator", EVALUATING)
def test_grade__answer_that_is_a_program__earns_nothing_and_is_not_run(generator: str) -> None:
    source = keep_items(ReasoningGymSource({"name": generator}, refuse_data_sets))
    prompt = TaskEnvironment.prompt
    for answer in EXPLOITS:
        assert not grade(generator, answer, answer[::-1], score=refuse) if generator not in CHECKS else True
        assert source.grade({"item": 3}, answer) == 0.0
    assert TaskEnvironment.prompt is prompt


@pytest.mark.parametrize("generator", EVALUATING)
def test_grade__reference_answer__is_right(generator: str) -> None:
    source = keep_items(ReasoningGymSource({"name": generator}, refuse_data_sets))
    for number in range(3):
        task = source.draw(number)
        assert source.grade(task.verification, source.find_answer(task)) == 1.0


def test_grade__composite__follows_the_rules_of_the_items_generator() -> None:
    config = {"datasets": [{"name": "countdown", "weight": 1}, {"name": "letter_counting", "weight": 1}]}
    source = keep_items(ReasoningGymSource({"name": "composite", "config": config}, refuse_data_sets))
    tasks = [source.draw(number) for number in range(8)]
    assert {source.grade(task.verification, source.find_answer(task)) for task in tasks} == {1.0}
    assert {source.grade(task.verification, PATCH) for task in tasks} == {0.0}


def test_grade__composite_in_a_sandbox__follows_the_rules_of_the_items_generator() -> None:
    config = {"datasets": [{"name": "ransom_note", "weight": 1}, {"name": "gsm_symbolic", "weight": 1}]}
    source = keep_items(ReasoningGymSource({"name": "composite", "config": config}, refuse_data_sets))
    tasks = [source.draw(number) for number in range(3)]
    assert {source.grade(task.verification, source.find_answer(task)) for task in tasks} == {1.0}
    assert {source.grade(task.verification, source.find_answer(task) + " or 3") for task in tasks} == {0.0}


@pytest.mark.parametrize(
    "answer",
    [
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
        "x + y",
        "C7",
    ],
)
def test_is_right__algebra_with_other_functions_or_variables__is_not_scored(answer: str) -> None:
    assert not grade("simple_integration", answer, "x**2 + C", score=refuse)
    assert grade("simple_integration", "x**2/2 + exp(3*x)*sin(x) + C", "x**2 + C")


def test_evaluating__every_generator_that_evaluates_an_answer__is_listed() -> None:
    """The package's source is searched, because a new version may evaluate answers in more places."""
    evaluating = set()
    for path in Path(reasoning_gym.__file__).parent.rglob("*.py"):
        text = path.read_text()
        scored = "".join(text.split("def score_answer")[1:])
        if re.search(r"(?<![\w.])(?:eval|exec)\(|parse_expr\(answer", scored):
            evaluating.add(path.stem)
    evaluates_its_own = {"number_sorting", "propositional_logic", "bitwise_arithmetic", "intermediate_integration"}
    assert evaluating - evaluates_its_own == set(EVALUATING) - evaluates_its_own


def test_rules__all_names__are_generators_of_the_package() -> None:
    assert DATASETS.keys() >= {*FORMS, *CHECKS, *VALUES, *ALGEBRA, *EXACT}
    assert not FORMS.keys() & (CHECKS.keys() | ALGEBRA | EXACT)


@pytest.mark.parametrize(
    ("answer", "own", "is_same"),
    [
        ("5", "5", True),
        ("+5.00", "5", True),
        ("05", "5", True),
        ("1,000", "1000", True),
        ("1,000", "1 000", False),
        ("[1, 0]", "[1,0]", True),
        ("[[1, 0]]", "[1,0]", True),  # the package decides on the form
        ("-5", "5", False),
        ("-00:39", "00:39", False),
        ("0:39", "00:39", True),
        ("+70 days", "70 days", False),
        ("--5", "-5", False),
        ("5!", "5", False),
        ("5%", "5", False),
        ("<5", "5", False),
        ("(-)5", "5", False),
        (r"\sqrt 5", "5", False),
        (r"\neg True", "True", False),
        ("!True", "True", False),
        (r"\(\boxed{5}\)", "5", True),
        (r"$\text{True}$.", "True", True),
        ("**5**", "5", True),
        ("5*", "5", False),
        ("3 + 5i", "3 - 5i", False),
        ("5 apples", "5", False),
        ("5, 6", "5", False),
        ("5 5", "5", False),
        ("nan", "5", False),
        ("", "5", False),
        ("Yes", "yes", True),
        ("Eve is an angel, Adam is a devil", "Adam is a devil, and Eve is a angel.", True),
        ("Eve is not an angel, Adam is a devil", "Adam is a devil, and Eve is a angel.", False),
        ("$\\frac{1}{2}$", "1/2", True),
        ("0x3EB2", "0x3eb2", True),
        ("true", "1", False),
        ('""', "", True),
        ("[]", "", False),
        ("?", "", False),
        ("12345678901234567891234", "12345678901234567891235", False),
    ],
)
def test_has_same_content__examples(answer: str, own: str, is_same: bool) -> None:
    assert has_same_content(answer, own) == is_same


@given(numbers=st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=3), min_size=1), extra=st.integers())
def test_has_same_content__another_number__is_noticed(numbers, extra) -> None:
    text = ", ".join(map(str, numbers))
    assert has_same_content(", ".join(map(str, reversed(numbers))), text)
    assert not has_same_content(f"{text}, {extra}", text)


def test_is_right__score_of_the_package__is_needed_and_not_enough() -> None:
    assert grade("gsm_symbolic", "28080.0", "28080")
    assert not grade("gsm_symbolic", "28080.0", "28080", score=lambda _: 0.99)
    assert not grade("gsm_symbolic", "28081", "28080", score=refuse)
    assert not grade("gsm_symbolic", "28080 or 5", "28080", score=refuse)
    assert not grade("unknown", "5", None, score=refuse)


def test_is_right__own_answer__needs_no_score() -> None:
    assert grade("binary_matrix", "\n\n1 0 \n\n 0  1\n", "1 0\n0 1", score=refuse)
    assert not grade("binary_matrix", "1 0 0 1", "1 0\n0 1", score=refuse)
    assert normalise(" a  b\r\n\r\n\tc ") == "a b\nc"


def test_is_right__characters_outside_ascii__must_be_those_of_the_task() -> None:
    assert grade("prime_factorization", "433 \u00d7 2", "2 \u00d7 433")
    assert grade("calendar_arithmetic", "\u0665", "\u0665")
    for digits in ("\u0661", "\uff11", "\u00b9", "1\u200b"):
        assert not grade("calendar_arithmetic", digits, "1", score=refuse)


def test_is_right__long_answer__is_not_read() -> None:
    assert not grade("sokoban", "U" * (MAX_CHARACTERS + 1), None, score=refuse)
    assert not grade("gcd", "5" + " " * (MAX_CHARACTERS + 100), "5", score=refuse)


def test_forms__many_answers__have_labelled_examples() -> None:
    """Generators with more than one right answer have labelled right and wrong answers in the project's data."""
    lines = (Path(__file__).parents[5] / "data/grading/reasoning_gym.jsonl").read_text(encoding="utf-8").splitlines()
    labels = {(case["options"]["name"], case["right"]) for case in map(json.loads, lines)}
    missing = [name for name in {*FORMS, *CHECKS, *VALUES, *ALGEBRA} if {(name, True), (name, False)} - labels]
    assert missing == []
