"""Processes of a runner of programs: what they may do, how they are limited, and how all of them are ended.

It needs the standard library alone, without the module `signal`, which takes longer to import than a test to run.
"""

from __future__ import annotations

import ctypes
import os
import resource
import time

SIGKILL, _SIGSTOP = 9, 19
_SWEEP_SECONDS = 5.0
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 4, 36, 38
_CAPABILITY_VERSION = 0x20080522


class ProcessLimits:
    """Limits of all tests together, as the command line gives them."""

    def __init__(self, cpu_seconds: float, memory_bytes: int, output_bytes: int, processes: int) -> None:
        self.cpu_seconds, self.memory_bytes = cpu_seconds, memory_bytes
        self.output_bytes, self.processes = output_bytes, processes

    def compute_left(self) -> float:
        """CPU seconds that no test has used."""
        return self.cpu_seconds - sum(
            used.ru_utime + used.ru_stime
            for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )


def give_up_rights() -> None:
    """Keep tests from tracing this process and its parent, and make orphans of tests this process's children."""
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_CHILD_SUBREAPER, 1), (_PR_SET_DUMPABLE, 0)):
        if libc.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {option}")
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def measure_address_space() -> int:
    """Address space of this process in bytes; 0 where Landlock closes /proc, so that limits are a little wider."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()
    except PermissionError:
        return 0


def limit(kind: int, soft: int, hard: int) -> None:
    """Set a limit of this process, at most to the one that it has."""
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def round_up(seconds: float) -> int:
    """Whole seconds, at least 1, as the kernel limits CPU time."""
    return max(1, -int(-seconds // 1))


def bind(limits: ProcessLimits) -> None:
    """Limit this process, and with it the tests."""
    taken = measure_address_space()
    limit(resource.RLIMIT_AS, taken + limits.memory_bytes, taken + limits.memory_bytes)
    limit(resource.RLIMIT_CORE, 0, 0)
    if limits.processes:
        limit(resource.RLIMIT_NPROC, limits.processes, limits.processes)


def end_leftovers() -> bool:
    """Kill and wait for all that a test has left; whether nothing is left."""
    deadline = time.monotonic() + _SWEEP_SECONDS
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        # Stopped first, so that none forks while the others are looked for.
        for number in (_SIGSTOP, SIGKILL):
            for process in _list_descendants():
                kill(process, number)
        os.sched_yield()
    return False


def _list_descendants() -> list[int]:
    """Numbers of all descendants of this process that can be seen; none where Landlock closes /proc."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except PermissionError:
        return []
    for name in filter(str.isdecimal, names):
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                parent = int(stat.read().rpartition(b")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        children.setdefault(parent, []).append(int(name))
    found, left = [], [os.getpid()]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def kill(process: int, number: int) -> None:
    """Send a signal to a process, or to a group where the number is negative, if it still exists."""
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return
