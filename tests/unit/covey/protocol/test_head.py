"""Heads of pools: a round trip, limits before parsing, and hostile values."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.errors import ProtocolError
from covey.protocol import head
from covey.protocol.head import MAX_HEAD_BYTES, MAX_POLICIES, Head, ServedPolicy, Way, build_head
from covey.protocol.ids import ZERO_HASH, Hash, hash_from_bytes

pytestmark = pytest.mark.unit

ONE = Hash("0x" + "11" * 32)
hashes = st.binary(min_size=32, max_size=32).map(hash_from_bytes)
ways = st.builds(Way, manifest=hashes, base=hashes, size=st.integers(0, (1 << 50) - 1))
policies = st.builds(
    ServedPolicy, step=st.integers(0, (1 << 63) - 1), record=hashes, ways=st.lists(ways, max_size=3).map(tuple)
)
heads = st.builds(Head, pool=st.integers(1, (1 << 63) - 1), policies=st.lists(policies, max_size=3).map(tuple))


def build(**changes: Any) -> dict[str, Any]:
    way = {"manifest": ONE, "base": ZERO_HASH, "size": 5} | changes.pop("way", {})
    policy = {"step": 3, "record": ONE, "ways": [way]} | changes.pop("policy", {})
    return {"pool": 1, "policies": [policy]} | changes


@given(heads)
def test_head__any_head__round_trips(value: Head):
    assert Head.from_bytes(value.to_bytes()) == value


def test_head__bytes__by_hand():
    value = Head(pool=1, policies=(ServedPolicy(step=3, record=ONE, ways=(Way(manifest=ONE, size=5),)),))
    text = (
        '{"policies":[{"record":"ONE","step":3,"trained_at":0.0,"ways":'
        '[{"base":"ZERO","manifest":"ONE","size":5}]}],"pool":1}'
    )
    assert value.to_bytes() == text.replace("ONE", ONE).replace("ZERO", ZERO_HASH).encode()
    assert json.loads(value.to_bytes()) == build(policy={"trained_at": 0.0})


@pytest.mark.parametrize(
    "values",
    [
        build(pool=0),
        build(pool="1"),
        build(pool=1 << 63),
        build(more=1),
        build(policies=None),
        build(policies=[{}]),
        build(policy={"step": -1}),
        build(policy={"step": 1.0}),
        build(policy={"trained_at": 1e300}),
        build(policy={"trained_at": -1.0}),
        build(policy={"record": ONE[2:]}),
        build(policy={"record": "0x" + "AA" * 32}),
        build(policy={"record": ONE + "\n"}),
        build(policy={"ways": [{"manifest": ONE, "size": 1}] * 65}),
        build(way={"manifest": "0x11"}),
        build(way={"base": None}),
        build(way={"size": -1}),
        build(way={"size": 1 << 50}),
        build(way={"size": True}),
        build(policies=[{"step": 0, "record": ONE, "ways": []}] * ((1 << 13) + 1)),
    ],
)
def test_from_bytes__value_outside_its_range__is_refused(values: dict[str, Any]):
    with pytest.raises(ProtocolError, match="bad_head: the head is invalid") as caught:
        Head.from_bytes(json.dumps(values).encode())
    assert caught.value.status == 502


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"[]", b"\xff", b"[" * 10_000])
def test_from_bytes__not_a_json_object__is_refused(data: bytes):
    with pytest.raises(ProtocolError, match="bad_head"):
        Head.from_bytes(data)


def test_from_bytes__too_large__is_refused_before_parsing():
    data = json.dumps(build()).encode()
    assert Head.from_bytes(data.ljust(MAX_HEAD_BYTES)) == Head.from_bytes(data)
    with pytest.raises(ProtocolError, match="bad_head: the head exceeds 4194304 bytes"):
        Head.from_bytes(data.ljust(MAX_HEAD_BYTES + 1))


def serve(step: int, ways: int = 0) -> ServedPolicy:
    return ServedPolicy(step=step, record=ONE, ways=(Way(manifest=ONE, size=5),) * ways)


def test_build_head__policies_in_any_order__newest_first():
    assert build_head(7, [serve(1), serve(3), serve(2)]) == Head(pool=7, policies=(serve(3), serve(2), serve(1)))


def test_build_head__more_policies_than_allowed__drops_the_oldest():
    head_of_all = build_head(1, [serve(step) for step in range(MAX_POLICIES + 2)])
    assert [policy.step for policy in head_of_all.policies] == list(range(MAX_POLICIES + 1, 1, -1))


def test_build_head__more_bytes_than_allowed__drops_as_few_as_possible():
    served = [serve(step + 10_000, ways=64) for step in range(400)]
    built = build_head(1, served)
    included = len(built.policies)
    assert 0 < included < 400
    assert list(built.policies) == served[: -included - 1 : -1]
    assert Head.from_bytes(built.to_bytes()) == built
    one_more = Head(pool=1, policies=tuple(served[: -included - 2 : -1]))
    with pytest.raises(ValueError, match="but at most 4194304 fit"):
        one_more.to_bytes()


def test_paths__of_a_pool_and_of_hashes():
    assert head.get_head_path(7) == "/heads/7.json"
    assert head.get_record_path(ONE) == f"/records/{ONE}"
    assert head.get_manifest_path(ONE) == f"/manifests/{ONE}"
    assert head.get_piece_path(ONE) == f"/pieces/{ONE}"
