"""Pieces and digests: official BLAKE3 vectors, sizes worked out by hand, and the limit of one piece."""

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol.ids import hash_to_bytes
from covey.protocol.pieces import PIECE_BYTES, Piece, build_pieces, combine, compute_blake3, compute_digest, cut

pytestmark = pytest.mark.unit

VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
}
"""Hashes by length from test_vectors.json of the BLAKE3 team. The input counts from 0 to 250 and starts again."""


@pytest.mark.parametrize("size", VECTORS)
def test_compute_blake3__official_vectors(size: int):
    data = bytes(i % 251 for i in range(size))
    assert compute_blake3(data) == "0x" + VECTORS[size]
    assert compute_digest(data) == "0x" + VECTORS[size]


@pytest.mark.parametrize(("size", "sizes"), [(0, []), (1, [1]), (4, [4]), (5, [4, 1]), (8, [4, 4]), (11, [4, 4, 3])])
def test_cut__pieces_of_four_bytes__by_hand(size: int, sizes: list[int]):
    assert list(cut(size, 4)) == sizes


def test_cut__default__is_four_mebibytes():
    assert list(cut((4 << 20) + 1)) == [4 << 20, 1]


@given(st.binary(max_size=60), st.integers(1, 20))
def test_build_pieces__any_bytes__joined_again_under_their_hashes(data: bytes, piece_bytes: int):
    pieces, rest = build_pieces(memoryview(data), piece_bytes), data
    for piece in pieces:
        part, rest = rest[: piece.size], rest[piece.size :]
        assert piece == Piece(len(part), compute_blake3(part))
        assert len(part) == piece_bytes or not rest
    assert not rest


def test_combine__no_piece_one_piece_and_two_pieces():
    a, b = compute_blake3(b"a"), compute_blake3(b"b")
    assert combine([]) == "0x" + VECTORS[0]
    assert combine([a]) == a
    assert combine([a, b]) == "0x" + blake3(hash_to_bytes(a) + hash_to_bytes(b)).hexdigest()
    assert combine([b, a]) != combine([a, b])


def test_compute_digest__one_piece__is_the_plain_hash():
    data = bytes(PIECE_BYTES)
    assert compute_digest(data) == "0x" + blake3(data).hexdigest()


def test_compute_digest__one_byte_more__is_the_hash_of_two_hashes():
    data = bytes(PIECE_BYTES) + b"\x01"
    hashes = blake3(data[:-1]).digest() + blake3(b"\x01").digest()
    assert compute_digest(data) == "0x" + blake3(hashes).hexdigest()


def test_compute_digest__view_of_numbers__is_that_of_their_bytes():
    data = bytes(range(16))
    assert compute_digest(memoryview(data).cast("I")) == compute_blake3(data)
