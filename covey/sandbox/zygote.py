"""The zygote: a process in the sandbox that has loaded the function and forks a child process for each call.

The zygote never reads a payload. The child reads it after dropping its rights. No call therefore sees an earlier one,
and nothing hostile runs in the zygote. After each call the zygote kills every process that the call has started, and
empties the scratch folder. Usage: `python -m covey.sandbox.zygote CONTROL GUARD`, where CONTROL and GUARD are the
descriptors of the control socket and of the parent process.
"""

import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from covey.errors import OperatorError, TransientError
from covey.sandbox import kernel, landlock
from covey.sandbox.call_child import Shield, bind_zygote, run_child
from covey.sandbox.call_processes import count_tasks, read_children_seconds, sweep, watch
from covey.sandbox.launcher import drop_capabilities
from covey.sandbox.scratch import empty
from covey.sandbox.zygote_messages import CALL, MAX_MESSAGE_BYTES, STOP, Cause, Ending, Started, ZygoteOrder

Function = Callable[[bytes], bytes]
TIMER_SHARE = 0.5
"""Minimum share of its CPU seconds that a call has used when the signal of a timer counts as its limit.

The kernel samples a timer's CPU time at ticks, so on a busy machine a timer of a fraction of a second fires well before
the exact time is used.
"""
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


def build_echo(setup: bytes) -> Function:
    """Build the function for trying an isolation level. It returns `setup` followed by the payload."""
    return lambda payload: setup + payload


class Zygote:
    """Serves calls until the parent closes the socket or dies."""

    def __init__(self, control: socket.socket, guard: int) -> None:
        self._control, self._guard = control, guard

    def serve(self) -> None:
        """Load the function, report that the zygote is ready, and run calls until one cannot be cleaned up."""
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        # Process 1 receives only signals that it handles, and SIGINT is the one that Python handles by default.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        data, descriptors = self._receive()
        order, setup = ZygoteOrder.from_json(data), descriptors[0]
        self._prepare(order)
        function = self._load(order, setup)
        ruleset = None
        if order.readable:
            ruleset = landlock.build_ruleset(readable=map(Path, order.readable), writable=map(Path, order.writable))
        bind_zygote(order.limits, has_filter=order.has_filter)
        gc.collect()
        gc.freeze()  # otherwise a collection in a child would copy every page that holds an object
        kernel.collapse_memory()
        self._control.send(Started(kind="ready").to_json())
        while True:
            message, descriptors = self._receive()
            if message != CALL:
                continue  # STOP for a call that has just ended
            ending = self._run(function, order, ruleset, *descriptors)
            self._control.send(ending.to_json())
            if not ending.is_clean:
                return

    def _prepare(self, order: ZygoteOrder) -> None:
        scratch = Path(order.scratch)
        if order.mounts_scratch:
            kernel.mount_tmpfs(scratch, order.limits.scratch_bytes)
            kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
            drop_capabilities()
        os.chdir(scratch)

    def _load(self, order: ZygoteOrder, setup: int) -> Function:
        """Call the factory. If it fails, report the reason to the parent and exit."""
        started = None
        try:
            module, _, attribute = order.function.partition(":")
            with os.fdopen(setup, "rb") as file:
                function: Function = getattr(importlib.import_module(module), attribute)(file.read())
            return function
        except OperatorError as error:
            message = error.message.removesuffix(f". {error.fix}")
            started = Started(kind="operator", code=error.code, message=message, fix=error.fix)
        except TransientError as error:
            started = Started(kind="transient", code=error.code, message=error.message)
        finally:
            kind, raised, _ = sys.exc_info()
            if started is None and kind is not None:
                started = Started(kind="other", message=f"{kind.__name__}: {raised}"[:2000])
            if started is not None:
                self._control.send(started.to_json())
        sys.exit(1)

    def _receive(self) -> tuple[bytes, list[int]]:
        """Return the parent's next message and its descriptors. Exit if the parent has ended."""
        waiting = select.poll()
        for descriptor in (self._control.fileno(), self._guard):
            if descriptor >= 0:
                waiting.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if self._guard in ready:
            self._end()
        message, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE_BYTES, 2, _FLAGS)
        if not message:
            self._end()
        return message, descriptors

    def _end(self) -> NoReturn:
        """Exit, and kill every process that a call has started.

        If the parent was killed it cannot remove its scratch folder, so this method removes it.
        """
        sweep()
        folder = Path.cwd()
        with suppress(OSError):
            empty(folder)
            folder.rmdir()
        os._exit(0)

    def _run(self, function: Function, order: ZygoteOrder, ruleset: int | None, payload: int, answer: int) -> Ending:
        before = read_children_seconds()
        tasks = count_tasks() if order.shares_user else None
        shield = Shield(limits=order.limits, ruleset=ruleset, other_tasks=tasks)
        child = os.fork()
        if child == 0:
            self._control.close()
            if self._guard >= 0:
                os.close(self._guard)
            run_child(function, shield, payload=payload, answer=answer)
        os.close(payload)
        os.close(answer)
        stopped = watch(child, order.limits, is_stopped=self._is_stopped, spent=before)
        _, status, used = os.wait4(child, 0)
        is_swept = sweep()
        seconds = read_children_seconds() - before
        cause: Cause
        if os.WIFSIGNALED(status):
            cause, code = stopped or "signal", os.WTERMSIG(status)
        else:
            cause, code = "exit", os.WEXITSTATUS(status)
        # The call can send itself these signals, so they count as the limit only if it has used much of its time.
        least = TIMER_SHARE * order.limits.cpu_seconds
        if code in {signal.SIGPROF, signal.SIGXCPU} and cause == "signal" and seconds > least:
            cause = "cpu"
        # A hard limit kills with SIGKILL, and other processes of the call may have used the time.
        if cause in {"exit", "signal"} and seconds > order.limits.cpu_seconds:
            cause = "cpu"
        is_clean = is_swept and empty(Path(order.scratch))
        peak = used.ru_maxrss << 10
        return Ending(cause=cause, status=code, cpu_seconds=seconds, peak_bytes=peak, is_clean=is_clean)

    def _is_stopped(self, timeout_seconds: float, child: int) -> bool | None:
        """Wait for the child.

        Returns True if the parent stops the call, False if the child has ended, and None on timeout.
        """
        waiting = select.poll()
        for descriptor in (child, self._control.fileno(), self._guard):
            if descriptor >= 0:
                waiting.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in waiting.poll(timeout_seconds * 1000)}
        if self._guard in ready:
            self._end()
        if self._control.fileno() in ready:
            message, _, _, _ = socket.recv_fds(self._control, MAX_MESSAGE_BYTES, 2, _FLAGS)
            if not message:
                self._end()
            return message == STOP
        return False if ready else None


if __name__ == "__main__":
    Zygote(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])).serve()
