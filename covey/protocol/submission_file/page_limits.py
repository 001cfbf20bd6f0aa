"""What the pages of a Parquet column hold, from their headers alone: a footer may say anything, and run lengths name
one value a billion times.

Called by `codec.decode` before anything is decoded.  Source: PageHeader of the Parquet format, in Thrift's compact
protocol.
"""

from dataclasses import dataclass

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
"""Types of pages, field 1 of a PageHeader."""
_PLACES = {_DATA: (5, 1, 2), _DATA_V2: (8, 1, 4)}
"""By type of page: the field of the header's struct, and in it those of the count of values and of the encoding."""
_MAX_FIELD = (1 << 15) - 1
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_MAX_DEPTH = 8
_MAX_HEADER = 1 << 14
"""Bytes of a page's header; statistics lie in it."""
_SIZES = {1: 0, 2: 0, 3: 1, 7: 8}
"""Bytes of a field by its Thrift type: booleans lie in the type itself, a byte, a double."""
_INT16, _INT32, _INT64, _BINARY, _LISTS, _STRUCT = 4, 5, 6, 8, (9, 10), 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The sums over one column chunk.  Example: Pages(values=40, decoded_bytes=160)."""

    values: int
    """Of all data pages, as their own headers count them."""
    decoded_bytes: int
    """An upper bound of what the values decode to."""


def measure(data: bytes, start: int, size: int, *, most: int, width: int | None) -> Pages:
    """The pages in `data[start : start + size]`, which hold `most` values at most.

    `width`: bytes of a value, None where each has its own length.  Without a dictionary a value takes the bytes that it
    has; with one, it has at most those of the dictionary.  Raises ValueError for what is no row of pages, for more
    values, and for encodings that neither are plain nor name a dictionary.
    """
    if not 0 <= start <= start + size <= len(data):
        raise ValueError("a column lies outside the file")
    values = decoded = dictionary = 0
    place, end = start, start + size
    while place < end:
        header = _Header(data, place, min(end, place + _MAX_HEADER))
        head = header.read()
        raw, compressed = head.get((2,), -1), head.get((3,), -1)
        place = header.place + compressed
        if raw < 0 or compressed < 0 or place > end:
            raise ValueError("a page lies outside its column")
        kind = head.get((1,), -1)
        if kind == _DICTIONARY:
            if values or dictionary:
                raise ValueError("a dictionary is not the first page")
            dictionary = raw
            decoded += raw
            continue
        if kind not in _PLACES:
            raise ValueError(f"a page has the type {kind}")
        field, counted, encoded = _PLACES[kind]
        count, encoding = head.get((field, counted), -1), head.get((field, encoded), -1)
        values += count
        if count < 1 or values > most:
            raise ValueError(f"a page says that it holds {count} values")
        if encoding in (_PLAIN, _RLE):
            decoded += raw + count * (0 if width is None else width)
        elif encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
            decoded += raw + count * (dictionary if width is None else width)
        else:
            raise ValueError(f"a page has the encoding {encoding}")
    return Pages(values=values, decoded_bytes=decoded)


class _Header:
    """A Thrift struct of which 32-bit integers are kept, by the path of field numbers; `place` moves behind it.

    What readers may take in two ways is refused: a field that comes twice, a field number beyond 16 bits.
    """

    def __init__(self, data: bytes, place: int, end: int) -> None:
        self._data, self.place, self._end = data, place, end
        self._found: dict[tuple[int, ...], int] = {}

    def read(self) -> dict[tuple[int, ...], int]:
        self._read_struct(())
        return self._found

    def _read_struct(self, path: tuple[int, ...]) -> None:
        if len(path) > _MAX_DEPTH:
            raise ValueError("a page header is nested too deeply")
        number = 0
        while head := self._take():
            number = number + (head >> 4) if head >> 4 else self._read_integer()
            if not 0 <= number <= _MAX_FIELD:
                raise ValueError("a page header has a field of no lawful number")
            self._read_value(head & 15, (*path, number), in_list=False)

    def _read_value(self, kind: int, path: tuple[int, ...], *, in_list: bool) -> None:
        if kind == _INT32 and not in_list:
            if path in self._found:
                raise ValueError("a page header has a field twice")
            self._found[path] = self._read_integer()
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
            raise ValueError("a page header has a field of no known type")

    def _read_list(self, path: tuple[int, ...]) -> None:
        if len(path) > _MAX_DEPTH:
            raise ValueError("a page header is nested too deeply")
        head = self._take()
        count = head >> 4 if head >> 4 != 15 else self._read_varint()
        for _ in range(count):  # every item takes a byte at least, so that the end of the column ends this
            self._read_value(head & 15, (*path, -1), in_list=True)

    def _take(self) -> int:
        if self.place >= self._end:
            raise ValueError("a page header is cut off")
        self.place += 1
        return self._data[self.place - 1]

    def _skip(self, size: int) -> None:
        if size > self._end - self.place:
            raise ValueError("a page header is cut off")
        self.place += size

    def _read_varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._take()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number has too many bytes")

    def _read_integer(self) -> int:
        value = self._read_varint()
        return value >> 1 if value % 2 == 0 else -(value >> 1) - 1
