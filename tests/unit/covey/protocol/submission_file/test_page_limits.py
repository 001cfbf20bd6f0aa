"""Page headers written by hand, headers of honest files, and bytes that are not headers."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.protocol.submission_file.page_limits import Pages, measure

pytestmark = pytest.mark.unit
# In Thrift's compact protocol a field is one byte (difference of the field number << 4 | type) and then the value. Type
# 5 is a zigzag integer (twice the number), 12 a struct, 8 a text with its length, 1 true and 9 a list. 0 ends a struct.
DATA = bytes.fromhex("1500 1508 1508 2c 1506 1500 1506 1506 00 00".replace(" ", ""))
"""Page of type 0 (data), 4 bytes raw and compressed. Data page header: 3 values, encoding 0, levels 3 and 3."""
DICTIONARY = bytes.fromhex("1504 1510 1510 4c 1504 1500 00 00".replace(" ", ""))
"""Page of type 2 (dictionary), 8 bytes raw and compressed. Dictionary page header: 2 values, encoding 0."""
NAMING = bytes.fromhex("1500 1508 1508 2c 150a 1510 1506 1506 00 00".replace(" ", ""))
"""Page of type 0, 4 bytes raw and compressed. Data page header: 5 values, encoding 8 (refers to a dictionary)."""


def test_measure__plain_page_by_hand__has_its_bytes_and_values():
    page = DATA + b"abcd"
    assert measure(page, 0, len(page), most=3, width=None) == Pages(values=3, decoded_bytes=4)
    assert measure(b"PAR1" + page * 2, 4, 2 * len(page), most=6, width=8) == Pages(values=6, decoded_bytes=2 * (4 + 24))


def test_measure__count_of_another_type__is_not_a_count():
    """Readers skip a field whose type differs from the format, so that there is no count at all."""
    page = DATA.replace(b"\x15\x06\x15\x00", b"\x16\x06\x15\x00", 1) + b"abcd"
    with pytest.raises(ValueError, match="claims -1 values"):
        measure(page, 0, len(page), most=3, width=8)


def test_measure__dictionary_by_hand__counts_its_size_for_every_value():
    column = DICTIONARY + b"abcdefgh" + NAMING + b"abcd"
    assert measure(column, 0, len(column), most=5, width=None) == Pages(values=5, decoded_bytes=8 + 4 + 5 * 8)
    assert measure(column, 0, len(column), most=5, width=4) == Pages(values=5, decoded_bytes=8 + 4 + 5 * 4)


@pytest.mark.parametrize(
    ("column", "most"),
    [
        (DATA + b"abcd", 2),  # More values than allowed.
        (DATA + b"abc", 3),  # A page that ends after its column.
        (DATA[:-1], 3),  # A truncated header.
        (DATA.replace(b"\x15\x06\x15\x00", b"\x15\x00\x15\x00", 1) + b"abcd", 3),  # No values.
        (DATA.replace(b"\x15\x06\x15\x00", b"\x15\x05\x15\x00", 1) + b"abcd", 3),  # Minus three values.
        (DATA.replace(b"\x15\x06\x15\x00", b"\x15\x06\x15\x0a", 1) + b"abcd", 3),  # Encoding 5 (delta).
        (DATA + b"abcd" + DICTIONARY + b"abcdefgh", 3),  # A dictionary after a data page.
        ((DICTIONARY + b"abcdefgh") * 2 + NAMING + b"abcd", 5),  # Two dictionaries.
        (b"\x1c" * 40, 3),  # Nested structs.
        (b"\x19" * 40, 3),  # Nested lists.
        (b"\x15" + b"\xff" * 20, 3),  # A number without an end.
        (b"\x18" + b"\xff\xff\xff\xff\x0f", 3),  # A text of gigabytes.
        (b"\x1b\x00", 3),  # A map.
        (b"\x19\xf1" + b"\xff" * 9 + b"\x01" + b"\x01" * 60_000, 3),  # A list of quintillions, in a long header.
        (b"\x00", 3),  # An empty header.
        (DATA.replace(b"\x15\x00", b"\x15\x02", 1) + b"abcd", 3),  # Type 1 (index).
        # Readers use the type. A data page with the header of a dictionary is still a data page, here of 3 values.
        (DATA[:-1] + DICTIONARY[6:].replace(b"\x4c", b"\x2c", 1) + b"abcd", 2),
        (DATA.replace(b"\x15\x06\x15\x00", b"\x15\x06\x05\x02\x06\x15\x00", 1) + b"abcd", 3),  # A repeated count.
        (b"\x05\x8a\x80\x08\x02" + DATA + b"abcd", 3),  # Field 65541, which 16 bits truncate to 5.
    ],
)
def test_measure__not_a_page__refused(column: bytes, most: int):
    with pytest.raises(ValueError, match=r"page|dictionary|number"):
        measure(column, 0, len(column), most=most, width=8)


@pytest.mark.parametrize(("start", "size"), [(-1, 4), (0, -1), (0, 10**9), (2**62, 1), (20, 20)])
def test_measure__outside_the_file__refused(start: int, size: int):
    with pytest.raises(ValueError, match="outside"):
        measure(DATA + b"abcd", start, size, most=3, width=None)


@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_measure__files_of_pyarrow__agree_with_their_footers(dictionary: bool, version: str, compression: str):
    numbers = pa.array([[i % 7] * (i % 5) for i in range(3000)], pa.list_(pa.int32()))
    table = pa.table({"a": numbers, "b": pa.array([b"x" * (i % 9) for i in range(3000)])})
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        use_dictionary=dictionary,
        data_page_version=version,
        compression=compression,
        data_page_size=512,
        row_group_size=1000,
    )
    metadata = pq.ParquetFile(sink).metadata
    for i in range(metadata.num_row_groups):
        for j, width in enumerate((8, None)):
            column = metadata.row_group(i).column(j)
            start = column.dictionary_page_offset or column.data_page_offset
            pages = measure(sink.getvalue(), start, column.total_compressed_size, most=column.num_values, width=width)
            assert pages.values == column.num_values
            values = table.column(j).slice(1000 * i, 1000).combine_chunks()
            size = 4 * len(values.flatten()) if j == 0 else sum(len(value) for value in values.to_pylist())
            assert pages.decoded_bytes >= size


@given(data=st.binary(max_size=200), most=st.integers(0, 1 << 40))
def test_measure__any_bytes__are_measured_or_refused(data: bytes, most: int):
    try:
        pages = measure(data, 0, len(data), most=most, width=8)
    except ValueError:
        return
    assert 0 <= pages.values <= most
