import pytest

from covey.environments import registry
from covey.environments.base import EnvironmentSpec
from covey.environments.length_costs import LengthCosts
from covey.errors import OperatorError

pytestmark = pytest.mark.unit
SPELLING = {"name": "spell_backward", "targets": [10, 2000], "alpha": 0.01}
MIXED = EnvironmentSpec(
    kind="mixture",
    options={
        "parts": [
            {"weight": 1, "kind": "math", "options": {"targets": [4000]}},
            {"weight": 1, "kind": "reasoning_gym", "options": SPELLING},
        ]
    },
)


@pytest.mark.parametrize(
    ("tokens", "text", "cost"),
    [
        (4000, "Think for 4000 tokens before you answer.", 0.0),
        (3000, "<bos>Q\nThink for 4000 tokens before you answer.\n", 0.3),
        (32768, "<user>Think for 4000 tokens before you answer.</user>\n<assistant>\n", 8.6304),
        (9, "Think for 9000 tokens before you answer.\nThink for 4000 tokens before you answer.", 1.1973),
        (9, "Think for 4000 tokens before you answer.\nThink for 9000 tokens before you answer.", 0.0),
        (9, "Think for 5000 tokens before you answer.", 0.0),
        (9, "Double it.", 0.0),
        (9, "", 0.0),
    ],
)  # fmt: skip
def test_compute__text_of_the_model__is_what_the_reward_lost(tokens: int, text: str, cost: float) -> None:
    costs = LengthCosts(EnvironmentSpec(kind="no such kind", options={"targets": [4000], "of_this_kind": 3}))
    assert costs.compute(text, completion_tokens=tokens) == pytest.approx(cost)


def test_compute__mixture__is_the_cost_in_the_part_with_that_target() -> None:
    text = "Spell it\nThink for 10 tokens before you answer."
    assert LengthCosts(MIXED).compute(text, completion_tokens=110) == pytest.approx(1.0)
    assert LengthCosts(MIXED).compute("Spell it", completion_tokens=110) == 0.0


def test_split__reward_of_the_environment__has_the_same_parts() -> None:
    spec = EnvironmentSpec(kind="reasoning_gym", options=SPELLING)
    prompt = registry.load(spec).prompt(3)
    grade = registry.load(spec).grade(prompt.build_reply("no", finished=True, tokens=7))
    earned, cost = LengthCosts(spec).split(grade.reward, prompt.text, completion_tokens=7)
    assert (earned, -cost) == (grade.parts["task"], grade.parts["length"])
    assert cost in (0.01 * 3, 0.01 * 1993)


@pytest.mark.parametrize(
    "spec",
    [EnvironmentSpec(kind="math", options={"targets": [0]}), EnvironmentSpec(kind="mixture", options={"parts": []})],
)
def test_length_costs__invalid_options__are_refused(spec: EnvironmentSpec) -> None:
    with pytest.raises(OperatorError, match="bad_environment"):
        LengthCosts(spec)
