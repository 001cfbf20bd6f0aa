"""Delta files of whole images: their blocks, the smallest method of each block, all dtypes, and hostile files."""

import contextlib
import functools
import io
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from covey.errors import ProtocolError
from covey.protocol.ids import ZERO_HASH
from covey.protocol.policy_record import PolicyRecord, TensorRow
from covey.shardcast.delta import image_codec
from covey.shardcast.delta.image_codec import (
    DeltaFile,
    ImageBlock,
    Method,
    compute_max_bytes,
    encode_image,
    list_blocks,
)
from tests.unit.covey.shardcast.delta.test_block_codec import take_step

pytestmark = pytest.mark.unit


def encode(
    parent: np.ndarray,
    child: np.ndarray,
    blocks: list[ImageBlock],
    threads: int = 1,
    report: Callable[[int], None] | None = None,
) -> bytes:
    file = io.BytesIO()
    size = encode_image(parent, child, blocks=blocks, file=file, threads=threads, report=report)
    assert file.tell() == size == len(file.getvalue()) <= compute_max_bytes(blocks)
    return file.getvalue()


def restore(parent: np.ndarray, data: bytes, blocks: list[ImageBlock]) -> np.ndarray:
    """Return the child. Guard bytes around it show that nothing is written outside a block."""
    memory = np.full(len(parent) + 128, 0xAB, np.uint8)
    child, delta = memory[64:-64], DeltaFile(data, blocks)
    try:
        for index, block in enumerate(blocks):
            delta.apply(index, block.cut(parent), block.cut(child))
    finally:
        assert (memory[:64] == 0xAB).all()
        assert (memory[-64:] == 0xAB).all()
    return child


def try_to_restore(parent: np.ndarray, data: bytes, blocks: list[ImageBlock]) -> np.ndarray | None:
    """Return the child, or None if the file is refused."""
    with contextlib.suppress(ProtocolError):
        return restore(parent, data, blocks)
    return None


