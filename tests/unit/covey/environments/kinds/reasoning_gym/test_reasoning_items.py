"""The processes in which items of reasoning-gym are made, and the generators that are refused."""

import json

import pytest

from covey.environments.kinds.reasoning_gym import reasoning_items
from covey.environments.kinds.reasoning_gym.reasoning_items import (
    HASHED,
    ReasoningGymOptions,
    SandboxedItems,
    build_items,
    list_generators,
    open_items,
)
from covey.errors import OperatorError
from covey.sandbox import CallOutcome, SandboxError

pytestmark = pytest.mark.unit

RANSOM = ReasoningGymOptions(name="ransom_note")


def compose(*names: str) -> ReasoningGymOptions:
    return ReasoningGymOptions(name="composite", config={"datasets": [{"name": name, "weight": 1} for name in names]})


@pytest.mark.parametrize(
    ("options", "is_sandboxed"),
    [
        (ReasoningGymOptions(name="gcd"), False),
        (RANSOM, True),
        (compose("gcd", "lcm"), False),
        (compose("gcd", "ransom_note"), True),
    ],
)
def test_open_items__generators_that_depend_on_hashes__are_made_in_a_sandbox(options, is_sandboxed: bool):
    assert isinstance(open_items(options, 100), SandboxedItems) == is_sandboxed


def test_open_items__inside_a_sandbox__are_made_in_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reasoning_items, "is_inside", lambda: True)
    assert not isinstance(open_items(RANSOM, 100), SandboxedItems)


def test_open_items__generator_without_one_right_answer__is_refused_with_the_reason():
    with pytest.raises(
        OperatorError, match="propositional_logic accepts every statement that follows from its premises"
    ):
        open_items(ReasoningGymOptions(name="propositional_logic"), 100)


@pytest.mark.parametrize("options", [ReasoningGymOptions(name="codeio"), compose("gcd", "codeio")])
def test_open_items__generator_that_differs_in_each_run__is_refused_by_name(options: ReasoningGymOptions):
    with pytest.raises(
        OperatorError, match="the reasoning-gym generator codeio creates different tasks in each run"
    ) as caught:
        open_items(options, 100)
    assert caught.value.code == "bad_environment"


def test_list_generators__composite__names_its_parts():
    assert list_generators(compose("gcd", "lcm")) == {"composite", "gcd", "lcm"}
    assert list_generators(ReasoningGymOptions(name="gcd", config={"datasets": [{"name": "lcm"}]})) == {"gcd"}
    assert list_generators(ReasoningGymOptions(name="composite", config={"datasets": [7]})) == {"composite"}


def test_build_items__orders__are_answered_with_the_item_or_a_score():
    options = ReasoningGymOptions(name="gcd", seed=3)
    serve = build_items(json.dumps({"options": options.model_dump(), "count": 50}).encode())
    plain = open_items(options, 50)[7]
    assert json.loads(serve(b'{"item": 7}')) == {
        "item": 7,
        "question": plain["question"],
        "answer": plain["answer"],
        "metadata": {"source_dataset": "gcd"},
    }
    right = json.dumps({"item": 7, "answer": plain["answer"]}).encode()
    assert json.loads(serve(right)) == 1.0
    assert json.loads(serve(b'{"item": 7, "answer": "no idea"}')) == 0.0


def test_build_items__item_without_an_answer__has_none():
    setup = json.dumps({"options": {"name": "rush_hour"}, "count": 50}).encode()
    assert json.loads(build_items(setup)(b'{"item": 0}'))["answer"] is None


def test_sandboxed_items__generator_that_dies__is_a_refusal_that_names_the_item(monkeypatch: pytest.MonkeyPatch):
    items = SandboxedItems(RANSOM, 100)
    outcome = CallOutcome(error=SandboxError("sandbox_cpu", "the call used over 120.0 CPU seconds"))
    monkeypatch.setattr(items._sandbox, "run", lambda payload, attempts: outcome)
    with pytest.raises(OperatorError, match=r"ransom_note failed to create item 5: .*sandbox_cpu") as caught:
        items[5]
    assert caught.value.code == "bad_environment"


def test_hashed__all_names__are_generators_of_the_package():
    from reasoning_gym.factory import DATASETS

    assert DATASETS.keys() >= HASHED
    assert reasoning_items.REFUSED.keys() <= DATASETS.keys()
