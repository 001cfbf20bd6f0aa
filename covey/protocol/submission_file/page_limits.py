"""Computes from its page headers how large a Parquet column becomes when it is decoded.

Nothing is decoded before this is known. The footer cannot be trusted, and a run length can repeat one value a
billion times. Source: PageHeader of the Parquet format, in Thrift's compact protocol.
"""

from dataclasses import dataclass

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
"""Page types: values of field 1 of a PageHeader."""
_COUNT_FIELDS = {_DATA: (5, 1, 2), _DATA_V2: (8, 1, 4)}
"""Field numbers by page type: the type's header struct and, within that struct, the value count and the
encoding.
"""
_MAX_FIELD = (1 << 15) - 1
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_MAX_DEPTH = 8
_MAX_HEADER = 1 << 14
"""Maximum size of a page header in bytes. The header includes statistics."""
_SIZES = {1: 0, 2: 0, 3: 1, 7: 8}
"""Size of a field in bytes by Thrift type, for two booleans, a byte and a double. A boolean is encoded in its
type.
"""
_INT16, _INT32, _INT64, _BINARY, _LISTS, _STRUCT = 4, 5, 6, 8, (9, 10), 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Totals over all pages of one column chunk. Example: Pages(values=40, decoded_bytes=160)."""

    values: int
    """Number of values in all data pages, according to the page headers."""
    decoded_bytes: int
    """Upper bound on the size of the decoded values, in bytes."""


def measure(data: bytes, start: int, size: int, *, most: int, width: int | None) -> Pages:
    """Return the totals of the pages in `data[start : start + size]`, which may contain at most `most` values.

    `width` is the size of a value in bytes, or None if values have different lengths. Such values take the bytes
    of the page in plain encoding. With a dictionary, each takes at most the bytes of the whole dictionary.

    Raises ValueError if the bytes are not a sequence of pages, if there are too many values, or if an encoding is
    neither plain nor based on a dictionary.
    """
    if not 0 <= start <= start + size <= len(data):
        raise ValueError("a column lies outside the Parquet file")
    values = decoded = dictionary = 0
    offset, end = start, start + size
    while offset < end:
        header = _Header(data, offset, min(end, offset + _MAX_HEADER))
        fields = header.read()
        raw, compressed = fields.get((2,), -1), fields.get((3,), -1)
        offset = header.offset + compressed
        if raw < 0 or compressed < 0 or offset > end:
            raise ValueError("a page lies outside its column")
        kind = fields.get((1,), -1)
        if kind == _DICTIONARY:
            if values or dictionary:
                raise ValueError("a dictionary page is not the first page of its column")
            dictionary = raw
            decoded += raw
            continue
        if kind not in _COUNT_FIELDS:
            raise ValueError(f"a page has the unsupported type {kind}")
        struct, count_field, encoding_field = _COUNT_FIELDS[kind]
        count, encoding = fields.get((struct, count_field), -1), fields.get((struct, encoding_field), -1)
        values += count
        if count < 1 or values > most:
            raise ValueError(f"a page header claims {count} values, which is not allowed")
        if encoding in (_PLAIN, _RLE):
            decoded += raw + count * (0 if width is None else width)
        elif encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
            decoded += raw + count * (dictionary if width is None else width)
        else:
            raise ValueError(f"a page has the unsupported encoding {encoding}")
    return Pages(values=values, decoded_bytes=decoded)


class _Header:
    """Reads one Thrift struct and keeps its 32-bit integers. `offset` is then the end of the struct.

    Input that readers could interpret in different ways is rejected: a repeated field, or a field number that
    does not fit into 16 bits.
    """

    def __init__(self, data: bytes, offset: int, end: int) -> None:
        self._data, self.offset, self._end = data, offset, end
        self._integers: dict[tuple[int, ...], int] = {}

    def read(self) -> dict[tuple[int, ...], int]:
        """Read the struct. Return its 32-bit integers, each under its path of field numbers."""
        self._read_struct(())
        return self._integers

    def _read_struct(self, path: tuple[int, ...]) -> None:
        if len(path) > _MAX_DEPTH:
            raise ValueError("a page header is nested too deeply")
        number = 0
        while head := self._take():
            number = number + (head >> 4) if head >> 4 else self._read_integer()
            if not 0 <= number <= _MAX_FIELD:
                raise ValueError("a page header has an invalid field number")
            self._read_value(head & 15, (*path, number), in_list=False)

    def _read_value(self, kind: int, path: tuple[int, ...], *, in_list: bool) -> None:
        if kind == _INT32 and not in_list:
            if path in self._integers:
                raise ValueError("a page header contains a field twice")
            self._integers[path] = self._read_integer()
        elif kind in (_INT16, _INT32, _INT64):
            self._read_integer()
        elif kind == _STRUCT:
            self._read_struct(path)
        elif kind == _BINARY:
            self._skip(self._read_varint())
        elif kind in _LISTS:
            self._read_list(path)
        elif kind in _SIZES:
            self._skip(max(_SIZES[kind], int(in_list)))
        else:
            raise ValueError("a page header contains a field of an unknown type")

    def _read_list(self, path: tuple[int, ...]) -> None:
        if len(path) > _MAX_DEPTH:
            raise ValueError("a page header is nested too deeply")
        head = self._take()
        count = head >> 4 if head >> 4 != 15 else self._read_varint()
        for _ in range(count):  # Every item takes at least one byte, so the end of the column limits this loop.
            self._read_value(head & 15, (*path, -1), in_list=True)

    def _take(self) -> int:
        if self.offset >= self._end:
            raise ValueError("a page header is truncated")
        self.offset += 1
        return self._data[self.offset - 1]

    def _skip(self, size: int) -> None:
        if size > self._end - self.offset:
            raise ValueError("a page header is truncated")
        self.offset += size

    def _read_varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._take()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number in a page header has too many bytes")

    def _read_integer(self) -> int:
        value = self._read_varint()
        return value >> 1 if value % 2 == 0 else -(value >> 1) - 1
