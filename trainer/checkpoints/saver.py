"""Writes what makes a step durable in a thread, while the next step runs."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Saver:
    """Runs one write after another. After a failure nothing else is written, and every call raises its error.

    Otherwise a later step would be written without the one before, and no restart could resume from it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")
        self._policy: Future[None] | None = None
        self._write: Future[None] | None = None

    def start(self, write: Callable[[], None], write_rest: Callable[[], None] | None = None) -> None:
        """Wait for the previous write, then start another one. `write_rest` follows `write` unless that fails."""
        self.wait()
        self._policy = self._write = written = self._thread.submit(write)
        if write_rest is not None:

            def follow(rest: Callable[[], None]) -> None:
                written.result()
                rest()

            self._write = self._thread.submit(follow, write_rest)

    def check(self) -> None:
        """Raise the error of the write if it has failed. Does not wait."""
        write = self._write  # another thread may start the next one
        if write is not None and write.done():
            write.result()

    def wait_for_policy(self) -> None:
        """Wait until the `write` of `start` has ended, which includes the policy."""
        if self._policy is not None:
            self._policy.result()

    def wait(self) -> None:
        """Wait until nothing is written."""
        if self._write is not None:
            self._write.result()

    def close(self) -> None:
        """Finish the write, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
