"""The lock that SQLite's writers take before BEGIN, so that processes write in turns. It counts their transactions.

SQLite's own waiting is a loop of sleeps: a process that writes again and again keeps all others out.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock

from covey.errors import TransientError

_COUNT = struct.Struct("<q")


class WriteLock:
    """Two files next to the database, `flock`ed one after the other. Example: `with WriteLock(path).hold(): ...`.

    A writer waits for its turn on the first file and holds the second one, so one that has just written comes after
    those that wait. The locks end with their process. The second file holds the number of the last transaction.
    """

    def __init__(self, database: Path) -> None:
        self._turn, self._writing = (database.with_name(f"{database.name}.{name}") for name in ("turn", "writing"))
        self._threads_turn, self._threads_writing = Lock(), Lock()
        """The same for the threads of this process, which share the files."""

    @contextmanager
    def hold(self) -> Iterator[int]:
        """Wait for the turn of this thread, and keep the lock to the end of the block.

        Yields the number of the transaction in the block, which is counted once it has ended.

        Raises TransientError("database_unavailable") if a file cannot be opened or written, as on a full disk. What
        the block did may be kept even so, as if its answer had been lost.
        """
        with ExitStack() as held:
            with _translate_errors(), self._threads_turn, self._turn.open("w") as turn:
                fcntl.flock(turn, fcntl.LOCK_EX)
                held.enter_context(self._threads_writing)
                writing = os.open(self._writing, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                held.callback(os.close, writing)
                fcntl.flock(writing, fcntl.LOCK_EX)
                number = _read_count(writing) + 1
            yield number
            with _translate_errors():  # A process that dies before this has not reported the number.
                os.pwrite(writing, _COUNT.pack(number), 0)

    def read_count(self) -> int:
        """Return the number of the last transaction that has ended. A transaction that begins now sees what it wrote.

        0 if none has ended.
        """
        try:
            file = os.open(self._writing, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        try:
            return _read_count(file)
        finally:
            os.close(file)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise TransientError for the system's errors about the lock's files."""
    try:
        yield
    except OSError as error:
        raise TransientError("database_unavailable", f"the lock of the database: {error}") from error


def _read_count(file: int) -> int:
    data = os.pread(file, _COUNT.size, 0)
    return int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else 0
