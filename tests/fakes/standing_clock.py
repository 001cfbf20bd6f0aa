"""Sources of a download whose clock stands while a healthy source is asked, so that a slow machine costs no time."""

import threading
import time
from collections.abc import Collection, Sequence

from covey.shardcast.download import Sources
from covey.shardcast.source import Source
from covey.shardcast.source_connection import Connection


class StandingSources(Sources):
    """Sources with a clock that starts at 0 and moves by `STEP_S` with each look of the supervisor of a download.

    It stands while a source outside `slow` is asked. `slow` holds the URLs of sources that stall, and a test may change
    it. The supervisor is the thread that makes the sources.
    """

    STEP_S = 0.05

    def __init__(self, urls: Sequence[str], *, slow: Collection[str] = (), seed: int | None = None) -> None:
        self.slow, self.now, self.is_closed = slow, 0.0, False
        self.begun: list[tuple[str, float]] = []
        """URL of the source and start of each request."""
        self._asked: list[Source] = []
        self._supervisor = threading.current_thread()
        super().__init__(urls, clock=self._look, seed=seed)

    def take_connection(self, source: Source) -> Connection:
        self._asked.append(source)
        self.begun.append((source.url, self.now))
        return super().take_connection(source)

    def return_connection(self, source: Source, connection: Connection) -> None:
        self._asked.remove(source)
        super().return_connection(source, connection)

    def close(self) -> None:
        self.is_closed = True
        super().close()

    def wait_until(self, due: float) -> None:
        """Wait in the thread of a server until the clock shows `due` or the sources are closed."""
        while self.now < due and not self.is_closed:
            time.sleep(0.001)

    def _look(self) -> float:
        if threading.current_thread() is self._supervisor and all(each.url in self.slow for each in self._asked.copy()):
            self.now += self.STEP_S
        return self.now
