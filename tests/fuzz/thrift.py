"""Thrift's compact protocol as plain lists, read and written. Parquet encodes its footer and page headers with it.

A struct is a list of [field id, type, value]. A list is (element type, items). All other values are ints, bytes and
bools.
"""

from typing import Any

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)
Struct = list[list[Any]]


class Reader:
    """Reads a struct that begins at `place`. Afterwards `place` is the position after the struct."""

    def __init__(self, data: bytes, place: int = 0) -> None:
        self.data, self.place = data, place

    def read_struct(self) -> Struct:
        fields: Struct = []
        number = 0
        while (head := self._take(1)[0]) != STOP:
            number = number + (head >> 4) if head >> 4 else _unzigzag(self._varint())
            kind = head & 15
            fields.append([number, kind, self._read(kind, in_list=False)])
        return fields

    def _read(self, kind: int, *, in_list: bool) -> Any:
        if kind in (TRUE, FALSE):
            return (self._take(1)[0] if in_list else kind) == TRUE
        if kind == BYTE:
            return self._take(1)[0]
        if kind in (I16, I32, I64):
            return _unzigzag(self._varint())
        if kind == DOUBLE:
            return self._take(8)
        if kind == BINARY:
            return self._take(self._varint())
        if kind in (LIST, SET):
            head = self._take(1)[0]
            count = head >> 4 if head >> 4 != 15 else self._varint()
            return (head & 15, [self._read(head & 15, in_list=True) for _ in range(count)])
        if kind == STRUCT:
            return self.read_struct()
        raise ValueError(f"type {kind} does not occur in Parquet")

    def _take(self, size: int) -> bytes:
        piece = self.data[self.place : self.place + size]
        self.place += size
        return piece

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value


def write_struct(fields: Struct) -> bytes:
    """Return the bytes of a struct. Field ids are written in full, which every reader accepts."""
    return b"".join(_write_field(*each) for each in fields) + bytes([STOP])


def _write_field(number: int, kind: int, value: Any) -> bytes:
    if kind in (TRUE, FALSE):
        kind = TRUE if value else FALSE
    return bytes([kind]) + varint(_zigzag(number)) + _write(kind, value, in_list=False)


def _write(kind: int, value: Any, *, in_list: bool) -> bytes:
    if kind in (TRUE, FALSE):
        return bytes([TRUE if value else FALSE]) if in_list else b""
    if kind == BYTE:
        return bytes([value & 255])
    if kind in (I16, I32, I64):
        return varint(_zigzag(value))
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return varint(len(value)) + value
    if kind in (LIST, SET):
        element, items = value
        return bytes([0xF0 | element]) + varint(len(items)) + b"".join(_write(element, x, in_list=True) for x in items)
    return write_struct(value)


def varint(value: int) -> bytes:
    """Encode an unsigned number with seven bits per byte."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> int:
    return value * 2 if value >= 0 else -value * 2 - 1


def _unzigzag(value: int) -> int:
    return value >> 1 if value % 2 == 0 else -(value >> 1) - 1


def get(fields: Struct, number: int) -> Any:
    """Return the value of a field. Raises KeyError if the field is absent."""
    for found, _, value in fields:
        if found == number:
            return value
    raise KeyError(number)


def put(fields: Struct, number: int, kind: int, value: Any) -> None:
    """Set a field, or insert it in order."""
    for each in fields:
        if each[0] == number:
            each[1:] = [kind, value]
            return
    fields.append([number, kind, value])
    fields.sort(key=lambda each: each[0])


def read_footer(file: bytes) -> Struct:
    """Return the FileMetaData of a Parquet file."""
    size = int.from_bytes(file[-8:-4], "little")
    return Reader(file[-8 - size : -8]).read_struct()


def split_footer(file: bytes) -> tuple[bytes, Struct]:
    """Return (magic and pages, FileMetaData)."""
    size = int.from_bytes(file[-8:-4], "little")
    return file[: -8 - size], read_footer(file)


def join_footer(body: bytes, footer: Struct) -> bytes:
    """Return a Parquet file with this footer."""
    data = write_struct(footer)
    return body + data + len(data).to_bytes(4, "little") + b"PAR1"
