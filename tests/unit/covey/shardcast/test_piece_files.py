"""Pieces in files that are replaced, truncated and damaged."""

import os

import pytest

from covey.protocol.pieces import compute_blake3
from covey.shardcast.piece_files import Location, PieceChecks, get_stamp, open_piece, read_piece
from tests.fakes.served_policies import flip

pytestmark = pytest.mark.unit


@pytest.fixture
def piece(tmp_path):
    """Return a piece that starts at byte 5,000 of a file of 10,000 bytes."""
    path = tmp_path / "object"
    path.write_bytes(os.urandom(10_000))
    return Location(path, 5_000, 3_000, get_stamp(path)), path.read_bytes()[5_000:8_000]


def test_read_piece__any_offset__has_the_bytes(piece):
    location, data = piece
    assert read_piece(location) == data


def test_open_piece__file_removed_later__descriptor_stays_valid(piece):
    location, data = piece
    descriptor = open_piece(location)
    location.path.unlink()
    assert os.pread(descriptor, 3_000, 5_000) == data
    os.close(descriptor)
    assert open_piece(location) is None
    assert read_piece(location) is None


def test_open_piece__file_has_changed__is_none_and_closed(piece):
    location, _ = piece
    os.truncate(location.path, 6_000)
    before = os.listdir("/proc/self/fd")
    assert open_piece(location) is None
    assert os.listdir("/proc/self/fd") == before


def test_checks__remember_a_piece_until_its_file_changes(piece):
    location, data = piece
    checks, digest = PieceChecks(), compute_blake3(data)
    assert checks.get_result(digest, location) is None
    assert checks.check(digest, location)
    assert checks.get_result(digest, location) is True
    flip(location.path, 6_000)
    os.utime(location.path, ns=(0, 0))
    changed = Location(location.path, 5_000, 3_000, get_stamp(location.path))
    assert checks.get_result(digest, changed) is None
    assert not checks.check(digest, changed)
    assert checks.get_result(digest, changed) is False


def test_checks__stamp_is_outdated__is_not_sound(piece):
    location, data = piece
    flip(location.path, 0)
    os.utime(location.path, ns=(0, 0))
    assert not PieceChecks().check(compute_blake3(data), location)


def test_checks__forget(piece):
    location, data = piece
    checks = PieceChecks()
    checks.record(compute_blake3(data), location, is_sound=True)
    checks.forget(location.path)
    assert checks.get_result(compute_blake3(data), location) is None
