"""Several environments in one pool, each with its own weight, prompts and rewards."""

from dataclasses import replace

import pytest

from covey.environments.base import EnvironmentSpec
from covey.environments.mixture import name_task_types
from covey.environments.registry import load
from covey.errors import OperatorError, ProtocolError
from tests.fakes.grading import grade_text

pytestmark = pytest.mark.unit

SPELL = {
    "weight": 3,
    "kind": "reasoning_gym",
    "options": {"name": "spell_backward", "targets": [10], "system_prompt": "Spell."},
}
GCD = {"weight": 1, "kind": "reasoning_gym", "options": {"name": "gcd", "extraction": "last_boxed"}}


def build(*parts):
    return load(EnvironmentSpec(kind="mixture", options={"parts": list(parts)}))


MIXED = build(SPELL, GCD)


def test_prompt__parts__are_drawn_by_weight_with_their_own_settings() -> None:
    prompts = [MIXED.prompt(draw) for draw in range(400)]
    spelled = [prompt for prompt in prompts if prompt.system]
    assert 260 < len(spelled) < 340  # expected 300, standard deviation 8.7
    assert {prompt.target for prompt in spelled} == {10}
    assert {prompt.target for prompt in prompts if prompt not in spelled} == {None}
    assert MIXED.prompt(5) == MIXED.prompt(5)


def test_prompt__part__is_the_parts_own_prompt_of_the_draw() -> None:
    alone = load(EnvironmentSpec(kind="reasoning_gym", options=SPELL["options"]))
    draw = next(draw for draw in range(99) if MIXED.prompt(draw).system)
    assert MIXED.prompt(draw) == replace(
        alone.prompt(draw), verification={"part": 0, "of_part": alone.prompt(draw).verification}
    )
    assert MIXED.identify(draw) == {"part": 0, "prompt": alone.identify(draw)}


def test_name_task_types__mixture__are_those_of_the_prompts() -> None:
    spec = EnvironmentSpec(kind="mixture", options={"parts": [SPELL, GCD]})
    names = name_task_types(spec, range(99))
    spelled = [bool(MIXED.prompt(draw).system) for draw in range(99)]
    assert names == tuple("reasoning_gym:spell_backward" if each else "reasoning_gym:gcd" for each in spelled)
    assert name_task_types(EnvironmentSpec(kind="math"), range(2)) == ("math", "math")


def test_grade__part__grades_with_its_own_extraction_and_targets() -> None:
    spelled = next(draw for draw in range(99) if MIXED.prompt(draw).system)
    other = next(draw for draw in range(99) if not MIXED.prompt(draw).system)
    source = MIXED.parts[1].source
    answer = source.find_answer(source.draw(other))
    assert grade_text(MIXED, other, rf"\boxed{{{answer}}}") == 1.0
    assert grade_text(MIXED, other, answer) == 0.0
    word = MIXED.prompt(spelled).text.partition("\n")[0].rpartition(" ")[2]
    assert grade_text(MIXED, spelled, word[::-1], tokens=10) == 1.0
    assert grade_text(MIXED, spelled, word[::-1], tokens=110) == pytest.approx(0.97)
    reply = MIXED.prompt(spelled).build_reply("x", finished=True, tokens=110)
    assert MIXED.grade_wrong(reply).reward == pytest.approx(-0.03)


def test_grade__reply_that_names_no_part__is_malformed() -> None:
    reply = replace(MIXED.prompt(0).build_reply("x", finished=True, tokens=1), verification={"part": "0", "of_part": 1})
    with pytest.raises(ProtocolError, match="malformed_grading"):
        MIXED.grade(reply)


def test_held_out__parts__have_their_share() -> None:
    prompts = MIXED.held_out(8)
    assert [bool(prompt.system) for prompt in prompts] == [True] * 6 + [False] * 2
    assert len({prompt.text for prompt in prompts}) == 8


def test_requires_isolation__one_part_that_runs_programs__is_enough() -> None:
    code = {"weight": 1, "kind": "code", "options": {"dataset": "0x" + "00" * 32}}
    assert [build(SPELL, GCD).requires_isolation, build(SPELL, code).requires_isolation] == [False, True]


def test_versions__parts__are_all_named() -> None:
    assert MIXED.versions.keys() == {"python", "covey.answers", "covey.reasoning_gym", "reasoning-gym", "sympy"}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "are invalid"),
        ([{**SPELL, "weight": 0}], "weight"),
        ([{**SPELL, "weight": 0.5}], "weight"),
        ([{"weight": 1, "kind": "mixture", "options": {"parts": [SPELL]}}], "contains another mixture"),
        ([{"weight": 1, "kind": "chess"}], "no environment kind called 'chess'"),
        ([{**SPELL, "more": 1}], "are invalid"),
    ],
)
def test_mixture__invalid_options__are_refused(parts, message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        build(*parts)
    assert caught.value.code == "bad_environment"


def test_has_answer__part_of_the_prompt__has_its_own_extraction() -> None:
    prompts = [MIXED.prompt(draw) for draw in range(400)]
    found = {
        (bool(prompt.system), MIXED.has_answer(prompt.build_reply("ten", finished=True, tokens=2)))
        for prompt in prompts
    }
    assert found == {(True, True), (False, False)}
