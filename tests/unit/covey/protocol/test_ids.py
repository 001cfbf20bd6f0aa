import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol import canonical
from covey.protocol.ids import ZERO_HASH, GroupId, RolloutId, TaskId, hash_from_bytes, hash_to_bytes, is_hash

pytestmark = pytest.mark.unit

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


def test_rollout_id__example__reads_as_a_path_and_sorts_by_task_group_sibling():
    ids = [RolloutId(task=TaskId(t), group=GroupId(g), sibling=s) for t, g, s in ((7, 1, 2), (7, 0, 9), (2, 5, 5))]
    assert [str(each) for each in sorted(ids)] == ["2/5/5", "7/0/9", "7/1/2"]


@given(st.binary(min_size=32, max_size=32))
def test_hash__any_32_bytes__round_trip(raw):
    text = hash_from_bytes(raw)
    assert text == "0x" + raw.hex()
    assert is_hash(text)
    assert hash_to_bytes(text) == raw


@pytest.mark.parametrize("size", [0, 20, 31, 33, 64])
def test_hash_from_bytes__another_length__raises(size):
    with pytest.raises(ValueError, match="bytes instead of 32"):
        hash_from_bytes(bytes(size))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x",
        "00" * 33,
        "0x" + "0" * 63,
        "0x" + "0" * 65,
        "0x" + "g" * 64,
        "0X" + "0" * 64,
        "0x" + "AB" * 32,
        "0x" + "ab " * 21 + " ",  # bytes.fromhex skips blanks, so it would read 21 bytes.
        "0x" + "0" * 63 + "\n",
        "0x" + "0" * 64 + "\n",
        "0x" + "٠" * 64,
    ],
)
def test_hash_to_bytes__not_a_hash__raises(text):
    assert not is_hash(text)
    with pytest.raises(ValueError, match="64 lower-case"):
        hash_to_bytes(text)


def test_zero_hash__is_32_zero_bytes():
    assert hash_to_bytes(ZERO_HASH) == bytes(32)


def test_canonical__worked_example__sorted_without_blanks_in_utf8():
    assert (
        canonical.to_bytes({"b": [1, 2.5], "a": {"y": None, "x": "é"}})
        == '{"a":{"x":"é","y":null},"b":[1,2.5]}'.encode()
    )


@given(st.dictionaries(st.text(), values, max_size=4))
def test_canonical__any_value__round_trips_and_has_one_byte_string(value):
    data = canonical.to_bytes(value)
    assert json.loads(data) == value
    assert canonical.to_bytes(dict(reversed(value.items()))) == data
    assert canonical.to_bytes(json.loads(data)) == data


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_canonical__not_finite__raises(value):
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical.to_bytes({"x": value})


def test_sha256__known_answers_of_fips_180__are_reproduced():
    assert canonical.sha256(b"abc") == "0xba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert canonical.sha256(b"") == "0x" + hashlib.sha256().hexdigest()
