"""Seeded mutations of honest bytes: bit flips, cuts, insertions, splices, and edits of a Parquet footer."""

import copy
import io
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.thrift import FALSE, LIST, STRUCT, TRUE, Reader, join_footer, split_footer
from tests.fuzz.thrift import write_struct as to_bytes

EDGES = (0, 1, -1, 2, 127, 128, 255, 256, 65_535, 2**31 - 1, -(2**31), 2**31, 2**32, 2**63 - 1, -(2**63))


def mutate(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Apply one to three mutations of the plain bytes. Splices take bytes from `other`."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(PLAIN)(data, other, rng)
    return data


def _cut(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 2, 4, 8, 16, rng.randrange(len(data) + 1))))


def flip_bit(data: bytes, other: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    i = rng.randrange(len(data))
    return data[:i] + bytes([data[i] ^ 1 << rng.randrange(8)]) + data[i + 1 :]


def set_bytes(data: bytes, other: bytes, rng: random.Random) -> bytes:
    start, end = _cut(data, rng)
    fill = rng.choice((b"\x00", b"\xff", b"\x7f", b"\x80"))
    return data[:start] + fill * (end - start) + data[end:]


def truncate(data: bytes, other: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] if rng.random() < 0.7 else data[place:]


def insert(data: bytes, other: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.randbytes(rng.choice((1, 2, 4, 33))) + data[place:]


def delete(data: bytes, other: bytes, rng: random.Random) -> bytes:
    start, end = _cut(data, rng)
    return data[:start] + data[end:]


def repeat(data: bytes, other: bytes, rng: random.Random) -> bytes:
    start, end = _cut(data, rng)
    return data[:end] + data[start:end] + data[end:]


def splice(data: bytes, other: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.5:  # the head of one and the tail of another
        return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]
    start, end = _cut(data, rng)
    return data[:start] + other[start:end] + data[end:]


def swap_words(data: bytes, other: bytes, rng: random.Random) -> bytes:
    if len(data) < 4:
        return data
    i, j = sorted(rng.sample(range(0, len(data) - 1, 2), 2))
    return data[:i] + data[j : j + 2] + data[i + 2 : j] + data[i : i + 2] + data[j + 2 :]


PLAIN: tuple[Callable[[bytes, bytes, random.Random], bytes], ...] = (
    flip_bit, flip_bit, set_bytes, truncate, insert, delete, repeat, splice, swap_words,
)  # fmt: skip


# -- content of a Parquet file


def list_leaves(kind: int, value: Any) -> Iterator[tuple[Any, int]]:
    """Return (container, index in it) for every value of a Thrift struct, including nested structs.

    Containers are lists.
    """
    if kind == STRUCT:
        for each in value:
            yield each, 2
            yield from list_leaves(each[1], each[2])
    elif kind == LIST:
        for i, item in enumerate(value[1]):
            if value[0] == STRUCT:
                yield from list_leaves(STRUCT, item)
            else:
                yield value[1], i


def edit_struct(fields: list[Any], rng: random.Random) -> None:
    """Change one value, one list or one field somewhere in a Thrift struct."""
    container, i = rng.choice(list(list_leaves(STRUCT, fields)))
    value = container[i]
    if isinstance(value, bool):
        container[i] = not value
        container[1] = TRUE if not value else FALSE
    elif isinstance(value, int):
        container[i] = rng.choice((rng.choice(EDGES), value + rng.choice((-1, 1)), value * 2, rng.getrandbits(16)))
    elif isinstance(value, bytes):
        container[i] = mutate(value, b"group" + value, rng)
    elif isinstance(value, tuple) and value[1]:
        items = value[1]
        what = rng.randrange(4)
        if what == 0:
            items.pop(rng.randrange(len(items)))
        elif what == 1:
            items.append(copy.deepcopy(rng.choice(items)))
        elif what == 2:
            items.extend(copy.deepcopy(items) * rng.choice((1, 3, 60)))
        else:
            rng.shuffle(items)
    elif isinstance(value, list) and value:
        value.pop(rng.randrange(len(value)))


def edit_footer(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Replace the footer with a well-formed one that has different values."""
    body, footer = split_footer(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        edit_struct(footer, rng)
    return join_footer(body, footer)


def swap_footers(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Combine the pages of one file with the footer of the other."""
    return join_footer(split_footer(data)[0], split_footer(other)[1])


def lie_about_length(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Declare a wrong length for the footer."""
    size = int.from_bytes(data[-8:-4], "little")
    said = rng.choice((0, size - 1, size + 1, len(data), 2**31 - 1, 2**32 - 1, rng.randrange(2 * size)))
    return data[:-8] + said.to_bytes(4, "little") + data[-4:]


def edit_first_page(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Change the header of the first page. The following bytes move, unless the header keeps its length."""
    reader = Reader(data, 4)
    header = reader.read_struct()
    edit_struct(header, rng)
    return data[:4] + to_bytes(header) + data[reader.place :]


def swap_columns(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Exchange the values of two columns of the same type."""
    table = pq.read_table(io.BytesIO(data))
    a, b = rng.choice((("group", "sibling"), ("prompt", "tokens")))
    columns = {name: table.column(name) for name in table.column_names}
    columns[a], columns[b] = columns[b], columns[a]
    return _write(pa.Table.from_arrays(list(columns.values()), schema=table.schema), rng)


def reorder(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Reorder rows or columns, and drop or repeat some rows."""
    table = pq.read_table(io.BytesIO(data))
    if rng.random() < 0.3:
        return _write(table.select(rng.sample(table.column_names, rng.randint(1, table.num_columns))), rng)
    return _write(table.take(rng.choices(range(table.num_rows), k=table.num_rows)), rng)


def _write(table: pa.Table, rng: random.Random) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression=rng.choice(("zstd", "snappy", "none")), use_dictionary=rng.random() < 0.5)
    return sink.getvalue()


def mutate_parquet(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Apply one mutation to a file, either to its bytes or to its content."""
    kind = rng.choice((mutate, mutate, edit_footer, edit_footer, edit_footer, *PARQUET))
    return kind(data, rng.choice(others), rng)


PARQUET = (swap_footers, lie_about_length, edit_first_page, swap_columns, reorder)
