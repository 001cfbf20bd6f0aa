"""A relay or origin as a client sees it: how fast and how reliable it is, and when it may be asked again.

Sources are drawn in proportion to success times bandwidth (INTELLECT-2, section on SHARDCAST). A source that fails
rests for a moment, and one that sends wrong bytes for longer. One that is not used recovers slowly.
"""

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_SMOOTHING = 0.2
_HEALING = 0.02
"""Part of the way back to full trust that an unused source goes with each request to another source."""
_RATED_BYTES = 1 << 20
"""Size in bytes from which on a delivery tells the bandwidth. A smaller one tells the latency."""
_FIRST_BANDWIDTH = 50e6
"""Assumed bandwidth in bytes/s of a source, until it has delivered something or another source has."""
_REST_SECONDS, _LONGEST_REST_SECONDS = 0.25, 10.0
"""Seconds for which a source rests after its first failure, and at most. Each further failure doubles them."""
_LIE_REST_SECONDS, _LONGEST_LIE_REST_SECONDS = 3.0, 30.0
"""Seconds for which a source rests after its first wrong bytes, and at most. Each further lie doubles them."""


@dataclass(slots=True, eq=False)
class Source:
    """State of one relay. Times are in seconds of the clock that the caller uses."""

    url: str
    success: float = 1.0
    """Moving average of its successes, from 0 to 1."""
    bandwidth: float | None = None
    """Moving average of its bandwidth in bytes/s for one connection. None before the first delivery."""
    rests_until: float = -math.inf
    delivered: int = 0
    """Bytes that it has delivered and that were right."""
    _failures: int = field(default=0, repr=False)
    """Consecutive failures."""
    _lies: int = field(default=0, repr=False)

    def record_delivery(self, size: int, seconds: float) -> None:
        """Learn from `size` right bytes that took `seconds`."""
        self._learn_bandwidth(size, seconds)
        self.success += _SMOOTHING * (1 - self.success)
        self.delivered += size
        self._failures = 0

    def record_failure(self, now: float) -> None:
        """Learn that a request was refused, broke off or took too long."""
        self.success *= 1 - _SMOOTHING
        if self.rests_until <= now:  # Requests that fail together are one failure.
            self.rests_until = now + min(_REST_SECONDS * 2**self._failures, _LONGEST_REST_SECONDS)
            self._failures = min(self._failures + 1, 16)

    def record_defeat(self, size: int, seconds: float, now: float) -> None:
        """Learn that another source was faster, after `size` bytes had come in `seconds`."""
        if size:
            self._learn_bandwidth(size, seconds)
        else:
            self.record_failure(now)

    def record_lie(self, now: float) -> None:
        """Learn that bytes were wrong. Unlike a failure this costs all trust."""
        self.success = 0.0
        if self.rests_until <= now:
            self.rests_until = now + min(_LIE_REST_SECONDS * 2**self._lies, _LONGEST_LIE_REST_SECONDS)
            self._lies = min(self._lies + 1, 16)

    def heal(self) -> None:
        """Recover a little, because another source was asked instead."""
        self.success += _HEALING * (1 - self.success)

    def _learn_bandwidth(self, size: int, seconds: float) -> None:
        if size >= _RATED_BYTES:
            rate = size / max(seconds, 1e-6)
            self.bandwidth = rate if self.bandwidth is None else self.bandwidth + _SMOOTHING * (rate - self.bandwidth)


def choose(sources: Sequence[Source], excluded: Collection[Source], now: float, *, rng: random.Random) -> Source | None:
    """Draw a source by weight among those that are neither excluded nor resting. All others heal.

    If all that are not excluded are resting, the one that rests the shortest is taken. None if all are excluded.
    """
    allowed = [source for source in sources if source not in excluded]
    if not allowed:
        return None
    rested = [source for source in allowed if source.rests_until <= now]
    if not rested:
        return min(allowed, key=lambda source: source.rests_until)
    known = max((source.bandwidth for source in rested if source.bandwidth is not None), default=_FIRST_BANDWIDTH)
    weights = [max(source.success, 1e-3) * (source.bandwidth or known) for source in rested]
    (chosen,) = rng.choices(rested, weights=weights)
    for source in sources:
        if source is not chosen:
            source.heal()
    return chosen


def is_source_url(url: str) -> bool:
    """Return whether a URL from a stranger names an HTTP server. One that does not must not end the client."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
