"""The child process of one call: it drops its rights, reads the payload, writes the output and exits.

`bind_zygote` drops as many rights as possible before the fork, because a child pays for each page that it touches.
"""

import math
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from covey.errors import ProtocolError
from covey.sandbox import landlock, seccomp
from covey.sandbox.call_limits import CallLimits
from covey.sandbox.zygote_messages import OK, OUT_OF_MEMORY, RAISED, REFUSED

OPEN_FILES = 128
"""Maximum number of open descriptors per process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shield:
    """Restrictions of a call."""

    limits: CallLimits
    """Limits of the call."""
    ruleset: int | None
    """Descriptor of the Landlock ruleset. None if the call runs without Landlock."""
    other_tasks: int | None
    """Number of this user's processes and threads outside the call. The kernel's process limit counts them too.

    None if the zygote is the only one.
    """


def bind_zygote(limits: CallLimits, *, has_filter: bool) -> None:
    """Set what calls inherit after the function is loaded: the limits and, if `has_filter`, the system call filter."""
    os.dup2(1, 2)  # standard output is /dev/null
    _limit(resource.RLIMIT_AS, _measure_address_space() + limits.memory_bytes)
    _limit(resource.RLIMIT_FSIZE, limits.scratch_bytes)
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE):
        _limit(kind, 0)
    # Python ignores these two signals, so that a program that writes forever would continue.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if has_filter:
        seccomp.restrict()


def run_child(function: Callable[[bytes], bytes], shield: Shield, *, payload: int, answer: int) -> NoReturn:
    """Process one payload and exit. `payload` and `answer` are the descriptors of input and output."""
    status, body = RAISED, memoryview(b"nothing")
    try:
        _bind(shield)
        body = memoryview(function(_read(payload)))
        status = OK
    except ProtocolError as error:
        status, body = REFUSED, memoryview(f"{error.code}\n{error.message}".encode())
    except MemoryError:
        status, body = OUT_OF_MEMORY, memoryview(b"")
    finally:
        # Whatever was raised, the zygote's own stack must not continue to run in this process.
        kind = sys.exc_info()[0]
        if kind is not None:
            status, body = RAISED, memoryview(kind.__name__.encode("ascii", "replace")[:100])
        _write(answer, status, body)


def _write(answer: int, status: bytes, body: memoryview) -> NoReturn:
    code = 1
    try:
        os.write(answer, status)
        while body:
            body = body[os.write(answer, body) :]
        code = 0
    finally:
        os._exit(code)


def _bind(shield: Shield) -> None:
    seconds = math.ceil(shield.limits.cpu_seconds)
    _limit(resource.RLIMIT_CPU, seconds, seconds + 1)
    signal.setitimer(signal.ITIMER_PROF, shield.limits.cpu_seconds)
    _limit(resource.RLIMIT_NPROC, shield.limits.processes + (1 if shield.other_tasks is None else shield.other_tasks))
    if shield.ruleset is not None:
        landlock.restrict(shield.ruleset)
        os.close(shield.ruleset)


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    ceiling = resource.getrlimit(kind)[1]
    most = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        soft, most = min(soft, ceiling), min(most, ceiling)
    resource.setrlimit(kind, (soft, most))


def _measure_address_space() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def _read(payload: int) -> bytes:
    with os.fdopen(payload, "rb") as file:
        return file.read()