def split(data: bytes) -> list[bytes]:
    """Return the encoded blocks, read by an independent reader of the format."""
    (count,) = struct.unpack_from("<I", data, 4)
    lengths = struct.unpack_from(f"<{count}I", data, 8)
    starts = [8 + 4 * count + sum(lengths[:i]) for i in range(count)]
    assert data[:4] == b"CVD1"
    assert starts[-1] + lengths[-1] == len(data)
    return [data[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def join(*coded: bytes) -> bytes:
    return b"CVD1" + struct.pack(f"<{len(coded) + 1}I", len(coded), *map(len, coded)) + b"".join(coded)


def cut_image(size: int, *, block: int = 20_000, is_bfloat16: bool = True) -> list[ImageBlock]:
    return [ImageBlock(start, min(block, size - start), is_bfloat16) for start in range(0, size, block)]


@functools.cache
def build_mixed() -> tuple[np.ndarray, np.ndarray, list[ImageBlock], bytes]:
    """Return two images with one block of each method, their blocks and their delta."""
    bits = [array.view(np.uint8) for array in take_step(6000, 1e-5)]
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 256, 400).astype(np.uint8)
    moved = np.where(rng.random(400) < 0.02, 1, 0).astype(np.uint8)
    parent = np.concatenate((bits[0], noise, noise, noise))
    child = np.concatenate((bits[1], noise, noise ^ moved, rng.integers(0, 256, 400).astype(np.uint8)))
    blocks = [ImageBlock(0, 12_000, True), *(ImageBlock(12_000 + 400 * i, 400, False) for i in range(3))]
    data = encode(parent, child, blocks)
    assert [block[0] for block in split(data)] == [Method.CLASS_GAPS, Method.SAME, Method.XOR, Method.RAW]
    return parent, child, blocks, data


def test_list_blocks__three_dtypes__sections_are_cut_on_their_own(monkeypatch: pytest.MonkeyPatch):
    """The sections have 4 * 3, 2 * (8 + 1 + 3) and 2 * 5 bytes, in blocks of ten bytes."""
    monkeypatch.setattr(image_codec, "BLOCK_BYTES", 10)
    shapes = [("F32", (3,)), ("BF16", (2, 4)), ("BF16", ()), ("BF16", (3,)), ("F16", (5,))]
    rows = [TensorRow(name=f"t{i}", dtype=d, shape=s, digest=ZERO_HASH) for i, (d, s) in enumerate(shapes)]
    record = PolicyRecord(pool=1, step=0, tensors=tuple(sorted(rows, key=lambda row: row.layout_key)), files=())
    blocks = list_blocks(record)
    assert blocks == (
        ImageBlock(0, 10, False),
        ImageBlock(10, 2, False),
        ImageBlock(12, 10, True),
        ImageBlock(22, 10, True),
        ImageBlock(32, 4, True),
        ImageBlock(36, 10, False),
    )
    assert blocks[-1].offset + blocks[-1].size == record.size


def test_encode__three_blocks__each_has_the_method_that_suits_it():
    parent, child = take_step(25_000, 1e-6)
    child[:10_000] = parent[:10_000]
    child[10_000:20_000] = np.random.default_rng(0).integers(0, 1 << 16, 10_000)
    before, after, blocks = parent.view(np.uint8), child.view(np.uint8), cut_image(50_000)
    data = encode(before, after, blocks)
    assert [block[0] for block in split(data)] == [Method.SAME, Method.RAW, Method.CLASS_GAPS]
    assert [len(block) for block in split(data)][:2] == [1, 20_001]
    assert (restore(before, data, blocks) == after).all()


@pytest.mark.parametrize("place", [0, 65_535, 65_536, 199_999])
def test_encode__only_one_byte_differs__is_not_the_same(place: int):
    parent = np.zeros(200_000, np.uint8)
    child = parent.copy()
    child[place] = 1
    blocks = cut_image(200_000, block=200_000)
    data = encode(parent, child, blocks)
    assert split(data)[0][0] == Method.CLASS_GAPS
    assert (restore(parent, data, blocks) == child).all()


@pytest.mark.parametrize("sizes", [(10, 9), (9, 10), (11, 11)])
def test_encode__images_of_another_size__are_the_callers_mistake(sizes: tuple[int, int]):
    with pytest.raises(ValueError, match="are not images of 10 bytes"):
        encode(*(np.zeros(size, np.uint8) for size in sizes), cut_image(10))


def test_encode__several_threads__give_the_same_file_in_order_with_reports():
    parent, child = (array.view(np.uint8) for array in take_step(30_000, 1e-5))
    blocks, reports = cut_image(60_000, block=4000), list[int]()
    assert encode(parent, child, blocks, 3, reports.append) == encode(parent, child, blocks)
    assert reports == list(range(1, 16))


def test_encode__many_blocks__only_twice_as_many_as_threads_run_ahead(monkeypatch: pytest.MonkeyPatch):
    started = list[int]()

    def encode_block(parent: np.ndarray, child: np.ndarray, *, is_bfloat16: bool) -> bytes:
        started.append(len(parent))
        return b"\0"

    monkeypatch.setattr(image_codec, "_encode_block", encode_block)
    ahead = list[int]()
    image = np.zeros(200, np.uint8)
    encode(image, image, cut_image(200, block=1), 2, lambda written: ahead.append(len(started) - written))
    assert len(started) == 200
    assert max(ahead) < 4


def test_encode__worst_case__is_not_larger_than_the_maximum():
    rng = np.random.default_rng(0)
    parent, child = (rng.integers(0, 256, 60_000).astype(np.uint8) for _ in range(2))
    blocks = cut_image(60_000)
    data = encode(parent, child, blocks)
    assert len(data) == compute_max_bytes(blocks) == 8 + 3 * 4 + 60_003


@pytest.mark.parametrize("size", [1, 19_999, 20_001, 60_000])
def test_apply__bytes_of_another_dtype__are_restored(size: int):
    rng = np.random.default_rng(size)
    parent = rng.integers(0, 256, size).astype(np.uint8)
    child = np.where(rng.random(size) < 0.01, rng.integers(0, 256, size), parent).astype(np.uint8)
    blocks = cut_image(size, is_bfloat16=False)
    data = encode(parent, child, blocks)
    assert {block[0] for block in split(data)} <= {Method.SAME, Method.XOR, Method.RAW}
    assert (restore(parent, data, blocks) == child).all()
    if size == 60_000:
        assert len(data) < size / 8


def test_apply__a_path_of_deltas_in_place__gives_the_last_image():
    parent, child, blocks, there = build_mixed()
    back = encode(child, parent, blocks)
    image = parent.copy()
    for index, block in enumerate(blocks):
        for data in (there, back, there):
            DeltaFile(data, blocks).apply(index, block.cut(image), block.cut(image))
    assert (image == child).all()


def test_apply__several_threads__give_the_same_image():
    parent, child = (array.view(np.uint8) for array in take_step(40_000, 1e-5))
    blocks = cut_image(80_000, block=4000)
    delta, found = DeltaFile(encode(parent, child, blocks), blocks), np.zeros_like(parent)
    with ThreadPoolExecutor(4) as executor:
        list(executor.map(lambda i: delta.apply(i, blocks[i].cut(parent), blocks[i].cut(found)), range(20)))
    assert (found == child).all()


def test_apply__read_only_parent_of_a_file__is_accepted():
    parent, child, blocks, data = build_mixed()
    assert (restore(np.frombuffer(parent.tobytes(), np.uint8), data, blocks) == child).all()


@pytest.mark.parametrize("sizes", [(399, 400), (400, 399), (401, 401)])
def test_apply__arrays_of_another_size__are_the_callers_mistake(sizes: tuple[int, int]):
    _, _, blocks, data = build_mixed()
    with pytest.raises(ValueError, match="are not a block of 400 bytes"):
        DeltaFile(data, blocks).apply(1, *(np.zeros(size, np.uint8) for size in sizes))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "file of 0 bytes is not a delta of 2 blocks"),
        (b"CVD1\x02\0\0\0" + bytes(7), "file of 15 bytes is not"),
        (b"CVD2\x02\0\0\0" + bytes(8), "file of 16 bytes is not"),
        (join(b"\0"), "is not a delta of 2 blocks"),
        (join(b"\0", b"\0", b"\0"), "is not a delta of 2 blocks"),
        (join(b"\0", b""), "an encoded block is empty"),
        (join(b"\0", b"\3" + bytes(11)), "larger than the block itself"),
        (join(b"\0", b"\3" + bytes(10))[:-1], "the blocks end at byte 28, but the file has 27 bytes"),
        (join(b"\0", b"\3" + bytes(10)) + b"\0", "the blocks end at byte 28, but the file has 29 bytes"),
        (b"CVD1\x02\0\0\0" + b"\xff" * 8, "larger than the block itself"),
    ],
)
def test_delta_file__header_that_contradicts_the_blocks_or_the_size__is_refused(data: bytes, message: str):
    with pytest.raises(ProtocolError, match=f"bad_delta: .*{message}"):
        DeltaFile(data, cut_image(20, block=10))


