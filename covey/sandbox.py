"""Runs a bytes -> bytes function on hostile input in a process that may die.

The parent sends one frame (8-byte length, payload) and waits at most `seconds`; the child has a memory limit, and what
it answers is capped before it is read.  A dead child is started again at the next call.  Nothing is unpickled.
"""

import importlib
import math
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Self

from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError

_HEADER = struct.Struct(">BQ")
_OK, _REFUSED = 0, 1
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
"""All that the child sees: no secret of the parent, and allocators that reserve no more than they use."""


ATTEMPTS = 2
"""How often a peer's input is tried before it is blamed: a busy machine may cost it one child, hardly two."""


class SandboxError(CoveyError):
    """The child died, took too long, or said too much; the input is to blame.  `code` says which."""


class Sandbox:
    """A persistent child for one function.  Example: `Sandbox("covey.protocol.columns:decode_json", seconds=5)`."""

    def __init__(
        self, function: str, *, seconds: float, memory_bytes: int = 1 << 30, output_bytes: int = 64 << 20
    ) -> None:
        self._function, self._seconds, self._memory, self._output = function, seconds, memory_bytes, output_bytes
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def call(self, payload: bytes, *, attempts: int = 1) -> bytes:
        """Return the function's answer; raise its ProtocolError, or SandboxError.

        `attempts`: how many children may end on the payload before SandboxError is raised; each gets a fresh clock.
        A process that does not even start is no fault of the input: TransientError or OperatorError.
        """
        for _ in range(attempts - 1):
            try:
                return self._call_once(payload)
            except SandboxError:
                continue
        return self._call_once(payload)

    def _call_once(self, payload: bytes) -> bytes:
        with self._lock:
            child = self._start()
            deadline, is_whole = time.monotonic() + self._seconds, False
            try:
                self._write(child, _HEADER.pack(_OK, len(payload)) + payload, deadline)
                status, size = _HEADER.unpack(self._read(child, _HEADER.size, deadline))
                if size > self._output:
                    raise SandboxError("sandbox_output", f"answer of {size} bytes is over {self._output}")
                answer = self._read(child, size, deadline)
                is_whole = True
            finally:
                if not is_whole:  # whatever the reason: half an answer must not be the next call's
                    self._kill()
        if status == _REFUSED:
            code, _, message = answer.decode("utf-8", "replace").partition("\n")
            raise ProtocolError(code, message)
        return answer

    @property
    def process_id(self) -> int | None:
        """Of the living child, for who measures it."""
        return None if self._child is None or self._child.poll() is not None else self._child.pid

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._kill()
            arguments = [sys.executable, "-m", "covey.sandbox", self._function, str(self._memory), str(self._seconds)]
            try:
                self._child = subprocess.Popen(
                    arguments,
                    env=_ENVIRONMENT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                )
            except OSError as error:
                raise TransientError("sandbox_start", f"no process can be started: {error}") from error
            _require_ready(self._child, self._function)
        return self._child

    def _kill(self) -> None:
        if self._child is None:
            return
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        self._child = None

    def _write(self, child: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
        assert child.stdin is not None
        view, descriptor = memoryview(data), child.stdin.fileno()
        os.set_blocking(descriptor, False)
        while view:
            _wait([], [descriptor], deadline)
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise SandboxError("sandbox_died", "the process died while it read its input") from error

    def _read(self, child: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
        assert child.stdout is not None
        return _read_exactly(child.stdout.fileno(), size, deadline)


_START_SECONDS = 60.0


def _require_ready(child: subprocess.Popen[bytes], function: str) -> None:
    """Wait for the first byte, which the child sends once its imports are done: they never count as input's time."""
    assert child.stdout is not None
    try:
        _read_exactly(child.stdout.fileno(), 1, time.monotonic() + _START_SECONDS)
    except SandboxError as error:
        if error.code == "sandbox_timeout":
            child.kill()
            raise TransientError("sandbox_start", f"the process of {function} does not start") from error
        raise OperatorError(
            "sandbox_start", f"the process of {function} died before any input", fix="Check the installation"
        ) from error


def _read_exactly(descriptor: int, size: int, deadline: float) -> bytes:
    pieces, missing = [], size
    while missing:
        _wait([descriptor], [], deadline)
        piece = os.read(descriptor, min(missing, 1 << 20))
        if not piece:
            raise SandboxError("sandbox_died", "the process died on its input")
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _wait(readers: list[int], writers: list[int], deadline: float) -> None:
    left = deadline - time.monotonic()
    waiting = select.poll()  # select() refuses descriptors over 1023, which a busy server has
    for descriptor in readers:
        waiting.register(descriptor, select.POLLIN)
    for descriptor in writers:
        waiting.register(descriptor, select.POLLOUT)
    if left <= 0 or not waiting.poll(left * 1000):
        raise SandboxError("sandbox_timeout", "the process took longer than its wall clock allows")


def _resolve(name: str) -> Callable[[bytes], bytes]:
    module, _, attribute = name.partition(":")
    function: Callable[[bytes], bytes] = getattr(importlib.import_module(module), attribute)
    return function


def serve(name: str, memory_bytes: int, seconds: float) -> None:
    """The child: import the function, limit the memory, answer frames until standard input ends."""
    function = _resolve(name)
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever the function prints must not reach the parent as a frame
    used = _address_space_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.write(answers, b"r")
    while header := sys.stdin.buffer.read(_HEADER.size):
        payload = sys.stdin.buffer.read(_HEADER.unpack(header)[1])
        signal.alarm(math.ceil(seconds) + 1)  # the parent's clock is first; this ends an orphan
        try:
            status, answer = _OK, function(payload)
        except ProtocolError as error:
            status, answer = _REFUSED, f"{error.code}\n{error.message}".encode()
        signal.alarm(0)
        frame = memoryview(_HEADER.pack(status, len(answer)) + answer)
        while frame:
            frame = frame[os.write(answers, frame) :]


def _address_space_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
