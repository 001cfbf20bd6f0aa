"""Runs a program against the tests of a row, inside a grading process (`run_tests`, `run_assertions`).

The grading process knows the expected outputs and must not trust the program. The program therefore runs in a
fresh interpreter (`program_runner`), never in this process or a fork of it, and receives one input at a time.
It returns data, which is compared here. Assertions run in a further interpreter, and the program answers their
calls with data over a socket. So a program that manipulates its own process gains nothing: it can only change its
output.
"""

import ctypes
import json
import os
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import JsonValue

from covey.environments.base import GradeLimit, LimitCode
from covey.environments.kinds.code import program_runner
from covey.environments.kinds.code.program_frames import FRAME
from covey.environments.kinds.code.program_outputs import is_same_text, is_same_value, parse_value
from covey.environments.kinds.code.program_processes import measure_address_space
from covey.environments.kinds.code.program_runner import REPLY

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
    """Tests of one row by input and output. Example: ProgramTests(inputs=["2 3"], outputs=["5"], function="")."""

    inputs: Sequence[JsonValue]
    """Input of each test: standard input as a string or, if a function is called, a list of arguments.

    The arguments may also be a string with one JSON value per line. The output is then JSON too.
    """
    outputs: Sequence[JsonValue]
    """Expected output of each test: standard output as a string, or the result if a function is called."""
    function: str
    """Name of the function that is called. Empty if the program reads standard input and prints."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AssertionTests:
    """Tests of one row by assertion. Example: AssertionTests(source="assert f(2) == 4", names=["f"], prelude="")."""

    source: str
    """Python source of the tests. They pass if it runs to its end, and so do the test cases that it defines."""
    names: Sequence[str]
    """Names of functions and classes that the program must define and the tests use."""
    prelude: str
    """Python source that runs before the program and before the tests, such as imports and helper functions."""


def run_tests(program: str, tests: ProgramTests, limits: ProgramLimits) -> bool:
    """Return whether the program passes all tests. No test runs after the first failure.

    Raises GradeLimit if a limit ends a test, or if the program ends the process that runs it.
    """
    source = _encode(program)
    if source is None:
        return False
    with _open_folder() as folder, _Runner(folder, limits) as runner:
        runner.send(source)
        runner.send(f"call {tests.function}".encode() if tests.function else b"print")
        return all(
            runner.passes(test_input, expected, returns=bool(tests.function))
            for test_input, expected in zip(tests.inputs, tests.outputs, strict=True)
        )


def run_assertions(program: str, tests: AssertionTests, limits: ProgramLimits) -> bool:
    """Return whether the program passes all assertions, which run in a process of their own.

    Raises GradeLimit if a limit ends either process, or if the program ends the process that runs it.
    """
    source = _encode(program)
    if source is None:
        return False
    theirs, ours = socket.socketpair()
    bound = json.dumps({"prelude": tests.prelude, "names": [*tests.names]})
    with (
        theirs,
        ours,
        _open_folder() as folder,
        _open_folder() as other,
        _Runner(folder, limits, channel=theirs.fileno()) as runner,
        _Runner(other, limits, channel=ours.fileno()) as checker,
    ):
        theirs.close()  # each end is then open in one process only, and closed when that process ends
        ours.close()
        for frame in (source, b"serve", tests.prelude.encode()):
            runner.send(frame)
        for frame in (tests.source.encode(), b"assert", bound.encode()):
            checker.send(frame)
        checked = checker.receive()
        runner.receive()
        return checked is not None


def _encode(program: str) -> bytes | None:
    """Encode a program. None if it contains surrogates, because Python would refuse such a file too."""
    try:
        return program.encode()
    except UnicodeEncodeError:
        return None


@contextmanager
def _open_folder() -> Iterator[str]:
    """Create a folder for the processes of a program, and delete it afterwards, as far as possible.

    The sandbox empties its scratch folder after the grading.
    """
    _hide_memory()
    folder = tempfile.mkdtemp(prefix="program-")
    try:
        yield folder
    finally:
        with suppress(RecursionError):
            shutil.rmtree(folder, ignore_errors=True)


class _Runner:
    """A running `program_runner` process. Reads from it and writes to it time out."""

    def __init__(self, folder: str, limits: ProgramLimits, *, channel: int = program_runner.NO_CHANNEL) -> None:
        """Start the process. `channel` is the descriptor of a socket that leads to a different runner."""
        self._limits = limits
        numbers = (limits.cpu_seconds, limits.memory_bytes, limits.output_bytes, limits.processes or 0, channel)
        self._process = subprocess.Popen(
            # Not -I, which would ignore PYTHONHASHSEED. Sets must have the same order on every machine.
            [sys.executable, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _START, *map(str, numbers)],
            env={"PYTHONHASHSEED": "0"},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=() if channel == program_runner.NO_CHANNEL else (channel,),
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
        self.send(_join_arguments(given) if returns else str(given).encode())
        output = self.receive()
        if output is None:
            return False
        try:
            if returns:
                if isinstance(given, str) and isinstance(expected, str):
                    expected = parse_value(expected)
                return is_same_value(parse_value(output), expected)
            return is_same_text(output.decode(), str(expected))
        except (ValueError, RecursionError):
            return False

    def receive(self) -> bytes | None:
        """Return the output of a test, or None if the test has failed. Raises GradeLimit if it reached a limit."""
        status, size = REPLY.unpack(self._read(REPLY.size))
        if status in _LIMITS:
            raise GradeLimit(_LIMITS[status])
        if status != program_runner.DONE or size > self._limits.output_bytes:
            return None
        return self._read(size)

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


def _join_arguments(given: JsonValue) -> bytes:
    """Return arguments as a JSON list. A string has one JSON value per line."""
    if isinstance(given, str):
        return f"[{','.join(line for line in given.split(chr(10)) if line.strip())}]".encode()
    return json.dumps(given).encode()
