"""Sources of a download whose clock stands while a healthy source is asked, so that a slow machine costs no time."""

import threading
import time
from collections.abc import Collection, Sequence

from covey.shardcast.download import Sources
from covey.shardcast.source import Source
from covey.shardcast.source_connection import Connection


class StandingSources(Sources):
    """Sources with a clock that starts at 0 and moves by `STEP_S` with a look of the supervisor of a download.

    It moves only while each worker waits for the clock: either a source in `slow` is asked, or the worker has found
    nothing to ask for at this time. So it does not matter how late the threads of workers run. `slow` holds the URLs of
    sources that stall, and a test may change it. The supervisor is the thread that makes the sources.
    """

    STEP_S = 0.05

    def __init__(self, urls: Sequence[str], *, slow: Collection[str] = (), seed: int | None = None) -> None:
        self.slow, self.now, self.is_closed = slow, 0.0, False
        self.begun: list[tuple[str, float]] = []
        """URL of the source and start of each request."""
        self._asked: dict[threading.Thread, tuple[Source, Connection]] = {}
        """Source and connection of each worker with a request."""
        self._searched: set[threading.Thread] = set()
        """Workers that have searched for a request since the clock moved or a request ended."""
        self._dues: list[float] = []
        """Times for which servers wait."""
        self._supervisor = threading.current_thread()
        super().__init__(urls, clock=lambda: self.now, seed=seed)

    @property
    def patience(self) -> float:
        """The worker that reads this searches for a request, and the supervisor looks at all. Both hold a lock."""
        thread = threading.current_thread()
        if thread is not self._supervisor:
            self._searched.add(thread)
        elif self._is_time_awaited():
            self._searched.clear()
            self.now += self.STEP_S
        return super().patience

    def take_connection(self, source: Source) -> Connection:
        connection = super().take_connection(source)
        self._asked[threading.current_thread()] = source, connection
        self.begun.append((source.url, self.now))
        return connection

    def return_connection(self, source: Source, connection: Connection) -> None:
        del self._asked[threading.current_thread()]
        self._searched.clear()
        super().return_connection(source, connection)

    def close(self) -> None:
        self.is_closed = True
        super().close()

    def wait_until(self, due: float) -> None:
        """Wait in the thread of a server until the clock shows `due` or the sources are closed."""
        self._dues.append(due)
        while self.now < due and not self.is_closed:
            time.sleep(0.001)
        self._dues.remove(due)

    def _is_time_awaited(self) -> bool:
        """Return whether neither a worker nor a server has anything to do before the clock moves."""
        workers = [thread for thread in threading.enumerate() if thread.name.startswith("download")]
        return all(due > self.now for due in self._dues) and all(map(self._is_waiting, workers))

    def _is_waiting(self, worker: threading.Thread) -> bool:
        if worker not in self._asked:
            return worker in self._searched
        source, connection = self._asked[worker]
        return source.url in self.slow and not connection._is_aborted  # One that was aborted ends its request.
