"""Starts, uses and ends one zygote from outside the sandbox."""

import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from covey.errors import OperatorError, ProtocolError, TransientError
from covey.sandbox.call_limits import CallLimits
from covey.sandbox.isolation import SCRATCH, Isolation, Surroundings, list_readable, list_writable, wrap
from covey.sandbox.landlock import find_abi
from covey.sandbox.sandbox_errors import SandboxError
from covey.sandbox.scratch import empty
from covey.sandbox.seccomp import is_known
from covey.sandbox.zygote_messages import (
    CALL,
    MAX_MESSAGE_BYTES,
    OK,
    OUT_OF_MEMORY,
    RAISED,
    REFUSED,
    STOP,
    Ending,
    Started,
    ZygoteOrder,
)

START_SECONDS = 300.0
"""Timeout in seconds for the start of a zygote. Some factories import packages for several seconds of CPU time, which
can take minutes on a busy machine.
"""
_REPORT_SECONDS = 60.0
"""Seconds between two log lines during a long start."""
GRACE_SECONDS = 15.0
"""Seconds that a zygote has, after a call's wall-clock limit, to end the call and its processes."""
_CREDENTIALS = struct.Struct("3i")
_CHUNK = 1 << 20
_MAX_LEFT = 1_000_000
"""Maximum number of files and folders to remove when a zygote with a scratch folder on this machine is closed. If there
are more, the folder stays.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """Outcome of one payload: either an output or an error."""

    answer: bytes | None = None
    """Output of the function. None if the call ended with an error."""
    error: SandboxError | ProtocolError | None = None
    """Error of the call. None if it has an output."""
    cpu_seconds: float = 0.0
    """CPU seconds of the call and of all processes that it started. 0 if the zygote itself died during the call."""
    peak_bytes: int = 0
    """Peak memory of the call's first process in bytes, including libraries."""

    def unwrap(self) -> bytes:
        """Return the output, or raise the SandboxError or ProtocolError of the call."""
        if self.error is not None:
            raise self.error
        return self.answer or b""


