"""The main thread of a notebook, which makes calls for a run in another thread.

A notebook's cell is in a running event loop, so the run needs a thread of its own. The main thread would only wait.
"""

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
_LOOK_SECONDS = 0.5
"""Maximum wait in seconds. A signal just before the wait does not end it."""


class MainThread:
    """Calls for other threads. Example: `MainThread().run_apart(lambda: train())` in the main thread."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.on_interrupt: Callable[[], object] | None = None
        """Function for the first Ctrl-C. None: it raises KeyboardInterrupt, as later ones do."""
        self.on_leave: Callable[[], object] | None = None
        """Function that ends the waits of the other thread after such a KeyboardInterrupt. None: it has no waits."""

    def post(self, call: Callable[[], None]) -> None:
        """Make the main thread call a function soon. The function must raise nothing except KeyboardInterrupt."""
        self._calls.put(call)

    def run_apart(self, function: Callable[[], Result]) -> Result:
        """Return the result of a function in a thread of its own, and make the calls of `post` until it ends.

        KeyboardInterrupt leaves it at once. The thread then ends by itself.
        """
        thread = ThreadPoolExecutor(max_workers=1)
        future = thread.submit(function)
        thread.shutdown(wait=False)
        future.add_done_callback(lambda _: self._calls.put(None))
        while True:
            try:
                self._make_calls()
                return future.result()
            except KeyboardInterrupt:
                if not future.done() and self.on_interrupt is not None:
                    self.on_interrupt()
                    self.on_interrupt = None
                    continue
                if not future.done() and self.on_leave is not None:
                    self.on_leave()
                raise

    def _make_calls(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if call is None:
                return
            call()
