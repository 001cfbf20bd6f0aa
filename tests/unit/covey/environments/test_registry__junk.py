"""The junk suite: text that answers nothing earns nothing, whichever grader reads it."""

import json
from pathlib import Path

import pytest

from covey.environments.base import EnvironmentSpec, JsonObject, Prompt, Reply
from covey.environments.environment import TaskEnvironment
from covey.environments.registry import DEMO, load

pytestmark = pytest.mark.unit
GENERATORS = (
    "basic_arithmetic", "chain_sum", "gcd", "lcm", "leg_counting", "letter_counting", "number_sorting",
    "prime_factorization", "simple_equations", "spell_backward", "word_sorting",
)  # fmt: skip
DRAWS = range(12)
JUNK = [json.loads(line) for line in (Path(__file__).parents[3] / "data/grading/junk.txt").read_text().splitlines()]
ROWS: dict[str, tuple[JsonObject, str, str]] = {
    "math": ({"ground_truth": ["x^2+3"]}, r"\boxed{%s}", "x^2+3"),
    "short_answer": ({"answers": ["Lake Chad"]}, "<answer>%s</answer>", "Lake Chad"),
    "multiple_choice": ({"choices": ["red pine", "blue fir"], "right": 1}, "<answer>%s</answer>", "blue fir"),
}
"""Verification data, the form in which a completion marks an answer, and the right answer, by kind."""


def list_junk(question: str) -> list[str]:
    """List empty texts, echoes, stuffing, code, NaN and Inf, and the tokens of other formats."""
    letters, digits = "abcdefghijklmnopqrstuvwxyz", " ".join(map(str, range(1000)))
    return [
        "", " ", "\n\n", "\x00", "\ufffd" * 40, question, question * 3, letters, letters.upper(), digits, "?" * 5000,
        "the answer is correct", "reward = 1.0", "<answer></answer>", "\\boxed{}", "None", "null", "True", "nan", "inf",
        "-inf", "1e999", "[]", "{}", "()", "answer", "{{answer}}", "%s", "__import__('os').getcwd()", "lambda: 1",
        "1;1", "0x", "(" * 2000, "[" * 2000, "9" * 5000, "*", ".*",
    ]  # fmt: skip


def load_generator(name: str):
    return load(DEMO if name == "spell_backward" else EnvironmentSpec(kind="reasoning_gym", options={"name": name}))


def grade(environment: TaskEnvironment, prompt: Prompt, text: str) -> float:
    return environment.grade(prompt.build_reply(text, finished=True, tokens=9)).reward


@pytest.mark.parametrize("name", GENERATORS)
def test_reward__junk__is_zero(name: str):
    environment = load_generator(name)
    paid = [
        (prompt.text, text)
        for prompt in map(environment.prompt, DRAWS)
        for text in list_junk(prompt.text)
        if grade(environment, prompt, text) != 0
    ]
    assert paid == []


@pytest.mark.parametrize("name", GENERATORS)
def test_reward__answer_among_stuffing__is_zero_and_alone_is_one(name: str):
    """This test shows that the junk suite can fail: graders do pay for the right answer, but only if it is alone."""
    environment = load_generator(name)
    for prompt in map(environment.prompt, DRAWS):
        answer = environment.source.find_answer(prompt)
        assert grade(environment, prompt, answer) == 1.0
        for text in (f"{answer} or {answer}0", f"x{answer}x", f"0 {answer} 1 2 3", answer * 2):
            assert grade(environment, prompt, text) == 0, text


@pytest.mark.parametrize("name", GENERATORS)
def test_reward__500_strings__are_zero_for_a_generator(name: str):
    environment = load_generator(name)
    prompt = environment.prompt(3)
    answer = environment.source.find_answer(prompt)
    paid = [text for text in JUNK if text != answer and grade(environment, prompt, text) != 0]
    assert len(JUNK) >= 500
    assert paid == []


@pytest.mark.parametrize("kind", ROWS)
def test_reward__500_strings__are_zero_for_a_kind_of_rows_in_a_mixture(kind: str):
    verification, marked, right = ROWS[kind]
    options = {"dataset": "0x" + "00" * 32}
    parts = [{"weight": 1, "kind": each, "options": options} for each in ROWS]
    mixture = load(EnvironmentSpec(kind="mixture", options={"parts": parts}))
    part = {"part": list(ROWS).index(kind), "of_part": dict(verification)}

    def pay(text: str) -> float:
        reply = Reply(verification=part, target=None, text=text, finished=True, tokens=9)
        return mixture.grade(reply).reward

    assert pay(marked % right) == 1.0
    assert [text for text in JUNK if pay(text) or pay(marked.replace("%s", text))] == []
