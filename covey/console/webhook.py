"""Sends lines to a webhook from a thread, so that a slow or dead server delays nothing else.

What waits is bounded. If it is too much, the oldest line is dropped, and the next one that is delivered is preceded by
one that says how many are missing.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from covey.chain.bounded_http import post_json
from covey.errors import TransientError

MAX_WAITING = 256
"""Maximum number of lines that wait to be sent."""
POST_SECONDS = 10.0
"""Timeout in seconds of a request."""
FLUSH_SECONDS = 15.0
"""Seconds in which `close` sends what waits. It then gives up."""


class Webhook:
    """A URL that gets each line by POST. Example: `with Webhook(url, report=print) as webhook: webhook.put(line)`."""

    def __init__(
        self,
        url: str,
        *,
        report: Callable[[str], None],
        post: Callable[[str, bytes], None] | None = None,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        """`report` is given a text for each line that was not delivered. `post` replaces the request."""
        self._url, self._report, self._flush_seconds = url, report, flush_seconds
        self._post = post or (lambda url, data: post_json(url, data, seconds=POST_SECONDS))
        self._waiting: deque[str] = deque()
        self._dropped = 0
        """Number of lines that were dropped since the last one that was delivered."""
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_sending = False
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._send_all, name="webhook", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Send a line soon. It returns at once."""
        with self._changed:
            if len(self._waiting) == MAX_WAITING:
                self._waiting.popleft()
                self._dropped += 1
                if self._dropped == 1:
                    self._report("the webhook is too slow, so its oldest lines are dropped")
            self._waiting.append(line)
            self._changed.notify_all()

    def close(self) -> None:
        """Send what waits, for at most `flush_seconds`. Report how many lines were not sent."""
        with self._changed:
            self._is_closing, self._deadline = True, time.monotonic() + self._flush_seconds
            self._changed.notify_all()
        self._thread.join(self._flush_seconds)
        with self._changed:
            unsent = len(self._waiting) + self._is_sending
            self._waiting.clear()
        if unsent:
            self._report(f"the webhook did not take the last {unsent} lines in time")

    def _send_all(self) -> None:
        while (line := self._take()) is not None:
            try:
                self._post(self._url, line.encode())
            except TransientError as error:
                self._report(f"the webhook did not take a line: {error.message}")
            with self._changed:
                self._is_sending = False

    def _take(self) -> str | None:
        """Wait for the next line. None: `close` was called, and nothing waits or its time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            is_late = self._deadline is not None and time.monotonic() >= self._deadline
            if not self._waiting or is_late:
                return None
            self._is_sending = True
            if self._dropped:
                text = f"{self._dropped} older lines were dropped, because the webhook is too slow"
                about = {"event": "webhook", "code": "dropped", "text": text, "time": int(time.time())}
                self._dropped = 0
                return json.dumps(about, sort_keys=True)
            return self._waiting.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
