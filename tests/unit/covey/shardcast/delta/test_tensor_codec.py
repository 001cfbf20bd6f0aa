"""Deltas of whole tensors: the smallest method for each block, any dtype, and hostile blocks."""

import numpy as np
import pytest

from covey.errors import ProtocolError
from covey.shardcast.delta import tensor_codec
from covey.shardcast.delta.tensor_codec import Method
from tests.unit.covey.shardcast.delta.test_block_codec import take_step

pytestmark = pytest.mark.unit


def restore(parent: np.ndarray, blocks: list[bytes], *, is_bfloat16: bool) -> np.ndarray:
    child = np.empty_like(parent)
    tensor_codec.decode(parent, blocks, child, is_bfloat16=is_bfloat16)
    return child


def to_octets(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.uint8)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tensor_codec, "BLOCK_BYTES", 20_000)


def test_encode__three_blocks__each_has_the_method_that_suits_it():
    parent, child = take_step(25_000, 1e-6)
    child[:10_000] = parent[:10_000]
    child[10_000:20_000] = np.random.default_rng(0).integers(0, 1 << 16, 10_000)
    blocks = list(tensor_codec.encode(to_octets(parent), to_octets(child), is_bfloat16=True))
    assert [block[0] for block in blocks] == [Method.SAME, Method.RAW, Method.CLASS_GAPS]
    assert len(blocks[0]) == 1
    assert len(blocks[1]) == 20_001
    assert (restore(to_octets(parent), blocks, is_bfloat16=True) == to_octets(child)).all()


@pytest.mark.parametrize("size", [0, 1, 19_999, 20_001, 60_000])
def test_decode__bytes_of_another_dtype__are_restored(size: int):
    rng = np.random.default_rng(size)
    parent = rng.integers(0, 256, size).astype(np.uint8)
    child = np.where(rng.random(size) < 0.01, rng.integers(0, 256, size), parent).astype(np.uint8)
    blocks = list(tensor_codec.encode(parent, child, is_bfloat16=False))
    assert {block[0] for block in blocks} <= {Method.SAME, Method.XOR, Method.RAW}
    assert (restore(parent, blocks, is_bfloat16=False) == child).all()
    if size == 60_000:
        assert sum(map(len, blocks)) < size / 8


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x00\x00",
        b"\x04",
        bytes([Method.RAW]) + bytes(9),
        bytes([Method.XOR]) + b"no zstd",
        bytes([Method.CLASS_GAPS]) + bytes(5),
    ],
)
def test_decode__malformed_block__is_refused(block: bytes):
    with pytest.raises(ProtocolError, match="bad_delta"):
        restore(np.zeros(10, np.uint8), [block], is_bfloat16=True)


def test_decode__xor_of_the_wrong_size__is_refused():
    (long,) = tensor_codec.encode(np.zeros(1000, np.uint8), np.full(1000, 7, np.uint8), is_bfloat16=False)
    assert long[0] == Method.XOR
    for size in (10, 1001):
        with pytest.raises(ProtocolError, match="bad_delta: a block is not valid zstd"):
            restore(np.zeros(size, np.uint8), [long], is_bfloat16=False)


@pytest.mark.parametrize(("count", "message"), [(1, "fewer than 2 blocks"), (3, "more than 2 blocks")])
def test_decode__wrong_number_of_blocks__is_refused(count: int, message: str):
    with pytest.raises(ProtocolError, match=f"bad_delta: .*{message}"):
        restore(np.zeros(30_000, np.uint8), [b"\x00"] * count, is_bfloat16=False)


def test_decode__class_gaps_for_another_dtype__is_refused():
    parent, child = take_step(10_000, 1e-5)
    blocks = list(tensor_codec.encode(to_octets(parent), to_octets(child), is_bfloat16=True))
    assert blocks[0][0] == Method.CLASS_GAPS
    with pytest.raises(ProtocolError, match=r"bad_delta: .* method 01"):
        restore(to_octets(parent), blocks, is_bfloat16=False)
