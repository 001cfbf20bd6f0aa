"""Messages between a sandbox and its zygote.

Each message is one packet of JSON, sent over a socket that no call can reach. Some messages carry descriptors: the
order carries the factory's `setup`, and each call carries input and output.
"""

import json
from dataclasses import asdict, dataclass
from typing import Literal

from covey.sandbox.call_limits import CallLimits

MAX_MESSAGE_BYTES = 1 << 16
CALL, STOP = b"call", b"stop"
"""Messages from the parent: run a call, and stop the running call."""
Cause = Literal["exit", "signal", "cpu", "wall", "memory", "processes", "stopped"]
"""What ended a call: its own exit, a signal, a limit, or a stop by the parent."""
OK, REFUSED, OUT_OF_MEMORY, RAISED = b"o", b"r", b"m", b"x"
"""First byte of a call's output. It is followed by the function's output, a ProtocolError, nothing after a MemoryError,
or the name of a different exception.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteOrder:
    """The function that a zygote serves, and how it shields its calls."""

    function: str
    """Factory of the function, as "module:attribute"."""
    limits: CallLimits
    """Limits of each call."""
    scratch: str
    """Path of the scratch folder inside the zygote."""
    mounts_scratch: bool
    """Whether the zygote mounts a file system of `scratch_bytes` at `scratch`, and then drops its capabilities."""
    readable: tuple[str, ...]
    """Paths that Landlock lets a call read. Empty if Landlock is not used."""
    writable: tuple[str, ...]
    """Paths that Landlock lets a call change."""
    has_filter: bool
    """Whether system calls are filtered."""
    shares_user: bool
    """Whether other processes on this machine have the same user, so that they count towards the process limit."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "ZygoteOrder":
        values = json.loads(data)
        return cls(**values | {"limits": CallLimits(**values["limits"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A zygote's report that it is ready, or why it cannot start."""

    kind: Literal["ready", "operator", "transient", "other"]
    """"ready", or the class of the error that the factory raised: OperatorError, TransientError or any other."""
    code: str = ""
    """Code of an OperatorError or TransientError."""
    message: str = ""
    """Message of the error. Empty if the zygote is ready."""
    fix: str = ""
    """Fix of an OperatorError."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Started":
        return cls(**json.loads(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A zygote's report about the end of a call."""

    cause: Cause
    """What ended the call."""
    status: int
    """Exit status, or number of the signal."""
    cpu_seconds: float
    """CPU seconds of the call and of all processes that it started."""
    peak_bytes: int
    """Peak memory of the call's first process in bytes, including libraries."""
    is_clean: bool
    """Whether the call left no process and no file behind."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Ending":
        return cls(**json.loads(data))
