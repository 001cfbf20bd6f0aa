"""Messages between parent and subprocess: a JSON header and safetensors arrays, each preceded by its length.

Nothing is unpickled, and the sizes of a frame are checked before it is read.
"""

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

Value = str | int | float | bool | None
Arrays = Mapping[str, NDArray[Any]]
MAX_HEADER = 1 << 20
"""Maximum size of a header in bytes."""
MAX_PAYLOAD = 4 << 30
"""Maximum size of the arrays in bytes. A calibration sends the most: all hidden states of a batch."""
_SIZES = struct.Struct(">IQ")


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A request or its response. Example: Frame("reload", {"folder": "policies/7"})."""

    kind: str
    """Name of the request or response, for example "generate"."""
    values: Mapping[str, Value] = field(default_factory=dict)
    """Scalar values by name, sent as JSON."""
    arrays: Arrays = field(default_factory=dict)
    """Arrays by name, sent as safetensors."""
    call: int = 0
    """Number of the request. The response has the same number, because responses arrive in any order."""


def flatten(name: str, lengths: str, sequences: Sequence[tuple[int, ...]]) -> dict[str, NDArray[np.int64]]:
    """Return sequences of integers as two arrays: all numbers in sequence as `name`, and the lengths as `lengths`."""
    return {
        name: np.array(list(chain.from_iterable(sequences)), np.int64),
        lengths: np.array([len(each) for each in sequences], np.int64),
    }


def cut(flat: NDArray[Any], lengths: Sequence[int]) -> list[NDArray[Any]]:
    """Return the parts of an array with these lengths."""
    return np.split(flat, np.cumsum(lengths)[:-1])


def send(connection: socket.socket, frame: Frame) -> None:
    """Write one frame. Raises OSError if the socket fails, and ValueError if the frame is too large."""
    header = json.dumps([frame.kind, frame.values, frame.call]).encode()
    payload = save(dict(frame.arrays)) if frame.arrays else b""
    _require_sizes(len(header), len(payload))
    for piece in (_SIZES.pack(len(header), len(payload)) + header, payload):
        connection.sendall(piece)


def receive(connection: socket.socket) -> Frame:
    """Read one frame. Raises EOFError if the peer has closed the connection, and ValueError if the frame is invalid."""
    header_size, payload_size = _SIZES.unpack(_read(connection, _SIZES.size))
    _require_sizes(header_size, payload_size)
    header, payload = _read(connection, header_size), _read(connection, payload_size)
    try:
        kind, values, call = json.loads(header)
        return Frame(kind, values, load(bytes(payload)) if payload else {}, call)
    except (TypeError, SafetensorError) as error:
        raise ValueError(f"a frame from the other process cannot be read: {error}") from error


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
        raise ValueError(
            f"a frame with {header} header bytes and {payload} payload bytes exceeds the limits of "
            f"{MAX_HEADER} and {MAX_PAYLOAD}"
        )