@pytest.mark.parametrize(
    "coded",
    [
        b"\x00\x00",
        b"\x04",
        b"\xff",
        bytes([Method.RAW]) + bytes(9),
        bytes([Method.XOR]),
        bytes([Method.XOR]) + b"no zstd",
        bytes([Method.CLASS_GAPS]) + bytes(5),
    ],
)
def test_apply__malformed_block__is_refused(coded: bytes):
    with pytest.raises(ProtocolError, match="bad_delta"):
        restore(np.zeros(10, np.uint8), join(coded), cut_image(10))


@pytest.mark.parametrize("size", [500, 1001, 1 << 20])
def test_apply__xor_of_another_size__is_refused(size: int):
    (coded,) = split(encode(np.zeros(1000, np.uint8), np.full(1000, 7, np.uint8), cut_image(1000, is_bfloat16=False)))
    assert coded[0] == Method.XOR
    with pytest.raises(ProtocolError, match="bad_delta: a block"):
        restore(np.zeros(size, np.uint8), join(coded), cut_image(size, block=size, is_bfloat16=False))


def test_apply__class_gaps_for_another_dtype__is_refused():
    parent, _, _, data = build_mixed()
    other = [ImageBlock(0, 12_000, False)]
    with pytest.raises(ProtocolError, match=r"bad_delta: .* method 1"):
        restore(parent[:12_000], join(split(data)[0]), other)


@settings(max_examples=300)
@given(st.integers(0, 1 << 30), st.integers(1, 255))
@example(4, 1)
@example(8, 0x80)
def test_restore__a_changed_byte__is_refused_or_gives_some_image(place: int, change: int):
    """The result is not compared, because zstd ignores some bits, which leave the image unchanged."""
    parent, child, blocks, data = build_mixed()
    wrong = bytearray(data)
    wrong[place % len(data)] ^= change
    found = try_to_restore(parent, bytes(wrong), blocks)
    assert found is None or len(found) == len(child)


@settings(max_examples=100)
@given(st.integers(0, 1 << 30))
def test_restore__cut_off__is_refused(size: int):
    parent, _, blocks, data = build_mixed()
    with pytest.raises(ProtocolError, match="bad_delta"):
        restore(parent, data[: size % len(data)], blocks)


@settings(max_examples=300)
@given(st.sampled_from(list(Method)), st.binary(max_size=300))
def test_restore__a_block_of_random_bytes__is_refused_or_gives_an_image(method: Method, noise: bytes):
    found = try_to_restore(np.zeros(400, np.uint8), join(bytes([method]) + noise), cut_image(400))
    assert found is None or len(found) == 400
