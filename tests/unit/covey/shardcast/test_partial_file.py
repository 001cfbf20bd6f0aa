"""Downloads that resume after a crash, in any state of the file and its journal."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol.pieces import Piece, compute_blake3
from covey.shardcast.partial_file import PartialFile

pytestmark = pytest.mark.unit
PARTS = [b"a" * 100, b"b" * 7, b"c" * 100, b"d"]
PIECES = [Piece(len(part), compute_blake3(part)) for part in PARTS]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights"


def journal_of(path):
    return path.with_name("weights.journal")


def open_file(path, start=0):
    return PartialFile(path, PIECES, start=start)


def write(path, *indices, start=0):
    """Write pieces, as a download does before it is killed."""
    file = open_file(path, start)
    file.list_missing()
    for index in indices:
        file.write(index, memoryview(PARTS[index]))
    file.close()


def list_missing(path, start=0):
    file = open_file(path, start)
    missing = file.list_missing()
    file.close()
    return missing


def test_new_file__has_its_size_and_misses_everything(path):
    assert list_missing(path, start=10) == [0, 1, 2, 3]
    assert path.stat().st_size == 10 + 208


def test_pieces_in_any_order__behind_the_start__make_the_file(path):
    file = open_file(path, start=3)
    file.write_start(b"abc")
    for index in (2, 0, 3, 1):
        file.write(index, memoryview(PARTS[index]))
    file.close()
    assert path.read_bytes() == b"abc" + b"".join(PARTS)
    assert list_missing(path, start=3) == []


def test_download_continues__only_what_is_missing(path):
    write(path, 2, 0, start=5)
    assert list_missing(path, start=5) == [1, 3]
    write(path, 3, start=5)
    assert list_missing(path, start=5) == [1]


def test_journal_entry_without_bytes__piece_is_missing_again(path):
    write(path, 0, 1)
    data = bytearray(path.read_bytes())
    data[100:107] = bytes(7)
    path.write_bytes(data)
    assert list_missing(path) == [1, 2, 3]
    assert list_missing(path) == [1, 2, 3]


def test_bytes_without_journal_entry__are_not_searched_for(path):
    write(path, 0, 1, 2, 3)
    journal_of(path).unlink()
    assert list_missing(path) == [0, 1, 2, 3]


@pytest.mark.parametrize("torn", [1, 2, 3])
def test_torn_journal__later_entries_are_still_read(path, torn):
    write(path, 0, 2)
    journal_of(path).write_bytes(journal_of(path).read_bytes()[:-torn])
    assert list_missing(path) == [1, 2, 3]
    write(path, 3)
    assert list_missing(path) == [1, 2]


def test_sound_journal__is_not_rewritten__so_that_a_second_crash_loses_nothing(path):
    write(path, 2, 0)
    before = journal_of(path).stat()
    list_missing(path)
    assert journal_of(path).stat().st_mtime_ns == before.st_mtime_ns
    assert struct.unpack("<2I", journal_of(path).read_bytes()) == (2, 0)


def test_journal_of_another_file__costs_only_time(path):
    write(path)
    path.write_bytes(b"x" * 500)
    journal_of(path).write_bytes(struct.pack("<6I", 0, 1, 2, 3, 4, 1 << 31))
    assert list_missing(path) == [0, 1, 2, 3]
    assert path.stat().st_size == 208
    write(path, 1)
    assert list_missing(path) == [0, 2, 3]


def test_empty_object(tmp_path):
    file = PartialFile(tmp_path / "vocab.txt", [])
    assert file.list_missing() == []
    file.close()
    assert (tmp_path / "vocab.txt").read_bytes() == b""


@given(
    written=st.lists(st.integers(0, 3), max_size=6),
    damage=st.lists(st.tuples(st.booleans(), st.integers(0, 300), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 30),
)
def test_any_damage__what_is_not_missing_is_right(tmp_path_factory, written, damage, cut):
    path = tmp_path_factory.mktemp("file") / "weights"
    write(path, *written)
    for is_journal, position, value in damage:
        target = journal_of(path) if is_journal else path
        data = bytearray(target.read_bytes())
        if position < len(data):
            data[position] = value
            target.write_bytes(data)
    data = journal_of(path).read_bytes()
    journal_of(path).write_bytes(data[: max(0, len(data) - cut)])
    missing, offset, content = list_missing(path), 0, path.read_bytes()
    for index, part in enumerate(PARTS):
        assert index in missing or content[offset : offset + len(part)] == part
        offset += len(part)
    assert set(range(4)) - set(written) <= set(missing) or damage
    order = random.Random(1).sample(missing, len(missing))
    write(path, *order)
    assert list_missing(path) == []
    assert path.read_bytes() == b"".join(PARTS)
