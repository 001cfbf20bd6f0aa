"""The processes of a call, as its zygote sees and ends them.

All descendants of the zygote belong to the call: orphans become the zygote's children, as it is their subreaper.
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
"""How often a call that goes on is measured."""
SWEEP_SECONDS = 10.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE = resource.getpagesize()


def read_children_seconds() -> float:
    """CPU seconds of all processes that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def watch(
    child: int, limits: CallLimits, *, is_stopped: Callable[[float, int], bool | None], spent: float
) -> Cause | None:
    """Wait until the child ends; kill it at a limit and say which.  None: it ended by itself.

    `is_stopped`: waits that many seconds for a process, given by its descriptor.  `spent`: what `read_children_seconds`
    returned before the call.
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
                os.kill(child, signal.SIGKILL)  # not yet waited for, so the number is still its
                return cause
    finally:
        os.close(opened)


def _find_excess(limits: CallLimits, spent: float) -> Cause | None:
    """Limit that all processes of the call exceed together."""
    seconds, held, tasks = read_children_seconds() - spent, 0, 0
    own = _measure(os.getpid())
    shared = own[1] if own else 0
    for process in list_descendants(os.getpid()):
        measured = _measure(process)
        if measured is not None:
            seconds += measured[0]
            held += max(0, measured[1] - shared)  # a forked process counts the zygote's pages as its own
            tasks += measured[2]
    if seconds > limits.cpu_seconds:
        return "cpu"
    if held > limits.memory_bytes:
        return "memory"
    return "processes" if tasks > limits.processes else None


def _measure(process: int) -> tuple[float, int, int] | None:
    """CPU seconds, bytes that are not of files, and threads; None if the process has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        pages = Path(f"/proc/{process}/statm").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Its own time, and that of the children that it has waited for.
    seconds = sum(map(int, fields[11:15])) / _TICKS_PER_SECOND
    return seconds, (int(pages[1]) - int(pages[2])) * _PAGE, int(fields[17])


def list_descendants(process: int) -> list[int]:
    """Numbers of all living descendants."""
    found, left = [], [process]
    while left:
        children = _list_children(left.pop())
        found += children
        left += children
    return found


def _list_children(process: int) -> list[int]:
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            children += map(int, Path(f"/proc/{process}/task/{task}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended meanwhile
    return children


def sweep() -> bool:
    """Kill and wait for every descendant; whether none is left."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        if os.getpid() == 1:
            os.kill(-1, signal.SIGKILL)  # all of this namespace but process 1
        else:
            # Stopped first, so that no process forks while the others are looked for.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in list_descendants(os.getpid()):
                    _send(process, number)
        os.sched_yield()
    return False


def _send(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def count_tasks() -> int:
    """Processes and threads of this process's user on this machine, which its limit counts too."""
    user, tasks = str(os.getuid()), 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            lines = Path(f"/proc/{name}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
        tasks += int(fields["Threads"][0]) if fields["Uid"][0] == user else 0
    return tasks
