"""Tasks that follow from integers, two splits that share nothing, and grades that are exact."""

import decimal
import zlib

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.environments.base import Task, refuse_data_sets
from covey.environments.kinds.reasoning_gym.reasoning_gym import FEW_ITEMS, ITEMS, ReasoningGymSource
from covey.errors import OperatorError

pytestmark = pytest.mark.unit

SPELL = {"name": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 5}}
QUESTION = "Spell this word backward (example: sun -> nus): "
RECORDED = [(216680, "gonia"), (2489099, "Elia"), (7857271, "kilah"), (2513392, "totum")]


def build(options) -> ReasoningGymSource:
    return ReasoningGymSource(options, refuse_data_sets)


SPELLING = build(SPELL)


def is_held_out(text: str) -> bool:
    return zlib.crc32(text.encode()) % 8 == 0


def answer(task: Task) -> str:
    return task.question.removeprefix(QUESTION)[::-1]


def test_draw__known_draws__never_change() -> None:
    # Recorded values. Another task for one of these draws would be another protocol.
    tasks = map(SPELLING.draw, (0, 1, 2**63, 2**256 - 1))
    assert [(task.verification["item"], task.question.removeprefix(QUESTION)) for task in tasks] == RECORDED


@settings(max_examples=60, deadline=None)
@given(st.integers(min_value=0, max_value=2**256 - 1))
def test_draw__any_number__is_a_training_question_and_repeats(number: int) -> None:
    task = SPELLING.draw(number)
    assert task == SPELLING.draw(number)
    assert not is_held_out(task.question)
    assert 0 <= task.verification["item"] < ITEMS
    assert 3 <= len(answer(task)) <= 5


def test_draw__neighbours__are_unrelated() -> None:
    items = [SPELLING.draw(number).verification["item"] for number in range(300)]
    assert len(set(items)) == 300
    assert 0.4 * ITEMS < sum(items) / 300 < 0.6 * ITEMS


@pytest.mark.parametrize("name", ["decimal_arithmetic", "pool_matrix"])
def test_source__generator_that_changes_global_state__leaves_none_behind(name: str) -> None:
    precision, (_, state, place, *_) = decimal.getcontext().prec, numpy.random.get_state()
    source = build({"name": name})
    source.warm_up()
    task = source.draw(5)
    source.held_out(1)
    assert source.grade(task.verification, source.find_answer(task)) == 1
    assert decimal.getcontext().prec == precision
    assert numpy.random.get_state()[2] == place
    assert numpy.array_equal(numpy.random.get_state()[1], state)


def test_draw__negative_number__is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        SPELLING.draw(-1)


def test_held_out__questions__are_different_and_never_training_ones() -> None:
    held_out = SPELLING.held_out(256)
    texts = {task.question for task in held_out}
    assert len(texts) == 256
    assert all(map(is_held_out, texts))
    assert SPELLING.held_out(10) == held_out[:10]
    assert not texts & {SPELLING.draw(number).question for number in range(2000)}


def test_held_out__asked_again__creates_no_item_again(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ReasoningGymSource({"name": "spell_backward"}, refuse_data_sets)
    first = source.held_out(3)
    monkeypatch.setattr(source, "_build_task", None)
    assert source.held_out(3) == first


def test_held_out__more_questions_than_exist__are_all() -> None:
    source = build({"name": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 3}})
    found = source.held_out(700)
    assert 10 < len(found) < 700
    assert len({task.question for task in found}) == len(found)


@pytest.mark.parametrize(
    ("change", "reward"),
    [
        (lambda right: right, 1.0),
        (lambda right: right + "x", 0.0),  # the right letters followed by junk score at most 0.9999999999999999
        (lambda right: right[:-1], 0.0),
        (lambda right: right[::-1] + "q", 0.0),
        (lambda right: " " + right, 1.0),
        (lambda right: right[0] + " " + right[1:], 0.0),
        (lambda right: "", 0.0),
        (lambda right: "\x00\ufffd" * 1000, 0.0),
        (lambda right: right + "<pad>", 0.0),
    ],
)
def test_grade__answer__is_exact(change, reward: float) -> None:
    for number in range(20):
        task = SPELLING.draw(number)
        assert SPELLING.grade(task.verification, change(answer(task))) == reward


def test_find_answer__a_task__is_answered_right() -> None:
    task = SPELLING.draw(4)
    assert SPELLING.find_answer(task) == answer(task)


@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError, KeyError, SyntaxError, RecursionError])
def test_grade__grader_that_cannot_parse__earns_nothing(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(_text: str, _entry: object) -> float:
        raise error("unreadable")

    source = build(SPELL)
    monkeypatch.setattr(source._dataset, "score_answer", fail)
    assert source.grade(source.draw(0).verification, "x") == 0.0


@pytest.mark.parametrize("name", ["chain_sum", "basic_arithmetic", "leg_counting", "gcd", *FEW_ITEMS])
def test_draw__other_generators__grade_their_own_answers(name: str) -> None:
    source = build({"name": name})
    for number in range(5):
        task = source.draw(number)
        assert source.grade(task.verification, source.find_answer(task)) == 1.0
        assert source.grade(task.verification, "no idea") == 0.0


def test_draw__composite__mixes_its_generators_by_weight() -> None:
    parts = [{"name": "chain_sum", "weight": 3}, {"name": "spell_backward", "weight": 1, "config": SPELL["config"]}]
    source = build({"name": "composite", "config": {"datasets": parts}})
    tasks = [source.draw(number) for number in range(200)]
    spelled = [task for task in tasks if task.question.startswith(QUESTION)]
    assert 25 < len(spelled) < 75  # expected 50, standard deviation 6
    for task in (*spelled[:3], *[task for task in tasks if task not in spelled][:3]):
        assert source.grade(task.verification, source.find_answer(task)) == 1.0
        assert source.grade(task.verification, "no idea") == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "chess"}, "no generator called 'chess'"),
        ({"name": "gcd", "config": {"nothing": 1}}, "rejected the config"),
        ({"name": "gcd", "config": {"min_value": -5}}, "rejected the config"),
        ({"name": "gcd", "more": 1}, "are invalid"),
        ({}, "are invalid"),
        ({"name": "gcd", "config": {"path": "/etc/passwd"}}, "contains a path"),
        ({"name": "gcd", "config": {"path": ["a", {"b": "..\\x"}]}}, "contains a path"),
        ({"name": "composite"}, "no list called datasets"),
        (
            {"name": "composite", "config": {"datasets": [{"name": "composite", "weight": 1}]}},
            "contains another composite",
        ),
        ({"name": "composite", "config": {"datasets": [{"name": "gcd", "weight": 0}]}}, "rejected the config"),
        ({"name": "composite", "config": {"datasets": [7]}}, "rejected the config"),
        ({"name": "composite", "config": {"datasets": []}}, "rejected the config"),
    ],
)
def test_source__invalid_options__are_refused(options, message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        build(options)
    assert caught.value.code == "bad_environment"


def test_draw__generator_without_training_questions__is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = build(SPELL)
    held_out = source.held_out(1)[0].question
    only = type("Only", (), {"__getitem__": lambda self, item: {"question": held_out}})()
    monkeypatch.setattr(source, "_dataset", only)
    with pytest.raises(OperatorError, match="no training tasks"):
        source.draw(0)
