"""What parent and child say to each other: a header in JSON and arrays in safetensors, each after its length.

Nothing is unpickled, and a frame's sizes are checked before it is read.
"""

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load, save

Value = str | int | float | bool | None
Arrays = Mapping[str, NDArray[Any]]
MAX_HEADER = 1 << 20
MAX_PAYLOAD = 4 << 30
"""Bytes.  The largest is every state of a batch, which a calibration asks for."""
_SIZES = struct.Struct(">IQ")


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A question or its answer.  Example: Frame("reload", {"folder": "policies/7"})."""

    kind: str
    values: Mapping[str, Value] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    call: int = 0
    """Number of the question, which its answer bears too: answers come in any order."""


def send(connection: socket.socket, frame: Frame) -> None:
    """Write one frame.  Raises OSError as sockets do."""
    header = json.dumps([frame.kind, frame.values, frame.call]).encode()
    payload = save(dict(frame.arrays)) if frame.arrays else b""
    _require_sizes(len(header), len(payload))
    for piece in (_SIZES.pack(len(header), len(payload)) + header, payload):
        connection.sendall(piece)


def receive(connection: socket.socket) -> Frame:
    """Read one frame.  Raises EOFError where the other side is gone, ValueError for a frame that is none."""
    header_size, payload_size = _SIZES.unpack(_read(connection, _SIZES.size))
    _require_sizes(header_size, payload_size)
    kind, values, call = json.loads(_read(connection, header_size))
    payload = _read(connection, payload_size)
    return Frame(kind, values, load(bytes(payload)) if payload else {}, call)


def _read(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise EOFError("the other process closed the connection")
        view = view[count:]
    return data


def _require_sizes(header: int, payload: int) -> None:
    if header > MAX_HEADER or payload > MAX_PAYLOAD:
        raise ValueError(f"a frame of {header} and {payload} bytes is over {MAX_HEADER} and {MAX_PAYLOAD}")
