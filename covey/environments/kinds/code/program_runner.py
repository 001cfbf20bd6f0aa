"""The process that runs a program. The module `programs` starts `main` in a fresh interpreter.

It receives the program and one input at a time, never an expected output, so nothing in its memory helps a
program to pass a test. Each test runs in a fork. Arguments: CPU_SECONDS MEMORY_BYTES OUTPUT_BYTES PROCESSES
CHANNEL. All tests share the CPU seconds, and 0 for PROCESSES means no limit. CHANNEL is the descriptor of a
socket between a program and its assertions, which each run in a process of this kind. It is -1 if there are none.

Frames arrive on standard input (`program_frames`): the program, how to run it (`program_code.Program`), then one
frame per input. One reply per input is written to standard output: a status byte, an 8-byte length, the output.

Every grading process waits for the imports of this module, so it does not import `signal`, `typing` or
`subprocess`.
"""

from __future__ import annotations

import os
import resource
import select
import struct
import sys
import time

from covey.environments.kinds.code.program_code import Program
from covey.environments.kinds.code.program_frames import read_frame, write_all
from covey.environments.kinds.code.program_processes import (
    SIGKILL,
    ProcessLimits,
    bind,
    end_leftovers,
    give_up_rights,
    kill,
    limit,
    round_up,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

DONE, FAILED, OUT_OF_TIME, OUT_OF_MEMORY, TOO_SLOW, TOO_LONG, BROKEN = b"dfcmwob"
"""Statuses of a reply: the program succeeded, failed, or reached the limit of CPU time, memory, wall clock or output.
BROKEN means that the program's processes could not be ended, and no further test runs."""
REPLY = struct.Struct(">BQ")
"""Header of a reply: its status, and the length of the output in bytes."""
WALL_SECONDS, WALL_FACTOR = 2.0, 5.0
"""Wall clock limit of a test: a constant in seconds, plus a multiple of the CPU seconds that are left."""

NO_CHANNEL = -1
"""Descriptor in place of a channel if the program has no assertions."""
_MEMORY_EXIT = 86
"""Exit status of a program that failed with a MemoryError."""
_RESULT = 3
"""Descriptor to which the result of a called function is written, or on which a program and its assertions talk.
What the program prints is discarded."""
_SIGXCPU = 24
_CHUNK = 1 << 16


def main() -> NoReturn:
    """Read the program from standard input, then run one test per input until standard input ends."""
    limits, channel = ProcessLimits(float(sys.argv[1]), *map(int, sys.argv[2:5])), int(sys.argv[5])
    sys.argv[:] = ["solution.py"]
    os.environ.clear()
    sys.set_int_max_str_digits(0)  # the CPU limit bounds conversions, and some tests have longer integers
    commands, replies = _take_channels()
    give_up_rights()
    bind(limits)
    source, how = read_frame(commands), read_frame(commands)
    status, program = FAILED, None
    try:
        program = Program((source or b"").decode(), (how or b"").decode())
    except MemoryError:
        status = OUT_OF_MEMORY
    except (SyntaxError, ValueError, RecursionError):
        pass
    number = 0
    while (test_input := read_frame(commands)) is not None:
        number += 1
        output = b""
        if program is not None:
            status, output = run_test(program, test_input, limits, folder=str(number), channel=channel)
            if not end_leftovers():
                status = BROKEN
        if channel != NO_CHANNEL:
            os.close(channel)  # the process at the other end sees that this one's test has ended
            channel = NO_CHANNEL
        write_all(replies, REPLY.pack(status, len(output)) + output)
        if status == BROKEN:
            break
    os._exit(0)


def run_test(program: Program, given: bytes, limits: ProcessLimits, *, folder: str, channel: int) -> tuple[int, bytes]:
    """Run one test in a fork, in its own folder. Return its status, and what it printed or returned."""
    left = limits.compute_left()
    if left <= 0:
        return OUT_OF_TIME, b""
    os.mkdir(folder)
    stdin, stdin_end = os.pipe()
    output_end, output = os.pipe()
    child = os.fork()
    if child == 0:
        limits.cpu_seconds = left
        _run_child(program, given, limits, folder=folder, stdin=stdin, output=output if channel < 0 else channel)
    os.close(stdin)
    os.close(output)
    watched = os.pidfd_open(child)
    transfer = Transfer(given if program.prints else b"", stdin_end, output_end)
    try:
        stopped = transfer.carry(watched, limits, deadline=time.monotonic() + WALL_SECONDS + WALL_FACTOR * left)
        if stopped is not None:
            os.kill(child, SIGKILL)
        _, ending, used = os.wait4(child, 0)
    finally:
        transfer.close()
        os.close(watched)
    kill(-child, SIGKILL)
    if stopped is not None:
        return stopped, b""
    return _judge(ending, used.ru_utime + used.ru_stime, left), bytes(transfer.written)


class Transfer:
    """Writes a test's input to its process, and reads its output."""

    def __init__(self, given: bytes, stdin: int, output: int) -> None:
        self._given, self._stdin, self._output = memoryview(given), stdin, output
        self.written = bytearray()
        self._open = {stdin, output}
        for descriptor in self._open:
            os.set_blocking(descriptor, False)

    def carry(self, watched: int, limits: ProcessLimits, *, deadline: float) -> int | None:
        """Transfer data until the test's process ends or reaches a limit. Return None or the status for that limit."""
        waiting = select.poll()
        waiting.register(watched, select.POLLIN)
        waiting.register(self._output, select.POLLIN)
        waiting.register(self._stdin, select.POLLOUT)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return TOO_SLOW
            ready = [descriptor for descriptor, _ in waiting.poll(1000 * left)]
            for descriptor in self._open.intersection(ready):
                if not (self._give() if descriptor == self._stdin else self._take(limits.output_bytes)):
                    waiting.unregister(descriptor)
                    self._close(descriptor)
            if watched in ready and self._output in self._open:
                # Output written before the process ended counts. What its orphans may still write does not.
                self._take(limits.output_bytes, once=False)
            if len(self.written) > limits.output_bytes:
                return TOO_LONG
            if watched in ready:
                return None

    def close(self) -> None:
        for descriptor in list(self._open):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        self._open.remove(descriptor)
        os.close(descriptor)

    def _give(self) -> bool:
        """Write a chunk of the input. Return False if all of it is written or the test has closed its input."""
        try:
            self._given = self._given[os.write(self._stdin, self._given[:_CHUNK]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self._given)

    def _take(self, most: int, *, once: bool = True) -> bool:
        """Read one chunk of the output, or all that is available if `once` is False. Return False at its end."""
        while len(self.written) <= most:
            try:
                piece = os.read(self._output, _CHUNK)
            except BlockingIOError:
                return True
            if not piece:
                return False
            self.written += piece
            if once:
                return True
        return True


def _run_child(
    program: Program, given: bytes, limits: ProcessLimits, *, folder: str, stdin: int, output: int
) -> NoReturn:
    leave, status = os._exit, 1
    try:
        os.chdir(folder)
        _become_test(limits.cpu_seconds, stdin=stdin, output=output, prints=program.prints)
        status = program.run(given, _RESULT, max_bytes=limits.output_bytes)
    except MemoryError:
        status = _MEMORY_EXIT
    finally:
        # No exception of the program or of its exit handlers may continue in this fork.
        leave(status)


def _become_test(cpu_seconds: float, *, stdin: int, output: int, prints: bool) -> None:
    """Turn this fork into a test's process, with its own session, a CPU limit, and only the descriptors needed."""
    os.setsid()
    if prints:
        os.dup2(stdin, 0)
        os.dup2(output, 1)
    else:
        os.dup2(output, _RESULT)  # descriptors 0 to 2 are /dev/null already
    os.closerange(_RESULT if prints else _RESULT + 1, 1 << 20)
    seconds = round_up(cpu_seconds)
    limit(resource.RLIMIT_CPU, seconds, seconds + 1)


def _judge(ending: int, used_seconds: float, left_seconds: float) -> int:
    """Return the status of a test from how its process ended."""
    if os.WIFEXITED(ending):
        return {0: DONE, _MEMORY_EXIT: OUT_OF_MEMORY}.get(os.WEXITSTATUS(ending), FAILED)
    # The soft limit sends a signal that a program can ignore, and the hard limit kills. The kernel counts ticks for
    # both, which on a busy machine can be far from the CPU time that it reports. A program that kills itself at once
    # has used hardly any time.
    is_spent = used_seconds >= round_up(left_seconds) / 2
    return OUT_OF_TIME if is_spent and os.WTERMSIG(ending) in {_SIGXCPU, SIGKILL} else FAILED


def _take_channels() -> tuple[int, int]:
    """Move the command and reply channels to new descriptors, and redirect descriptors 0 to 2 to /dev/null.

    No test inherits the new descriptors.
    """
    commands, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    return commands, replies
