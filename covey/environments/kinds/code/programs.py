"""Runs a program against the tests of a row, inside a grading process (`run_tests`).

The grading process knows the expected outputs and must not trust the program. The program therefore runs in a
fresh interpreter (`program_runner`), never in this process or a fork of it, and receives one input at a time.
It returns data, which is compared here. So a program that manipulates its own process gains nothing: it can
only change its output.
"""

import ctypes
import json
import os
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import JsonValue

from covey.environments.base import GradeLimit, LimitCode
from covey.environments.kinds.code import program_runner
from covey.environments.kinds.code.program_outputs import is_same_text, is_same_value, parse_value
from covey.environments.kinds.code.program_processes import measure_address_space
from covey.environments.kinds.code.program_runner import FRAME, REPLY

OUTPUT_BYTES = 4 << 20
"""Maximum output of one test, in bytes."""
_DEFAULT_CPU_SECONDS, _DEFAULT_MEMORY_BYTES = 10.0, 512 << 20
"""Default CPU and memory limits of a program, used if this process has no limits of its own."""
_GRACE_SECONDS = 10.0
"""Seconds after the wall clock limit of a test in which the runner must end the test's processes and reply."""
_START = f"""
import sys
from types import ModuleType

folder, name = {str(Path(program_runner.__file__).parent)!r}, ""
for part in {program_runner.__name__.split(".")[:-1]}:
    name += "." * bool(name) + part
    package = sys.modules[name] = ModuleType(name)
    package.__path__ = [folder]
from {program_runner.__name__} import main

main()
"""
"""Code that starts the runner. It imports only from the runner's own folder, because the process may not be
able to read the folder that contains Covey.
"""
_PR_SET_DUMPABLE = 4
_LIMITS: dict[int, LimitCode] = {
    program_runner.OUT_OF_TIME: "sandbox_cpu",
    program_runner.OUT_OF_MEMORY: "sandbox_memory",
    program_runner.TOO_SLOW: "sandbox_timeout",
    program_runner.TOO_LONG: "sandbox_output",
    program_runner.BROKEN: "sandbox_died",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramLimits:
    """Limits of a program. Example: ProgramLimits(cpu_seconds=10, memory_bytes=512 << 20)."""

    cpu_seconds: float
    """CPU seconds of all tests together, including the start of the interpreter."""
    memory_bytes: int
    """Bytes that a process of the program may allocate, in addition to what a bare interpreter uses."""
    output_bytes: int = OUTPUT_BYTES
    """Maximum output of one test, in bytes."""
    processes: int | None = None
    """Maximum number of processes and threads of this user. None keeps the limit of this process."""

    @classmethod
    def read(cls) -> Self:
        """Return the CPU time and memory that remain of the limits that a sandbox set for this process (setrlimit)."""
        cpu_seconds, memory_bytes = _DEFAULT_CPU_SECONDS, _DEFAULT_MEMORY_BYTES
        most = resource.getrlimit(resource.RLIMIT_CPU)[0]
        if most != resource.RLIM_INFINITY:
            used = resource.getrusage(resource.RUSAGE_SELF)
            cpu_seconds = max(0.0, most - used.ru_utime - used.ru_stime)
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            memory_bytes = max(0, most - measure_address_space())
        return cls(cpu_seconds=cpu_seconds, memory_bytes=memory_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramTests:
    """Tests of one row. Example: ProgramTests(inputs=["2 3"], outputs=["5"], function="")."""

    inputs: Sequence[JsonValue]
    """Input of each test: standard input as a string, or a list of arguments if a function is called."""
    outputs: Sequence[JsonValue]
    """Expected output of each test: standard output as a string, or the result if a function is called."""
    function: str
    """Name of the function that is called. Empty if the program reads standard input and prints."""


def run_tests(program: str, tests: ProgramTests, limits: ProgramLimits) -> bool:
    """Return whether the program passes all tests. No test runs after the first failure.

    Raises GradeLimit if a limit ends a test, or if the program ends the process that runs it.
    """
    try:
        source = program.encode()
    except UnicodeEncodeError:
        return False  # the program contains surrogates, and Python would refuse such a file too
    _hide_memory()
    folder = tempfile.mkdtemp(prefix="program-")
    try:
        with _Runner(folder, limits) as runner:
            runner.send(source)
            runner.send(tests.function.encode())
            return all(
                runner.passes(test_input, expected, returns=bool(tests.function))
                for test_input, expected in zip(tests.inputs, tests.outputs, strict=True)
            )
    finally:
        _remove(folder)


class _Runner:
    """A running `program_runner` process. Reads from it and writes to it time out."""

    def __init__(self, folder: str, limits: ProgramLimits) -> None:
        self._limits = limits
        numbers = (limits.cpu_seconds, limits.memory_bytes, limits.output_bytes, limits.processes or 0)
        self._process = subprocess.Popen(
            # Not -I, which would ignore PYTHONHASHSEED. Sets must have the same order on every machine.
            [sys.executable, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _START, *map(str, numbers)],
            env={"PYTHONHASHSEED": "0"},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands, self._replies = self._process.stdin.fileno(), self._process.stdout.fileno()
        wall = program_runner.WALL_SECONDS + program_runner.WALL_FACTOR * limits.cpu_seconds
        self._seconds = wall + _GRACE_SECONDS
        for descriptor in (self._commands, self._replies):
            os.set_blocking(descriptor, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process:  # closes the pipes, and waits
            pass

    def passes(self, given: JsonValue, expected: JsonValue, *, returns: bool) -> bool:
        """Run one test, and return whether its output is as expected. Raises GradeLimit if the test reaches a limit."""
        if self._has_reply():
            return False  # a reply before the question can only be forged
        self.send(json.dumps(given).encode() if returns else str(given).encode())
        status, size = REPLY.unpack(self._read(REPLY.size))
        if status in _LIMITS:
            raise GradeLimit(_LIMITS[status])
        if status != program_runner.DONE or size > self._limits.output_bytes:
            return False
        output = self._read(size)
        try:
            if returns:
                return is_same_value(parse_value(output), expected)
            return is_same_text(output.decode(), str(expected))
        except (ValueError, RecursionError):
            return False

    def send(self, data: bytes) -> None:
        """Write one frame. Raises GradeLimit if the runner has ended or does not read it in time."""
        left, deadline = memoryview(FRAME.pack(len(data)) + data), time.monotonic() + self._seconds
        while left:
            self._wait(self._commands, select.POLLOUT, deadline)
            try:
                left = left[os.write(self._commands, left) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise GradeLimit("sandbox_died") from error

    def _has_reply(self) -> bool:
        waiting = select.poll()
        waiting.register(self._replies, select.POLLIN)
        return bool(waiting.poll(0))

    def _read(self, size: int) -> bytes:
        data, deadline = bytearray(), time.monotonic() + self._seconds
        while len(data) < size:
            self._wait(self._replies, select.POLLIN, deadline)
            piece = os.read(self._replies, size - len(data))
            if not piece:
                raise GradeLimit("sandbox_died")
            data += piece
        return bytes(data)

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        waiting = select.poll()
        waiting.register(descriptor, event)
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise GradeLimit("sandbox_timeout")


def _hide_memory() -> None:
    """Keep other processes of this user from reading this process's memory, if the sandbox has not done so."""
    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, *map(ctypes.c_ulong, (0, 0, 0, 0))) != 0:
        raise OSError("this process could not hide its memory from other processes")


def _remove(folder: str) -> None:
    """Delete the folder of the tests, as far as possible.

    The sandbox empties its scratch folder after the grading.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        return
