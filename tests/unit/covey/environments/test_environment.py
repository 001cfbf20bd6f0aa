"""The part that all kinds share: prompts around a question, length targets, kept questions, extraction and reward."""

from collections.abc import Mapping

import pytest

from covey.environments.base import DataSets, JsonObject, Task, TaskSource, refuse_data_sets
from covey.environments.environment import TaskEnvironment, split_options
from covey.environments.question_mask import pack_kept
from covey.environments.registry import DEMO, load
from covey.errors import OperatorError
from tests.fakes.grading import grade_text

pytestmark = pytest.mark.unit


class Doubling(TaskSource):
    """A source whose question n asks for 2 n. Held-out questions have negative numbers."""

    extraction = "last_line"

    def __init__(self, options: JsonObject, data_sets: DataSets) -> None:
        assert not options

    def draw(self, number: int) -> Task:
        return Task(question=f"Double {number}.", verification={"right": str(2 * number)})

    def held_out(self, n: int) -> list[Task]:
        return [self.draw(-8 * i) for i in range(1, n + 1)]

    def grade(self, verification: JsonObject, answer: str) -> float:
        return float(answer == verification["right"])

    def list_versions(self) -> Mapping[str, str]:
        return {"doubling": "1"}


def build(**options) -> TaskEnvironment:
    shared, own = split_options(options)
    return TaskEnvironment(Doubling(own, refuse_data_sets), shared)


def test_prompt__no_options__is_the_question_alone() -> None:
    prompt = build().prompt(7)
    assert (prompt.text, prompt.system, prompt.target) == ("Double 7.", "", None)


def test_prompt__all_options__are_lines_around_the_question() -> None:
    prompt = build(system_prompt="Be brief.", instruction="Box the answer.", targets=[500]).prompt(7)
    assert prompt.text == "Double 7.\nBox the answer.\nThink for 500 tokens before you answer."
    assert (prompt.system, prompt.target) == ("Be brief.", 500)


def test_prompt__targets__are_drawn_with_the_prompt() -> None:
    environment = build(targets=[1000, 2000, 3000])
    prompts = [environment.prompt(draw) for draw in range(60)]
    assert {prompt.target for prompt in prompts} == {1000, 2000, 3000}
    assert all(prompt.text.endswith(f"\nThink for {prompt.target} tokens before you answer.") for prompt in prompts)
    assert [prompt.verification for prompt in prompts] == [build().prompt(draw).verification for draw in range(60)]
    assert [prompt.target for prompt in environment.held_out(4)] == [1000, 2000, 3000, 1000]


@pytest.mark.parametrize(
    ("tokens", "text", "reward"),
    [(1000, "16", 1.0), (1500, "16", 0.85), (0, "no", -0.3), (1500, "no", -0.15), (4000, "16", 0.1)],
)
def test_grade__target__costs_alpha_per_token_off(tokens: int, text: str, reward: float) -> None:
    assert grade_text(build(targets=[1000]), 8, text, tokens=tokens) == pytest.approx(reward)


def test_grade__parts__add_up_to_the_reward() -> None:
    environment = build(targets=[1000])
    grade = environment.grade(environment.prompt(8).build_reply("16", finished=True, tokens=900))
    assert grade.parts == {"task": 1.0, "length": pytest.approx(-0.03)}
    assert grade.reward == sum(grade.parts.values())


def test_grade__completion_that_the_limit_cut__earns_nothing() -> None:
    assert grade_text(build(), 8, "16", finished=False) == 0.0
    assert grade_text(build(targets=[10]), 8, "16", finished=False, tokens=30) == pytest.approx(-0.006)


def test_grade_wrong__any_text__is_what_a_wrong_answer_gets() -> None:
    environment = build(targets=[1000])
    prompt = environment.prompt(8)
    right = prompt.build_reply("16", finished=True, tokens=400)
    wrong = prompt.build_reply("no", finished=True, tokens=400)
    assert environment.grade_wrong(right) == environment.grade(wrong) != environment.grade(right)


