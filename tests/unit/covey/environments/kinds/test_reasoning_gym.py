"""Prompts that follow from integers, two splits that share nothing, and grades that are exact."""

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.environments.base import Prompt
from covey.environments.kept import pack_kept
from covey.environments.reasoning_gym import ITEMS, ReasoningGymEnvironment
from covey.errors import OperatorError

pytestmark = pytest.mark.unit

SPELL = {"name": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 5}}
QUESTION = "Spell this word backward (example: sun -> nus): "
KEPT_RECORDED = [(8662494, 20), (941048, 10), (216680, 20)]
RECORDED = [(216680, "gonia"), (2489099, "Elia"), (7857271, "kilah"), (2513392, "totum")]


SPELLING = ReasoningGymEnvironment(SPELL)


@pytest.fixture
def spelling() -> ReasoningGymEnvironment:
    return SPELLING


def is_held_out(text: str) -> bool:
    return zlib.crc32(text.encode()) % 8 == 0


def answer(prompt: Prompt) -> str:
    return prompt.text.removeprefix(QUESTION)[::-1]


def test_prompt__known_draws__are_these_for_ever(spelling: ReasoningGymEnvironment) -> None:
    # Recorded once: another prompt for one of these would be another protocol.
    assert [
        (p.item, p.text.removeprefix(QUESTION)) for p in map(spelling.prompt, (0, 1, 2**63, 2**256 - 1))
    ] == RECORDED


@settings(max_examples=60, deadline=None)
@given(st.integers(min_value=0, max_value=2**256 - 1))
def test_prompt__any_draw__is_a_training_question_and_repeats(draw: int) -> None:
    environment = SPELLING
    prompt = environment.prompt(draw)
    assert prompt == environment.prompt(draw)
    assert not is_held_out(prompt.text)
    assert 0 <= prompt.item < ITEMS
    assert 3 <= len(answer(prompt)) <= 5
    assert prompt.target is None


def test_prompt__neighbouring_draws__are_unrelated(spelling: ReasoningGymEnvironment) -> None:
    items = [spelling.prompt(draw).item for draw in range(300)]
    assert len(set(items)) == 300
    assert 0.4 * ITEMS < sum(items) / 300 < 0.6 * ITEMS


def test_prompt__negative_draw__is_refused(spelling: ReasoningGymEnvironment) -> None:
    with pytest.raises(ValueError, match="negative"):
        spelling.prompt(-1)


def test_held_out__questions__are_different_and_never_training_ones(spelling: ReasoningGymEnvironment) -> None:
    held_out = spelling.held_out(256)
    texts = {prompt.text for prompt in held_out}
    assert len(texts) == 256
    assert all(map(is_held_out, texts))
    assert spelling.held_out(10) == held_out[:10]
    assert not texts & {spelling.prompt(draw).text for draw in range(2000)}


def test_held_out__more_than_there_are__is_refused() -> None:
    with pytest.raises(OperatorError, match="held-out questions"):
        ReasoningGymEnvironment({"name": "spell_backward", "config": {"min_word_len": 3, "max_word_len": 3}}).held_out(
            700
        )


@pytest.mark.parametrize(
    ("change", "finished", "reward"),
    [
        (lambda right: right, True, 1.0),
        (lambda right: right, False, 0.0),
        (lambda right: right + "x", True, 0.0),  # all letters and junk scores 0.9999999999999999 or less
        (lambda right: right[:-1], True, 0.0),
        (lambda right: right[::-1] + "q", True, 0.0),
        (lambda right: " " + right, True, 0.0),
        (lambda right: "", True, 0.0),
        (lambda right: "\x00\ufffd" * 1000, True, 0.0),
        (lambda right: right + "<pad>", True, 0.0),
    ],
)
def test_reward__completion__is_exact(spelling: ReasoningGymEnvironment, change, finished, reward) -> None:  # type: ignore[no-untyped-def]
    for draw in range(20):
        prompt = spelling.prompt(draw)
        assert spelling.reward(prompt, change(answer(prompt)), finished=finished, completion_tokens=6) == reward


def test_example__a_prompt__is_answered_right(spelling: ReasoningGymEnvironment) -> None:
    prompt = spelling.prompt(4)
    assert spelling.example(prompt) == answer(prompt)


def test_prompt__targets__are_drawn_with_the_prompt_and_asked_for() -> None:
    environment = ReasoningGymEnvironment({**SPELL, "targets": [1000, 2000, 3000]})
    prompts = [environment.prompt(draw) for draw in range(60)]
    assert {prompt.target for prompt in prompts} == {1000, 2000, 3000}
    assert all(p.text.endswith(f"\nThink for {p.target} tokens before you answer.") for p in prompts)
    assert [p.item for p in prompts] == [SPELLING.prompt(draw).item for draw in range(60)]
    assert [p.target for p in environment.held_out(4)] == [1000, 2000, 3000, 1000]


@pytest.mark.parametrize(("tokens", "right", "reward"), [(1000, True, 1.0), (1500, True, 0.85), (0, False, -0.3)])
def test_reward__target__costs_alpha_per_token_off(tokens: int, right: bool, reward: float) -> None:
    environment = ReasoningGymEnvironment({**SPELL, "targets": [1000]})
    prompt = environment.prompt(8)
    text = environment.example(prompt) if right else "no"
    found = environment.reward(prompt, text, finished=True, completion_tokens=tokens)
    assert found == pytest.approx(reward)


