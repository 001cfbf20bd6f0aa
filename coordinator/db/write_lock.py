"""The lock that SQLite's writers take before BEGIN, so that processes write in turns.

SQLite's own waiting is a loop of sleeps: a process that writes again and again keeps all others out.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock


class WriteLock:
    """Two files beside the database, `flock`ed one after the other. Example: `with WriteLock(path).hold(): ...`.

    A writer waits for its turn on the first file and holds the second one, so one that has just written comes after
    those that wait. The locks end with their process.
    """

    def __init__(self, database: Path) -> None:
        self._turn, self._writing = (database.with_name(f"{database.name}.{name}") for name in ("turn", "writing"))
        self._threads_turn, self._threads_writing = Lock(), Lock()
        """The same for the threads of this process, which share the files."""

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Wait for the turn of this thread, and keep the lock to the end of the block."""
        with ExitStack() as held:
            with self._threads_turn, self._turn.open("w") as turn:
                fcntl.flock(turn, fcntl.LOCK_EX)
                held.enter_context(self._threads_writing)
                fcntl.flock(held.enter_context(self._writing.open("w")), fcntl.LOCK_EX)
            yield