@pytest.mark.parametrize(
    ("options", "text", "reward"),
    [
        ({}, "It is clear.\n16\n", 1.0),
        ({}, "16\nIt is clear.", 0.0),
        ({}, "<think>\n16\n</think>\n16", 1.0),
        ({}, "<think>\n16", 0.0),
        ({}, "<think>\n16\n</think>\n17", 0.0),
        ({"extraction": "last_boxed"}, r"so \boxed{16}", 1.0),
        ({"extraction": "last_boxed"}, "16", 0.0),
        ({"extraction": "answer_tag"}, "<answer>16</answer>", 1.0),
        ({"extraction": "whole"}, "16", 1.0),
        ({"extraction": "whole"}, "16\n", 1.0),
        ({"thinking_required": True}, "easy</think>16", 1.0),
        ({"thinking_required": True}, "16", 0.0),
        ({"thinking_tags": ["[THINK]", "[/THINK]"]}, "[THINK]8[/THINK]16", 1.0),
        ({"thinking_tags": ["[THINK]", "[/THINK]"]}, "[THINK]8\n16", 0.0),
    ],
)
def test_grade__answer__is_extracted_after_the_thinking(options, text: str, reward: float) -> None:
    assert grade_text(build(**options), 8, text) == reward


def test_prompt__kept_questions__are_all_drawn_and_no_others() -> None:
    environment = build(kept=pack_kept([2, 5, 9, 600]))
    drawn = {environment.prompt(draw).text for draw in range(200)}
    assert drawn == {f"Double {number}." for number in (2, 5, 9, 600)}
    assert environment.held_out(8) == build().held_out(8)


def test_prompt__kept_questions__known_draws_never_change() -> None:
    # Recorded values. Another prompt for one of these draws would be another protocol.
    options = {**DEMO.options, "kept": pack_kept(range(0, 100, 7)), "targets": [10, 20]}
    environment = load(type(DEMO)(kind=DEMO.kind, options=options))
    prompts = [environment.prompt(draw) for draw in (0, 1, 2**63)]
    assert [(p.verification["item"], p.target) for p in prompts] == [(8662494, 20), (941048, 10), (216680, 20)]


def test_prompt__kept_question__has_a_target_of_the_draw_not_of_the_question() -> None:
    environment = build(kept=pack_kept([5]), targets=[10, 20, 30])
    assert {environment.prompt(draw).target for draw in range(40)} == {10, 20, 30}


def test_identify__draw__names_all_that_the_model_reads() -> None:
    options = {"system_prompt": "S", "instruction": "I", "targets": [10]}
    assert build(**options).identify(3) == {"task": "Double 3.", "target": 10, "instruction": "I", "system": "S"}


def test_versions__interpreter_extraction_and_kind__are_named() -> None:
    assert build().versions.keys() == {"python", "covey.answers", "doubling"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": [0]}, "targets"),
        ({"alpha": float("nan")}, "alpha"),
        ({"alpha": -1.0}, "alpha"),
        ({"extraction": "first_boxed"}, "extraction is 'first_boxed', but must be one of answer_tag"),
        ({"kept": "?"}, "kept"),
        ({"kept": "AA=="}, "kept"),
        ({"kept": [3, 5]}, "kept"),
        ({"thinking_tags": ["<think>"]}, "thinking_tags"),
        ({"thinking_tags": 5}, "are invalid"),
        ({"thinking_tags": ["<a>", ""]}, "thinking_tags contains an empty tag"),
        ({"system_prompt": 7}, "system_prompt"),
    ],
)
def test_build__invalid_options__are_refused(options, message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        build(**options)
    assert caught.value.code == "bad_environment"
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "has_answer"),
    [
        (r"It is \boxed{14}.", True),
        (r"It is \boxed{wrong}.", True),
        ("It is 14.", False),
        (r"<think>\boxed{14}", False),
        (r"<think>so</think>\boxed{14}", True),
        ("", False),
    ],
)
def test_has_answer__any_text__is_what_the_extraction_finds(text: str, has_answer: bool) -> None:
    environment = build(extraction="last_boxed")
    assert environment.has_answer(environment.prompt(7).build_reply(text, finished=True, tokens=5)) == has_answer