class ZygoteProcess:
    """A zygote for one function. It is not thread-safe."""

    def __init__(
        self, function: str, *, setup: bytes, limits: CallLimits, isolation: Isolation, surroundings: Surroundings
    ) -> None:
        """Start the zygote, and wait until it is ready.

        Raises TransientError("sandbox_start") if no process can be started or the start takes too long. Raises
        OperatorError("sandbox_start") if the process ends before it is ready. An OperatorError or TransientError of the
        factory is raised unchanged.
        """
        self._function, self._limits = function, limits
        self.calls = 0
        """Number of calls so far."""
        self.process_id = 0
        """Process id of the zygote outside the sandbox. 0 until the zygote is ready."""
        self._is_usable = False
        self._control: socket.socket | None = None
        self._launched: subprocess.Popen[bytes] | None = None
        self._zygote: int | None = None
        self._stderr: int | None = os.memfd_create("sandbox-stderr", os.MFD_CLOEXEC)
        self._folder = None if isolation.has_own_root else tempfile.mkdtemp(prefix="covey-scratch-")
        try:
            self._launch(isolation, surroundings)
            self._order(isolation, setup, surroundings)
            self._require_ready()
            self._is_usable = True
        finally:
            if not self._is_usable:
                self.close()

    @property
    def is_usable(self) -> bool:
        """Whether this zygote can run a further call."""
        return self._is_usable and self._launched is not None and self._launched.poll() is None

    def run(self, payload: bytes) -> CallOutcome:
        """Run one call, and return its outcome however it ends."""
        assert self._control is not None
        # Unusable until the call has ended properly, because the rest of an answer must not reach the next call.
        self._is_usable = False
        self.calls += 1
        reading, answer = os.pipe()
        try:
            payload_file = _put(payload)
            try:
                socket.send_fds(self._control, [CALL], [payload_file, answer])
            except OSError:
                return CallOutcome(error=SandboxError("sandbox_died", "the sandbox process ended before the call"))
            finally:
                os.close(payload_file)
                os.close(answer)
            pieces, ending, is_over = self._await(reading)
        finally:
            os.close(reading)
        if ending is None:
            return CallOutcome(error=SandboxError("sandbox_died", "the sandbox process ended during the call"))
        self._is_usable = ending.is_clean
        return _judge(b"".join(pieces), ending, self._limits, is_over=is_over)

    def close(self) -> None:
        """End the zygote and everything that it started. A second call has no effect."""
        self._is_usable = False
        if self._control is not None:
            self._control.close()  # the zygote then exits, along with every process that it has started
            self._control = None
        if self._launched is not None:
            try:
                self._launched.wait(GRACE_SECONDS if self._zygote is not None else 0.1)
            except subprocess.TimeoutExpired:
                if self._zygote is not None:
                    signal.pidfd_send_signal(self._zygote, signal.SIGKILL)
                self._launched.kill()
                self._launched.wait()
            self._launched = None
        if self._zygote is not None:
            os.close(self._zygote)
            self._zygote = None
        if self._stderr is not None:
            os.close(self._stderr)
            self._stderr = None
        if self._folder is not None:
            folder = Path(self._folder)
            if folder.exists() and empty(folder, max_entries=_MAX_LEFT):
                folder.rmdir()

    def _launch(self, isolation: Isolation, surroundings: Surroundings) -> None:
        scratch = SCRATCH if self._folder is None else Path(self._folder)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        guard = os.pidfd_open(os.getpid())
        try:
            self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            command = [*surroundings.command, str(theirs.fileno()), str(guard)]
            self._launched = subprocess.Popen(
                wrap(
                    isolation,
                    command,
                    surroundings=surroundings,
                    scratch=scratch,
                    scratch_bytes=self._limits.scratch_bytes,
                ),
                # The wrapper gets no other variables either, because a call could read them in /proc/1/environ.
                env=surroundings.variables | {"HOME": str(scratch), "TMPDIR": str(scratch)},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=(theirs.fileno(), guard),
                start_new_session=True,
            )
        except OSError as error:
            raise TransientError("sandbox_start", f"the sandbox process cannot be started: {error}") from error
        finally:
            theirs.close()
            os.close(guard)

    def _order(self, isolation: Isolation, setup: bytes, surroundings: Surroundings) -> None:
        assert self._control is not None
        scratch = SCRATCH if self._folder is None else Path(self._folder)
        has_landlock = isolation.level != "limits" and find_abi() > 0
        order = ZygoteOrder(
            function=self._function,
            limits=self._limits,
            scratch=str(scratch),
            mounts_scratch=isolation.level == "unshare",
            readable=tuple(map(str, list_readable(isolation, surroundings))) if has_landlock else (),
            writable=tuple(map(str, list_writable(scratch))),
            has_filter=isolation.level != "limits" and is_known(),
            shares_user=not isolation.has_namespaces and os.geteuid() != 0,
        )
        setup_file = _put(setup)
        try:
            socket.send_fds(self._control, [order.to_json()], [setup_file])
        except OSError:
            pass  # the zygote has already ended, and `_require_ready` reports why
        finally:
            os.close(setup_file)

    def _require_ready(self) -> None:
        assert self._control is not None
        data, sender = self._receive_start(time.monotonic() + START_SECONDS)
        if not data:
            reason = self._read_stderr() or "it exited before it was ready"
            raise OperatorError(
                "sandbox_start",
                f"the sandbox process for {self._function} does not start: {reason}",
                fix="Run covey doctor",
            )
        started = Started.from_json(data)
        match started.kind:
            case "ready":
                self.process_id = sender
                self._zygote = os.pidfd_open(sender)
            case "operator":
                raise OperatorError(started.code, started.message, fix=started.fix)
            case "transient":
                raise TransientError(started.code, started.message)
            case "other":
                raise OperatorError(
                    "sandbox_start",
                    f"the sandbox process for {self._function} does not start: {started.message}",
                    fix="Check the installation with covey doctor",
                )

    def _receive_start(self, deadline: float) -> tuple[bytes, int]:
        """Return the zygote's first message and its process id. The message is empty if the zygote has ended."""
        assert self._control is not None
        waiting = select.poll()
        waiting.register(self._control, select.POLLIN)
        while not waiting.poll(max(0.0, min(_REPORT_SECONDS, deadline - time.monotonic())) * 1000):
            if time.monotonic() < deadline:
                # Imported here, because the process in the sandbox does not need it.
                from covey.runtime.log import get_logger

                get_logger().warning("waiting for a sandbox process to start", function=self._function)
                continue
            if self._launched is not None:
                self._launched.kill()
            raise TransientError(
                "sandbox_start", f"the sandbox process for {self._function} did not start within {START_SECONDS:.0f} s"
            )
        try:
            data, ancillary, _, _ = self._control.recvmsg(MAX_MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
        except ConnectionResetError:
            return b"", 0
        for _, kind, value in ancillary:
            if kind == socket.SCM_CREDENTIALS:
                return data, int(_CREDENTIALS.unpack(value[: _CREDENTIALS.size])[0])
        return data, 0

    def _await(self, reading: int) -> tuple[list[bytes], Ending | None, bool]:
        """Return a call's output, how the call ended (None if the zygote died), and whether the output was too long."""
        assert self._control is not None
        pieces: list[bytes] = []
        size, is_over = 0, False
        deadline = time.monotonic() + self._limits.wall_seconds + GRACE_SECONDS
        waiting = select.poll()  # select() refuses descriptors over 1023, which a busy server has
        waiting.register(self._control, select.POLLIN)
        waiting.register(reading, select.POLLIN)
        ending: Ending | None = None
        is_open = True
        while ending is None or is_open:
            ready = {descriptor for descriptor, _ in waiting.poll(max(0.0, deadline - time.monotonic()) * 1000)}
            if not ready:
                return pieces, None, is_over
            if reading in ready:
                piece = os.read(reading, _CHUNK)
                size += len(piece)
                if not piece or size > self._limits.output_bytes + 1:
                    waiting.unregister(reading)
                    is_open = False
                if size > self._limits.output_bytes + 1:
                    is_over = True
                    self._stop()
                elif piece:
                    pieces.append(piece)
            if self._control.fileno() in ready:
                ending = self._receive_ending()
                if ending is None:
                    return pieces, None, is_over
                waiting.unregister(self._control)
        return pieces, ending, is_over

    def _stop(self) -> None:
        assert self._control is not None
        try:
            self._control.send(STOP)
        except OSError:
            return  # the zygote has ended, which the next poll shows

    def _receive_ending(self) -> Ending | None:
        assert self._control is not None
        try:
            data = self._control.recv(MAX_MESSAGE_BYTES)
        except ConnectionResetError:
            return None
        return Ending.from_json(data) if data else None

    def _read_stderr(self) -> str:
        """Return the last line that the zygote or its wrapper has written to standard error."""
        assert self._stderr is not None
        lines = os.pread(self._stderr, 1 << 16, 0).decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:500] if lines else ""


