"""The grading function, from bytes to bytes."""

import json

import pytest

from covey.environments.base import EnvironmentSpec, Grade, GradeLimit
from covey.environments.grading_process import build, pack_reply, pack_spec, unpack_grade
from covey.environments.kinds.reasoning_gym.reasoning_gym import ReasoningGymSource
from covey.environments.registry import DEMO, load
from covey.errors import ProtocolError

pytestmark = pytest.mark.unit

DRAW = 2**255 + 11
REPLY = {"verification": {"item": 5}, "target": None, "text": "abc", "finished": True, "tokens": 4}


def grade(text: str, *, finished: bool = True, tokens: int = 5, spec: EnvironmentSpec = DEMO) -> Grade:
    reply = load(spec).prompt(DRAW).build_reply(text, finished=finished, tokens=tokens)
    return unpack_grade(build(pack_spec(spec))(pack_reply(reply)))


def test_build__right_wrong_and_unfinished__earn_one_and_zero() -> None:
    right = load(DEMO).prompt(DRAW).text.rpartition(" ")[2][::-1]
    grades = [grade(right), grade(right + "?"), grade(right, finished=False)]
    assert [each.reward for each in grades] == [1.0, 0.0, 0.0]
    assert grades[0].parts == {"task": 1.0, "length": 0.0}


@pytest.mark.parametrize("text", ["\ud800\x00", "", "\u202e"])
def test_build__surrogates_and_nulls_in_the_text__are_a_wrong_answer(text: str) -> None:
    assert grade(text).reward == 0.0


def test_build__limit__is_a_wrong_answer_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(*_: object) -> float:
        raise GradeLimit("sandbox_cpu")

    monkeypatch.setattr(ReasoningGymSource, "grade", reach)
    spec = EnvironmentSpec(kind=DEMO.kind, options={**DEMO.options, "targets": [10], "alpha": 0.01})
    assert grade("x", tokens=30, spec=spec) == Grade(
        reward=pytest.approx(-0.2), parts={"task": 0.0, "length": pytest.approx(-0.2)}, limit="sandbox_cpu"
    )


def test_build__targets__cost_length() -> None:
    spec = EnvironmentSpec(kind=DEMO.kind, options={**DEMO.options, "targets": [10], "alpha": 0.01})
    assert grade("", tokens=30, spec=spec).reward == pytest.approx(-0.2)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"{}",
        b"[" * 100_000,
        json.dumps([REPLY]).encode(),
        json.dumps({**REPLY, "more": 1}).encode(),
        json.dumps({**REPLY, "verification": 1}).encode(),
        json.dumps({**REPLY, "target": "1"}).encode(),
        json.dumps({**REPLY, "finished": 1}).encode(),
        json.dumps({**REPLY, "tokens": 1.5}).encode(),
        json.dumps({**REPLY, "text": None}).encode(),
        b'{"tokens": ' + b"9" * 5000 + b"}",
    ],
)
def test_build__anything_else__is_malformed(payload: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        build(pack_spec(DEMO))(payload)
    assert caught.value.code == "malformed_grading"
