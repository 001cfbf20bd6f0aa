"""Encoding of blocks of bfloat16 changes: any child is restored, sizes are near the entropy, and hostile bytes are
refused.
"""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from covey.errors import ProtocolError
from covey.shardcast.delta import block_codec
from covey.shardcast.delta.class_gaps import get_rank

pytestmark = pytest.mark.unit


def take_step(n: int, rate: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return bfloat16 bits of random weights before and after each weight moves by at most `rate`."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(n).astype(np.float32) * np.float32(0.02)
    moved = weights + np.float32(rate) * rng.uniform(-1, 1, n).astype(np.float32)
    parent, child = ((array.view(np.uint32) >> 16).astype(np.uint16) for array in (weights, moved.astype(np.float32)))
    return parent, child


def restore(parent: np.ndarray, data: bytes) -> np.ndarray:
    child = np.full_like(parent, 0xABCD)
    block_codec.decode(parent, data, child)
    return child


@settings(max_examples=80)
@given(st.integers(0, 300).flatmap(lambda n: st.tuples(arrays(np.uint16, n), arrays(np.uint16, n))))
def test_decode__any_two_arrays__gives_the_child(pair: tuple[np.ndarray, np.ndarray]):
    parent, child = pair
    assert (restore(parent, block_codec.encode(parent, child)) == child).all()


@pytest.mark.parametrize("rate", [0.0, 1e-6, 1e-4, 1.0])
def test_decode__a_step_of_any_size__gives_the_child_also_in_place(rate: float):
    parent, child = take_step(50_000, rate)
    data = block_codec.encode(parent, child)
    assert (restore(parent, data) == child).all()
    block_codec.decode(parent, data, parent)
    assert (parent == child).all()


def test_encode__a_small_step__is_within_three_percent_of_the_bound_given_the_exponent():
    parent, child = take_step(1 << 20, 1e-5)
    bound = 0.0
    for kind in range(256):
        of_class = (parent >> 7 & 255) == kind
        has_changed = of_class & (parent != child)
        n, m = int(of_class.sum()), int(has_changed.sum())
        if m:
            ranks = [np.array([int(get_rank(b)) for b in bits[has_changed].tolist()]) for bits in (parent, child)]
            bound += sum(k * np.log2(n / k) for k in (m, n - m) if k)
            values = np.unique(ranks[1] - ranks[0], return_counts=True)[1]
            bound += (values * np.log2(m / values)).sum()
    assert bound < 8 * len(block_codec.encode(parent, child)) < 1.03 * bound


def test_decode__every_byte_changed__is_refused_or_gives_some_child():
    parent, child = take_step(3000, 1e-4)
    data = block_codec.encode(parent, child)
    refused = 0
    for place in range(len(data)):
        for change in (1, 0x80, 0xFF):
            wrong = bytearray(data)
            wrong[place] ^= change
            try:
                assert (restore(parent, bytes(wrong)) != child).any()
            except ProtocolError:
                refused += 1
    assert refused > len(data)


@pytest.mark.parametrize("size", [0, 1, 27, 28, -1])
def test_decode__cut_off__is_refused(size: int):
    parent, child = take_step(3000, 1e-4)
    with pytest.raises(ProtocolError, match="bad_delta"):
        restore(parent, block_codec.encode(parent, child)[:size])


def build(header: bytes, states: tuple[int, ...] = (1 << 16,) * 4) -> bytes:
    return struct.pack("<3I4I", len(header), 0, 0, *states) + header


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "ends inside a number"),
        (b"\x80", "ends inside a number"),
        (b"\x80\x80\x80\x80\x01", "more than four bytes"),
        (b"\x01\x00", "too few numbers"),
        (b"\x00\x00", "too many numbers"),
        (b"\x01\x00\x00", "has 0 changes of one class"),
        (b"\x01\x00\x0b", "has 11 changes of one class"),
        (b"\x02\x00\x06\x00\x06", "has 12 changes"),
        (b"\x01\xff\x7f\x01", "changes of class 16383"),
        (b"\x01\x00\x01\x61" + bytes(0x61), "has 97 frequencies"),
        (b"\x01\x00\x01\x01\x80\x20\x01\x7f", "do not sum to 4096"),
    ],
)
def test_decode__hostile_header__is_refused(header: bytes, message: str):
    with pytest.raises(ProtocolError, match=f"bad_delta: .*{message}"):
        restore(np.zeros(10, np.uint16), build(header))


def test_decode__smallest_block__is_what_its_header_says():
    """The block has one change of class 0, with gap 0 and coded difference 0. Both tables have one symbol, so no word
    is needed.
    """
    child = restore(np.zeros(10, np.uint16), build(b"\x01\x00\x01" + b"\x01\x80\x20" * 2))
    assert child.tolist() == [1] + [0] * 9
