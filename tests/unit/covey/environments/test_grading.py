"""Grading with bytes in and bytes out."""

import json
import sys
from collections.abc import Iterator

import pytest

from covey.environments.base import EnvironmentSpec
from covey.environments.grading import grade_json
from covey.environments.registry import DEMO, build_grading, load
from covey.errors import ProtocolError

pytestmark = pytest.mark.unit

ITEM = {"draw": 2**200, "text": "abc", "finished": True, "tokens": 4}
SPEC = {"kind": DEMO.kind, "options": dict(DEMO.options)}


def test_grade_json__right_wrong_and_unfinished__earn_one_and_zero() -> None:
    environment = load(DEMO)
    draw = 2**255 + 11
    right = environment.prompt(draw).text.rpartition(" ")[2][::-1]
    payload = build_grading(DEMO, [(draw, right, True, 5), (draw, right + "?", True, 6), (draw, right, False, 8)])
    assert json.loads(grade_json(payload)) == {"rewards": [1.0, 0.0, 0.0]}


def test_grade_json__surrogates_and_nulls_in_the_text__are_a_wrong_answer() -> None:
    payload = build_grading(DEMO, [(1, "\ud800\x00", True, 2), (2, "", True, 1)])
    assert json.loads(grade_json(payload)) == {"rewards": [0.0, 0.0]}


def test_grade_json__targets__cost_length() -> None:
    spec = EnvironmentSpec(kind=DEMO.kind, options={**DEMO.options, "targets": [10], "alpha": 0.01})
    assert json.loads(grade_json(build_grading(spec, [(1, "", True, 30)])))["rewards"] == [pytest.approx(-0.2)]


def test_grade_json__no_items__is_no_rewards() -> None:
    assert grade_json(build_grading(DEMO, [])) == b'{"rewards": []}'


@pytest.fixture
def plain_recursion() -> Iterator[None]:
    """As in the grading process: web3, which other tests bring in, raises the limit beyond what the stack holds."""
    raised = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(raised)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        json.dumps({"spec": SPEC}).encode(),
        json.dumps({"spec": SPEC, "items": [ITEM], "more": 1}).encode(),
        json.dumps({"spec": SPEC, "items": [{**ITEM, "draw": -1}]}).encode(),
        json.dumps({"spec": SPEC, "items": [{**ITEM, "draw": "1"}]}).encode(),
        json.dumps({"spec": SPEC, "items": [{**ITEM, "finished": 1}]}).encode(),
        json.dumps({"spec": SPEC, "items": [{**ITEM, "tokens": 1.5}]}).encode(),
        json.dumps({"spec": SPEC, "items": [{**ITEM, "text": None}]}).encode(),
        b'{"spec": {"kind": "a", "options": {}}, "items": [{"draw": ' + b"9" * 5000 + b"}]}",
    ],
)
def test_grade_json__anything_else__is_malformed(payload: bytes, plain_recursion: None) -> None:
    with pytest.raises(ProtocolError) as caught:
        grade_json(payload)
    assert caught.value.code == "malformed_grading"
