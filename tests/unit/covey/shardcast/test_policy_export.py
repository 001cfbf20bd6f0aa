"""Exports compared with the safetensors library, and files that no export has written."""

import json

import numpy as np
import pytest
from blake3 import blake3
from safetensors.numpy import load_file, save_file

from covey.errors import ProtocolError
from covey.protocol.ids import ZERO_HASH
from covey.protocol.pieces import PIECE_BYTES, compute_digest
from covey.protocol.policy_record import PIECES_FILE, WEIGHTS_FILE
from covey.protocol.transport import DELTA
from covey.shardcast.policy_export import (
    build_anchor,
    build_delta,
    build_record,
    build_row,
    find_export_damage,
    is_undamaged,
    read_layout,
    read_pieces,
    write_weights,
)
from tests.fakes.served_policies import flip

pytestmark = pytest.mark.unit
RNG = np.random.default_rng(5)
ARRAYS = {
    "z": RNG.random((3, 5)),  # F64 comes first, although its name is last
    "embed": RNG.integers(0, 255, (3, 1 << 20), np.uint8).view(np.float32),  # 3 MiB
    "a.scalar": np.array(1.5, np.float32),
    "large": RNG.integers(0, 255, (2 * PIECE_BYTES + 6) // 2 * 2, np.uint8).view(np.float16),
    "b": RNG.integers(0, 9, (7,), np.int8),
}
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "int8": "I8"}


@pytest.fixture
def export(tmp_path):
    """Return a folder with an export of ARRAYS."""
    rows = [build_row(name, DTYPES[str(array.dtype)], array.shape) for name, array in ARRAYS.items()]
    write_weights(tmp_path, rows, lambda row: memoryview(ARRAYS[row.name].tobytes()), threads=3)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    return tmp_path


def record_of(folder, step=3):
    return build_record(folder, pool=2, step=step, parent=ZERO_HASH)


def test_weights__are_what_safetensors_reads(export):
    loaded = load_file(export / WEIGHTS_FILE)
    assert set(loaded) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()


def test_layout__wide_dtypes_first__then_by_name(export):
    rows = read_layout(export)
    assert [row.name for row in rows] == ["z", "a.scalar", "embed", "large", "b"]
    assert [row.size for row in rows] == [120, 4, 3 << 20, 2 * PIECE_BYTES + 6, 7]


def test_record__each_digest_is_that_of_the_tensors_bytes(export):
    record = record_of(export)
    assert (record.pool, record.step, record.parent) == (2, 3, ZERO_HASH)
    assert {row.name: row.digest for row in record.tensors} == {
        name: compute_digest(array.tobytes()) for name, array in ARRAYS.items()
    }
    assert [(row.name, row.size) for row in record.files] == [("config.json", 2), ("merges.txt", 0)]
    assert record.files[0].digest == "0x" + blake3(b"{}").hexdigest()


def test_pieces_file__one_hash_per_piece__worked_out_by_hand(export):
    weights = (export / WEIGHTS_FILE).read_bytes()[-record_of(export).size :]
    sizes = [
        120 + 4 + (3 << 20),
        PIECE_BYTES,
        PIECE_BYTES,
        6,
        7,
    ]  # Three tensors share a piece, one has three pieces, and one has its own.
    expected, start = b"", 0
    for size in sizes:
        expected += blake3(weights[start : start + size]).digest()
        start += size
    assert start == len(weights)
    assert (export / PIECES_FILE).read_bytes() == expected
    pieces = build_anchor(export, record_of(export)).objects[0].pieces
    assert [piece.size for piece in pieces] == sizes


@pytest.mark.parametrize("stale", [None, b"", b"x" * 31, b"x" * 32 * 6])
def test_pieces_file__missing_or_of_another_length__is_computed(export, stale):
    record, path = record_of(export), export / PIECES_FILE
    pieces = read_pieces(export, read_layout(export))
    path.unlink() if stale is None else path.write_bytes(stale)
    assert read_pieces(export, read_layout(export)) == pieces
    assert record_of(export) == record
    assert is_undamaged(export)


def test_anchor__leads_to_its_record(export):
    record = record_of(export)
    manifest = build_anchor(export, record)
    manifest.require_reaches(record, None)
    assert [each.name for each in manifest.objects] == ["weights", "config.json", "merges.txt"]
    assert manifest.size == record.size + 2


def test_delta__has_the_files_that_differ(export, tmp_path):
    base = record_of(export)
    (export / "config.json").write_text('{"a": 1}')
    record, path = record_of(export, step=4), tmp_path / "delta"
    path.write_bytes(b"abc")
    manifest = build_delta(path, export, record=record, base=base)
    manifest.require_reaches(record, base)
    assert [each.name for each in manifest.objects] == [DELTA, "config.json"]
    assert (manifest.base, manifest.size) == (base.compute_hash(), 3 + 8)


def test_damage__any_byte_of_the_weights(export):
    record = record_of(export)
    size = (export / WEIGHTS_FILE).stat().st_size
    expected = {"pool": 2, "step": 3, "parent": ZERO_HASH}
    assert find_export_damage(export, record.compute_hash(), **expected) == ""
    for position in (0, 9, 4000, 4096, 4096 + 121, size // 2, size - 8, size - 1):
        flip(export / WEIGHTS_FILE, position)
        assert not is_undamaged(export), position
        assert find_export_damage(export, record.compute_hash(), **expected), position
        flip(export / WEIGHTS_FILE, position)
    assert is_undamaged(export)
    flip(export / PIECES_FILE)
    assert not is_undamaged(export)
    (export / PIECES_FILE).unlink()
    (export / "config.json").write_text("[]")
    assert "has the hash" in find_export_damage(export, record.compute_hash(), **expected)


def rewrite_header(folder, change):
    data = (folder / WEIGHTS_FILE).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = change(json.loads(data[8 : 8 + size]))
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    (folder / WEIGHTS_FILE).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header,  # The header is not padded to a page.
        lambda header: "{",
        lambda header: "[]",
        lambda header: {"b": 1},
        lambda header: {"b": {"dtype": "BOOL", "shape": [7], "data_offsets": [0, 7]}},
        lambda header: {"b": {"dtype": "I8", "shape": [-7], "data_offsets": [0, 7]}},
        lambda header: {"__metadata__": {}},
        lambda header: "\xff",
    ],
)
def test_header_that_no_export_wrote__is_refused(export, change):
    rewrite_header(export, change)
    for read in (read_layout, record_of):
        with pytest.raises(ProtocolError, match="was not written by a trainer's export") as caught:
            read(export)
        assert caught.value.code == "bad_export"
    assert not is_undamaged(export)


def test_file_of_another_writer__is_refused(tmp_path):
    save_file({"b": ARRAYS["b"], "a": ARRAYS["z"]}, tmp_path / WEIGHTS_FILE)
    with pytest.raises(ProtocolError, match="order of a policy record"):
        read_layout(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, b"\xff" * 100, (1 << 30).to_bytes(8, "little")])
def test_no_safetensors_file__is_refused_before_its_header_is_read(tmp_path, data):
    (tmp_path / WEIGHTS_FILE).write_bytes(data)
    with pytest.raises(ProtocolError) as caught:
        read_layout(tmp_path)
    assert caught.value.code == "bad_export"


@pytest.mark.parametrize("name", ["evil.py", "adapter_config.json", "pytorch_model.bin", ".hidden.json", "a b.json"])
def test_file_that_a_policy_must_not_contain__is_refused(export, name):
    (export / name).write_text("{}")
    with pytest.raises(ProtocolError, match="must not contain the file") as caught:
        record_of(export)
    assert caught.value.code == "bad_export"
