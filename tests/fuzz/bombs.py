"""Parquet files of about two kilobytes that decode to a hundred gigabytes, with an honest or a false footer.

Parquet stores a value once in a dictionary, and run lengths repeat it any number of times.
"""

import io
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from covey.protocol.submission_file.parquet import SCHEMA
from covey.protocol.submission_file.rows import Rollout
from tests.fuzz.thrift import BINARY, I32, I64, LIST, STRUCT, Struct, get, join_footer, put, split_footer, varint
from tests.fuzz.thrift import write_struct as to_bytes

PLAIN, RLE, RLE_DICTIONARY = 0, 3, 8
DATA_PAGE, DICTIONARY_PAGE = 0, 2
MAX_VALUES = (1 << 31) - 1
"""Maximum number of values that a page header can declare."""


def write_row(row: Rollout) -> bytes:
    """Return an honest row as the smallest possible file."""
    sink = io.BytesIO()
    table = pa.Table.from_pylist([asdict(row)], schema=SCHEMA)
    options: dict[str, Any] = {"store_schema": False, "write_statistics": False, "use_dictionary": False}
    pq.write_table(table, sink, compression="none", **options)
    return sink.getvalue()


def build_bomb(
    row: Rollout, column: str, *, value: bytes, count: int, claimed: int, pages: int = 1, disguise: Struct | None = None
) -> bytes:
    """Return `row` as a file whose list `column` contains `value` `pages` x `count` times.

    The footer declares `claimed` times. `value` is encoded as in Parquet, with its length for bytes. `disguise` are
    additional fields of the data pages' headers.
    """
    body, footer = split_footer(write_row(row))
    group: Struct = get(footer, 4)[1][0]
    chunks: list[Struct] = get(group, 1)[1]
    chunk = next(each for each in chunks if get(get(each, 3), 3)[1][0] == column.encode())
    meta: Struct = get(chunk, 3)
    start = len(body)
    dictionary = _page(DICTIONARY_PAGE, value, [[1, I32, 1], [2, I32, PLAIN]], header=7)
    data = dictionary
    for number in range(pages):
        head = [[1, I32, count], [2, I32, RLE_DICTIONARY], [3, I32, RLE], [4, I32, RLE]]
        data += _page(DATA_PAGE, _runs(count, is_first=number == 0), head, header=5, more=disguise)
    put(meta, 2, LIST, (I32, [PLAIN, RLE, RLE_DICTIONARY]))
    put(meta, 5, I64, claimed)
    for number in (6, 7):
        put(meta, number, I64, len(data))
    put(meta, 9, I64, start + len(dictionary))
    put(meta, 11, I64, start)
    return join_footer(body + data, footer)


def _page(kind: int, data: bytes, head: Struct, *, header: int, more: Struct | None = None) -> bytes:
    fields: Struct = [[1, I32, kind], [2, I32, len(data)], [3, I32, len(data)], [header, STRUCT, head]]
    return to_bytes(fields + (more or [])) + data


def _runs(count: int, *, is_first: bool) -> bytes:
    """Return levels and indices of `count` values in one list. Only the first value begins a row."""
    repeats = (varint(1 << 1) + b"\x00" if is_first else b"") + varint((count - is_first) << 1) + b"\x01"
    defined = varint(count << 1) + b"\x01"
    levels = b"".join(len(each).to_bytes(4, "little") + each for each in (repeats, defined))
    return levels + bytes([1]) + varint(count << 1) + b"\x00"


def add_note(file: bytes, size: int) -> bytes:
    """Return the same file, `size` bytes longer by a note in its footer."""
    body, footer = split_footer(file)
    note: Struct = [[1, BINARY, b"note"], [2, BINARY, b"x" * size]]
    put(footer, 5, LIST, (STRUCT, [note]))
    return join_footer(body, footer)
