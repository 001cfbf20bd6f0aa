"""Watches, measures and kills the processes of a call. Runs in the zygote.

All descendants of the zygote belong to the call. Orphans become the zygote's children, because it is their subreaper.
"""

import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from covey.sandbox.call_limits import CallLimits
from covey.sandbox.zygote_messages import Cause

TICK_SECONDS = 0.05
"""Interval in seconds at which a running call is measured."""
SWEEP_SECONDS = 10.0
"""Timeout in seconds for killing all processes that a call has left."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE = resource.getpagesize()


def read_children_seconds() -> float:
    """Return the CPU seconds of all ended children, including their own children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def watch(
    child: int, limits: CallLimits, *, is_stopped: Callable[[float, int], bool | None], spent: float
) -> Cause | None:
    """Wait until the child ends. If it reaches a limit, kill it and return the limit. Return None if it exits.

    `is_stopped` takes a number of seconds and a process descriptor, and waits up to that long. It returns True if the
    parent stops the call, False if the process has ended, and None on timeout. `spent` is the result of
    `read_children_seconds` before the call.
    """
    opened = os.pidfd_open(child)
    try:
        deadline = time.monotonic() + limits.wall_seconds
        while True:
            left = deadline - time.monotonic()
            stopped = is_stopped(max(0.0, min(TICK_SECONDS, left)), opened)
            if stopped is False:
                return None
            cause: Cause | None = "stopped" if stopped else "wall" if left <= 0 else _find_excess(limits, spent)
            if cause is not None:
                os.kill(child, signal.SIGKILL)  # nobody has waited for it yet, so the process id is still its own
                return cause
    finally:
        os.close(opened)


def _find_excess(limits: CallLimits, spent: float) -> Cause | None:
    """Return a limit that the processes of the call exceed in total. None if there is none."""
    seconds, held, tasks = read_children_seconds() - spent, 0, 0
    own = _measure(os.getpid())
    shared = own[1] if own else 0
    for process in list_descendants(os.getpid()):
        measured = _measure(process)
        if measured is not None:
            seconds += measured[0]
            held += max(0, measured[1] - shared)  # a fork also counts the pages that it shares with the zygote
            tasks += measured[2]
    if seconds > limits.cpu_seconds:
        return "cpu"
    if held > limits.memory_bytes:
        return "memory"
    return "processes" if tasks > limits.processes else None


def _measure(process: int) -> tuple[float, int, int] | None:
    """Return CPU seconds, bytes of anonymous memory, and number of threads. None if the process has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        pages = Path(f"/proc/{process}/statm").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The process's own CPU time, and that of the children that it has waited for.
    seconds = sum(map(int, fields[11:15])) / _TICKS_PER_SECOND
    return seconds, (int(pages[1]) - int(pages[2])) * _PAGE, int(fields[17])


def list_descendants(process: int) -> list[int]:
    """Return the ids of all living descendants of a process."""
    descendants, left = [], [process]
    while left:
        children = _list_children(left.pop())
        descendants += children
        left += children
    return descendants


def _list_children(process: int) -> list[int]:
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            children += map(int, Path(f"/proc/{process}/task/{task}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass  # the process has ended in the meantime
    return children


def sweep() -> bool:
    """Kill every descendant and wait for it. Return whether none is left."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        if os.getpid() == 1:
            os.kill(-1, signal.SIGKILL)  # every process of this namespace except process 1
        else:
            # All are stopped first, so that none forks while the others are being listed.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in list_descendants(os.getpid()):
                    _send(process, number)
        os.sched_yield()
    return False


def _send(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def count_tasks() -> int:
    """Count all processes and threads of this process's user on this machine.

    The kernel's process limit counts them, too.
    """
    user, tasks = str(os.getuid()), 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            lines = Path(f"/proc/{name}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
        tasks += int(fields["Threads"][0]) if fields["Uid"][0] == user else 0
    return tasks
