"""Manages the processes of the program runner: drops rights, sets limits, kills what tests leave behind.

This module uses only the standard library. It does not import `signal`, because that takes longer than
running a test.
"""

from __future__ import annotations

import ctypes
import os
import resource
import time

SIGKILL, _SIGSTOP = 9, 19
_SWEEP_SECONDS = 5.0
"""Timeout in seconds for ending all processes that a test has left behind."""
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 4, 36, 38
_CAPABILITY_VERSION = 0x20080522


class ProcessLimits:
    """Limits that the program runner reads from its command line. All tests share the CPU seconds."""

    def __init__(self, cpu_seconds: float, memory_bytes: int, output_bytes: int, processes: int) -> None:
        self.cpu_seconds, self.memory_bytes = cpu_seconds, memory_bytes
        self.output_bytes, self.processes = output_bytes, processes

    def compute_left(self) -> float:
        """Return the CPU seconds that the tests may still use."""
        return self.cpu_seconds - sum(
            used.ru_utime + used.ru_stime
            for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )


def give_up_rights() -> None:
    """Keep tests from tracing this process and its parent, and become the parent of processes that tests orphan.

    Raises OSError if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_CHILD_SUBREAPER, 1), (_PR_SET_DUMPABLE, 0)):
        if libc.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))) != 0:
            raise OSError(ctypes.get_errno(), f"the system call prctl({option}) failed")
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def measure_address_space() -> int:
    """Return the size of this process's address space in bytes, or 0 if Landlock denies access to /proc.

    With 0, memory limits become slightly larger.
    """
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()
    except PermissionError:
        return 0


def limit(kind: int, soft: int, hard: int) -> None:
    """Set a resource limit of this process, without exceeding its current hard limit."""
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def round_up(seconds: float) -> int:
    """Round up to whole seconds, at least 1, because the kernel limits CPU time in whole seconds."""
    return max(1, -int(-seconds // 1))


def bind(limits: ProcessLimits) -> None:
    """Set the memory and process limits of this process. The tests inherit them."""
    ceiling = measure_address_space() + limits.memory_bytes
    limit(resource.RLIMIT_AS, ceiling, ceiling)
    limit(resource.RLIMIT_CORE, 0, 0)
    if limits.processes:
        limit(resource.RLIMIT_NPROC, limits.processes, limits.processes)


def end_leftovers() -> bool:
    """Kill and reap every process that a test has left behind. Return whether none was left at the timeout."""
    deadline = time.monotonic() + _SWEEP_SECONDS
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        # All are stopped first, so that none forks while the others are being listed.
        for number in (_SIGSTOP, SIGKILL):
            for process in _list_descendants():
                kill(process, number)
        os.sched_yield()
    return False


def _list_descendants() -> list[int]:
    """Return the ids of all visible descendants of this process. Empty if Landlock denies access to /proc."""
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
            continue  # the process has ended in the meantime
        children.setdefault(parent, []).append(int(name))
    descendants, left = [], [os.getpid()]
    while left:
        below = children.get(left.pop(), [])
        descendants += below
        left += below
    return descendants


def kill(process: int, number: int) -> None:
    """Send signal `number` to a process, or to a process group if `process` is negative.

    A process that does not exist is ignored, and so is one that may not be signalled.
    """
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return
