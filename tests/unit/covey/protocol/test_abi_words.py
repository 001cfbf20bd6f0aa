"""Words are those of eth_abi, and what does not fit its type is refused."""

import pytest
from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol.abi_words import encode_word
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.unit


@given(st.sampled_from([8, 64, 256]).flatmap(lambda bits: st.tuples(st.just(bits), st.integers(0, 2**bits - 1))))
def test_encode_word__number__is_that_of_eth_abi(pair: tuple[int, int]):
    bits, value = pair
    assert encode_word(f"uint{bits}", value) == encode([f"uint{bits}"], [value])


def test_encode_word__address_and_hash__are_those_of_eth_abi():
    assert encode_word("address", make_address("a")) == encode(["address"], [make_address("a")])
    digest = make_hash("a")
    assert encode_word("bytes32", digest) == encode(["bytes32"], [bytes.fromhex(digest[2:])])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("uint8", 256),
        ("uint64", -1),
        ("uint64", True),
        ("uint64", "1"),
        ("address", make_address("a").lower()),
        ("address", 5),
        ("bytes32", "0x12"),
        ("bytes32", make_hash("a").upper()),
    ],
)
def test_encode_word__value_that_does_not_fit__is_none(kind: str, value: object):
    assert encode_word(kind, value) is None
