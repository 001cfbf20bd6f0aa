import json
from typing import get_args

import pytest
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from covey.errors import ProtocolError
from covey.protocol.params import MAX_PARAMS_BYTES, EnvironmentParams, ModelParams, PoolParams, VerificationParams

pytestmark = pytest.mark.unit

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
options = st.dictionaries(
    texts, st.integers() | st.booleans() | texts | st.lists(st.integers(), max_size=3), max_size=4
)


def build(**changes):
    return PoolParams(**({"name": "p", "environment": EnvironmentParams(kind="k")} | changes))


def keccak_of(text):
    return "0x" + keccak(text.encode()).hex()


@st.composite
def params(draw):
    per_task = draw(st.integers(1, 1024))
    return PoolParams(
        name=draw(texts),
        environment=EnvironmentParams(kind="reasoning_gym", options=draw(options)),
        model=ModelParams(temperature=draw(st.floats(0.01, 10))),
        verification=VerificationParams(audit_rate=draw(st.floats(0, 1)), margin_max=draw(st.floats(0, 1e300))),
        group_size=draw(st.integers(2, 1024)),
        groups_per_task=per_task,
        groups_per_step=per_task * draw(st.integers(1, 1000)),
        lease_seconds=draw(st.floats(1e-3, 1e9) | st.integers(1, 10**9)),
        max_steps=draw(st.none() | st.integers(1, 1 << 31)),
    )


@given(params())
def test_params__any__text_reads_back_under_its_hash_and_is_canonical(value):
    text = value.to_text()
    assert value.compute_hash() == keccak_of(text)
    again = PoolParams.from_text(text, value.compute_hash())
    assert again == value
    assert again.to_text() == text
    assert json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False) == text


def test_params__derived_numbers__by_hand():
    value = build(groups_per_task=4, group_size=8, quorum=3, model=ModelParams(max_completion_tokens=10))
    assert value.rollouts_per_task == 32
    assert value.max_task_units == 320
    assert value.max_judgements == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"groups_per_step": 7, "groups_per_task": 2},
        {"group_size": 1},
        {"max_staleness": -1},
        {"quorum": 0},
        {"lease_seconds": 0},
        {"lease_seconds": float("nan")},
        {"epoch_seconds": float("inf")},
        {"max_submission_bytes": 1},
        {"model": {"temperature": float("nan")}},
        {"model": {"temperature": 0}},
        {"verification": {"audit_rate": 1.1}},
        {"verification": {"margin_max": float("inf")}},
        {"verification": {"mode": "none"}},
        {"surprise": 1},
    ],
)
def test_params__out_of_bounds__refused(changes):
    with pytest.raises(ValidationError):
        build(**changes)


def test_from_text__another_hash__refused():
    text = build().to_text()
    with pytest.raises(ProtocolError, match="do not have the hash"):
        PoolParams.from_text(text + " ", keccak_of(text))


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"name":"x"}', "[" * 16_000, '{"version":2}', "1" * 5000])
def test_from_text__does_not_parse__refused(text):
    with pytest.raises(ProtocolError, match="bad_params"):
        PoolParams.from_text(text, keccak_of(text))


def test_from_text__too_long__refused():
    text = build().to_text() + " " * MAX_PARAMS_BYTES
    with pytest.raises(ProtocolError, match="are over"):
        PoolParams.from_text(text, keccak_of(text))


def test_verification__modes__are_the_two_of_the_design():
    assert set(get_args(VerificationParams.model_fields["mode"].annotation)) == {"exact", "calibrated"}