def test_reward__siblings__share_the_target_that_the_prompt_names() -> None:
    """The draw holds no sibling, so one prompt has one target; LONG of the recipe."""
    environment = ReasoningGymEnvironment({**SPELL, "targets": [2000, 4000, 6000, 8000, 10000]})
    for draw in range(20):
        first, second = environment.prompt(draw), environment.prompt(draw)
        assert first.target == second.target
        assert first.target in (2000, 4000, 6000, 8000, 10000)


@pytest.mark.parametrize(
    ("tokens", "right", "cost"),
    [(4000, True, 0.0), (3000, True, 0.3), (32768, False, 8.6304), (1, False, 1.1997)],
)
def test_compute_length_cost__what_the_model_read__is_what_the_reward_lost(
    tokens: int, right: bool, cost: float
) -> None:
    environment = ReasoningGymEnvironment({**SPELL, "targets": [4000]})
    prompt = environment.prompt(3)
    found = environment.compute_length_cost(f"<bos>{prompt.text}\n", completion_tokens=tokens)
    assert found == pytest.approx(cost)
    text = environment.example(prompt) if right else "no"
    reward = environment.reward(prompt, text, finished=True, completion_tokens=tokens)
    assert reward + found == pytest.approx(float(right))


@pytest.mark.parametrize(
    "text", ["", "Spell it", "Think for 5000 tokens before you answer.", "Think for 4000 tokens before you answer. x"]
)
def test_compute_length_cost__no_length_of_ours_asked_for__is_nothing(text: str) -> None:
    environment = ReasoningGymEnvironment({**SPELL, "targets": [4000]})
    assert environment.compute_length_cost(text, completion_tokens=9) == 0.0
    assert SPELLING.compute_length_cost("Think for 4000 tokens before you answer.", completion_tokens=9) == 0.0


def test_prompt__kept_questions__are_the_only_ones_and_all_of_them() -> None:
    environment = ReasoningGymEnvironment({**SPELL, "kept": pack_kept([2, 5, 9, 600])})
    drawn = {environment.prompt(draw) for draw in range(200)}
    assert drawn == {SPELLING.prompt(number) for number in (2, 5, 9, 600)}
    assert environment.held_out(8) == SPELLING.held_out(8)


def test_prompt__kept_questions__known_draws_are_these_for_ever() -> None:
    # Recorded once, as above.
    environment = ReasoningGymEnvironment({**SPELL, "kept": pack_kept(range(0, 100, 7)), "targets": [10, 20]})
    found = [environment.prompt(draw) for draw in (0, 1, 2**63)]
    assert [(p.item, p.target) for p in found] == KEPT_RECORDED


def test_prompt__kept_question__has_a_target_of_the_draw_not_of_the_question() -> None:
    environment = ReasoningGymEnvironment({**SPELL, "kept": pack_kept([5]), "targets": [10, 20, 30]})
    assert {environment.prompt(draw).target for draw in range(40)} == {10, 20, 30}


@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError, KeyError, SyntaxError, RecursionError])
def test_reward__grader_that_cannot_parse__earns_nothing(
    spelling: ReasoningGymEnvironment, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(_text: str, _entry: object) -> float:
        raise error("unreadable")

    environment = ReasoningGymEnvironment(SPELL)
    monkeypatch.setattr(environment._dataset, "score_answer", fail)
    assert environment.reward(spelling.prompt(0), "x", finished=True, completion_tokens=1) == 0.0


@pytest.mark.parametrize("name", ["chain_sum", "basic_arithmetic", "leg_counting", "gcd"])
def test_prompt__other_generators__grade_their_own_answers(name: str) -> None:
    environment = ReasoningGymEnvironment({"name": name})
    for draw in range(5):
        prompt = environment.prompt(draw)
        assert environment.reward(prompt, environment.example(prompt), finished=True, completion_tokens=9) == 1.0
        assert environment.reward(prompt, "no idea", finished=True, completion_tokens=9) == 0.0


def test_prompt__generator_without_training_questions__is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = ReasoningGymEnvironment(SPELL)
    held = environment.held_out(1)[0].text
    only = type("Only", (), {"__getitem__": lambda self, item: {"question": held}})()
    monkeypatch.setattr(environment, "_dataset", only)
    with pytest.raises(OperatorError, match="no training question"):
        environment.prompt(0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"name": "no_such_generator"},
        {"name": "spell_backward", "sead": 1},
        {"name": "spell_backward", "seed": "1"},
        {"name": "spell_backward", "targets": [0]},
        {"name": "spell_backward", "alpha": float("nan")},
        {"name": "spell_backward", "alpha": -1.0},
        {"name": "spell_backward", "config": {"max_word_length": 5}},
        {"name": "spell_backward", "config": {"min_word_len": 9, "max_word_len": 3}},
        {"name": "spell_backward", "config": {"data_file": "../secret.txt"}},
        {"name": "spell_backward", "config": {"data_file": "/etc/hostname"}},
        {"name": "spell_backward", "config": {"seed": 3}},
        {"name": "spell_backward", "kept": "?"},
        {"name": "spell_backward", "kept": "AA=="},
        {"name": "spell_backward", "kept": [3, 5]},
    ],
)
def test_init__options_that_do_not_fit__are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OperatorError) as caught:
        ReasoningGymEnvironment(options)
    assert caught.value.code == "bad_environment"
    assert caught.value.fix
