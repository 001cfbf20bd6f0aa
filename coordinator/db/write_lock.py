"""The lock that SQLite's writers take before BEGIN, so that processes take turns. It also counts their transactions.

SQLite's own busy handler polls, so a process that writes continuously would starve all others.
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
    """A fair lock of two files next to the database. Example: `with WriteLock(path).hold(): ...`.

    A writer waits for its turn with `flock` on the first file, and holds the second file while it writes. A writer that
    has just finished therefore comes after those that wait. The locks end with their process. The second file contains
    the number of the last transaction.
    """

    def __init__(self, database: Path) -> None:
        self._turn, self._writing = (database.with_name(f"{database.name}.{name}") for name in ("turn", "writing"))
        self._threads_turn, self._threads_writing = Lock(), Lock()
        """Locks with the same order for the threads of this process, which share the files."""

    @contextmanager
    def hold(self) -> Iterator[int]:
        """Wait for this thread's turn, and hold the lock until the end of the block.

        Yields the number of the block's transaction, which `read_count` returns once the block has ended.

        Raises TransientError("database_unavailable") if a file cannot be opened or written, for example on a full disk.
        The transaction may have been committed in that case.
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
        """Return the number of the last finished transaction, or 0 if there is none.

        A transaction that begins now sees what that one wrote.
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
    """Translate OSError about the lock's files to TransientError("database_unavailable")."""
    try:
        yield
    except OSError as error:
        raise TransientError("database_unavailable", f"the database cannot be locked: {error}") from error


def _read_count(file: int) -> int:
    data = os.pread(file, _COUNT.size, 0)
    return int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else 0
