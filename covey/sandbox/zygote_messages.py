"""Messages between a sandbox and its zygote.

Each is one packet of JSON over a socket that no call can reach.  Descriptors travel with it: the factory's `setup` with
the order, payload and answer with a call.
"""

import json
from dataclasses import asdict, dataclass
from typing import Literal

from covey.sandbox.call_limits import CallLimits

MAX_MESSAGE_BYTES = 1 << 16
CALL, STOP = b"call", b"stop"
"""From the parent: run a call, and end the one that runs."""
Cause = Literal["exit", "signal", "cpu", "wall", "memory", "processes", "stopped"]
OK, REFUSED, OUT_OF_MEMORY, RAISED = b"o", b"r", b"m", b"x"
"""First byte of what a call writes: an answer, a ProtocolError, a MemoryError, another exception's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteOrder:
    """What a zygote is to serve, and how it shields its calls."""

    function: str
    limits: CallLimits
    scratch: str
    mounts_scratch: bool
    """Whether the zygote mounts a file system of `scratch_bytes` there, and then gives up its capabilities."""
    readable: tuple[str, ...]
    """Paths for Landlock; empty: do without it."""
    writable: tuple[str, ...]
    has_filter: bool
    """Whether system calls are filtered."""
    shares_user: bool
    """Whether other processes of this machine count as the same user's."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "ZygoteOrder":
        values = json.loads(data)
        return cls(**values | {"limits": CallLimits(**values["limits"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The zygote is ready, or why it is not: `kind` is "ready", "operator", "transient" or "other"."""

    kind: Literal["ready", "operator", "transient", "other"]
    code: str = ""
    message: str = ""
    fix: str = ""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Started":
        return cls(**json.loads(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a call ended, as the zygote saw it."""

    cause: Cause
    status: int
    """Exit status or number of the signal."""
    cpu_seconds: float
    """CPU seconds of the call and of all processes that it started."""
    peak_bytes: int
    """Largest memory in bytes that the call's first process held, libraries included."""
    is_clean: bool
    """Whether nothing is left of the call: no process and no file."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Ending":
        return cls(**json.loads(data))
