"""`covey` on a clock that a test moves. The processes that it starts have the same clock.

Only what asks for the time of day is moved. Timeouts go on with the monotonic clock, as on a machine whose time is set.
"""

import mmap
import os
import struct
import time
from pathlib import Path

VARIABLE = "TEST_CLOCK"
"""Environment variable with the path of the file that holds the seconds to add."""
_OFFSET = struct.Struct("<d")


class MovedClock:
    """The clock of one process. Example: `clock.move(-180)`, and `clock.move(0)` sets it right."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.environment = {VARIABLE: str(path)}
        path.write_bytes(_OFFSET.pack(0.0))

    def move(self, seconds: float) -> None:
        """Let the clock differ by some seconds from the machine's."""
        with self._path.open("r+b") as file:
            file.write(_OFFSET.pack(seconds))


def _install(path: str) -> None:
    with open(path, "r+b") as file:
        offset = mmap.mmap(file.fileno(), _OFFSET.size)
    read = time.time
    time.time = lambda: read() + _OFFSET.unpack_from(offset)[0]


# A process that multiprocessing spawns imports this module again, before all others.
if __name__ in ("__main__", "__mp_main__"):
    _install(os.environ[VARIABLE])
if __name__ == "__main__":
    from covey.cli import main

    main()
