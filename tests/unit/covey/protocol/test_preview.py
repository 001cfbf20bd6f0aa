"""Previews of exports: their bytes, and hostile ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.errors import ProtocolError
from covey.protocol import preview
from covey.protocol.ids import Hash
from covey.protocol.pieces import PIECE_BYTES, Piece
from covey.protocol.preview import MAX_PREVIEW_BYTES, PreviewRow, get_preview_path, parse_preview

pytestmark = pytest.mark.unit
ONE = Hash("0x" + "11" * 32)


def row(size: int, offset: int) -> PreviewRow:
    return PreviewRow(Piece(size, ONE), offset)


def encode(*rows: PreviewRow) -> bytes:
    return b"".join(each.to_bytes() for each in rows)


def test_row__bytes_by_hand() -> None:
    data = bytes.fromhex("11" * 32 + "00004000" + "0102000000000000")
    assert row(4 << 20, 513).to_bytes() == data
    assert parse_preview(data) == (row(4 << 20, 513),)
    assert row(3, 10).end == 13
    assert parse_preview(b"") == ()
    assert get_preview_path(7) == "/previews/7"


@given(st.lists(st.integers(1, PIECE_BYTES), max_size=6), st.randoms(use_true_random=False))
def test_parse_preview__neighbors_in_any_order__are_kept_in_that_order(sizes, random) -> None:
    rows = [row(size, 100 + sum(sizes[:index])) for index, size in enumerate(sizes)]
    random.shuffle(rows)
    assert parse_preview(encode(*rows)) == tuple(rows)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encode(row(1, 0))[:-1], "it has 43 bytes"),
        (b"x", "it has 1 bytes"),
        (encode(row(0, 0)), "empty, too large or too far away"),
        (encode(row(PIECE_BYTES + 1, 0)), "empty, too large or too far away"),
        (encode(row(2, (1 << 50) - 1)), "empty, too large or too far away"),
        (encode(row(1, (1 << 64) - 1)), "empty, too large or too far away"),
        (encode(row(4, 0), row(4, 3)), "overlap"),
        (encode(row(4, 10), row(20, 0)), "overlap"),
        (encode(row(4, 0), row(4, 0)), "overlap"),
        (bytes(44 * (MAX_PREVIEW_BYTES // 44 + 1)), "bytes"),
    ],
)
def test_parse_preview__hostile_bytes__are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason) as caught:
        parse_preview(data)
    assert (caught.value.code, caught.value.status) == ("bad_preview", 502)


def test_parse_preview__a_full_one__suffices_for_large_policies() -> None:
    assert MAX_PREVIEW_BYTES // preview.ROW_BYTES * PIECE_BYTES > 390e9
