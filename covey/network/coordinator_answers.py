"""Answers of a coordinator, read with limits on size and time, and the errors that they stand for."""

import time
from typing import TypeVar

import httpx
from pydantic import ValidationError

from covey.errors import ProtocolError, TransientError
from covey.protocol.api.common import Body, ErrorBody

BodyType = TypeVar("BodyType", bound=Body)
MIN_BANDWIDTH = 100_000
"""Minimum bandwidth in bytes per second. A slower transfer is aborted."""
TRANSIENT = (408, 425, 429)
"""Status codes after which the client retries later, for example those of a proxy."""


class DripError(Exception):
    """A response arrived more slowly than the minimum bandwidth allows."""


class ClockError(ProtocolError):
    """The coordinator refused the timestamp of a request. `time` is the coordinator's time."""

    def __init__(self, message: str, its_time: int) -> None:
        super().__init__("expired_request", message, status=401)
        self.time = its_time


async def read_bounded(response: httpx.Response, max_bytes: int, patience: float) -> bytes:
    """Read a body. Raises DripError if it is too slow, and ProtocolError("oversized") above `max_bytes` bytes."""
    pieces, size, started = [], 0, time.monotonic()
    async for piece in response.aiter_raw():
        size += len(piece)
        if time.monotonic() - started > patience + size / MIN_BANDWIDTH:
            raise DripError(f"the response is too slow, with {size} bytes in {patience:.0f} s")
        if size > max_bytes:
            raise ProtocolError("oversized", f"the response exceeds {max_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def to_error(status: int, body: bytes) -> ProtocolError | TransientError:
    """Return the error that a response stands for. One without a valid body has the code "bad_answer"."""
    try:
        error = ErrorBody.model_validate_json(body)
    except ValidationError:
        error = ErrorBody(
            code="bad_answer", message=f"the response has status {status} and no valid error body", time=0
        )
    if status >= 500 or status in TRANSIENT:
        return TransientError(error.code, error.message)
    if error.code == "expired_request":
        return ClockError(error.message, error.time)
    return ProtocolError(error.code, error.message, status=status)


def dump_body(body: Body) -> bytes:
    """Return a body as JSON."""
    return body.model_dump_json().encode()


def parse_body(kind: type[BodyType], data: bytes) -> BodyType:
    """Parse a body. Raises ProtocolError("bad_answer")."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise ProtocolError("bad_answer", f"the coordinator's response is not a valid {kind.__name__}") from error


def parse_optional(kind: type[BodyType], data: bytes) -> BodyType | None:
    """Parse a body that may be null. Raises ProtocolError("bad_answer")."""
    return None if data == b"null" else parse_body(kind, data)