def _put(data: bytes) -> int:
    """Return the descriptor of a sealed in-memory file that contains `data` and cannot be changed."""
    descriptor = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _judge(written: bytes, ending: Ending, limits: CallLimits, *, is_over: bool) -> CallOutcome:
    """Determine the outcome of a call from what it has written and how it ended."""
    answer: bytes | None = None
    error: SandboxError | ProtocolError | None = None
    status, body = written[:1], written[1:]
    if is_over:
        error = SandboxError("sandbox_output", f"the output of the call exceeds {limits.output_bytes} bytes")
    elif ending.cause == "cpu":
        error = SandboxError("sandbox_cpu", f"the call used more than {limits.cpu_seconds} CPU seconds")
    elif ending.cause == "wall":
        error = SandboxError("sandbox_timeout", f"the call took more than {limits.wall_seconds} s")
    elif ending.cause == "memory" or status == OUT_OF_MEMORY:
        error = SandboxError("sandbox_memory", f"the call used more than {limits.memory_bytes} bytes of memory")
    elif ending.cause == "processes":
        error = SandboxError("sandbox_died", f"the call started more than {limits.processes} processes")
    elif ending.cause in {"signal", "stopped"}:
        error = SandboxError("sandbox_died", f"the sandbox process was ended by signal {ending.status} during the call")
    elif ending.status != 0 or status not in {OK, REFUSED, RAISED}:
        error = SandboxError(
            "sandbox_died", f"the sandbox process ended with exit status {ending.status} during the call"
        )
    elif status == RAISED:
        # Only letters and digits, and not many of them, because the input may have chosen the name.
        name = "".join(filter(str.isalnum, body[:64].decode("ascii", "replace")))
        error = SandboxError("sandbox_died", f"the call raised an unexpected {name}")
    elif status == REFUSED:
        code, _, message = body.decode("utf-8", "replace").partition("\n")
        error = ProtocolError(code, message)
    else:
        answer = body
    return CallOutcome(answer=answer, error=error, cpu_seconds=ending.cpu_seconds, peak_bytes=ending.peak_bytes)
