"""A relay or origin as a client sees it: its speed and reliability, and when it may be asked again.

The probability of a source is proportional to its success rate times its bandwidth (INTELLECT-2, section on SHARDCAST).
A source that fails rests for a moment, and one that sends wrong bytes rests longer. A source that is not used slowly
regains trust.
"""

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_SMOOTHING = 0.2
_HEALING = 0.02
"""Share of its lost trust that an unused source regains with each request to another source."""
_RATED_BYTES = 1 << 20
"""Minimum size in bytes of a delivery that measures the bandwidth. A smaller one measures the latency."""
_FIRST_BANDWIDTH = 50e6
"""Assumed bandwidth of a source in bytes/s, until it or another source has been measured."""
_REST_SECONDS, _LONGEST_REST_SECONDS = 0.25, 10.0
"""Seconds for which a source rests after its first failure, and the maximum. Each further failure doubles the time."""
_LIE_REST_SECONDS, _LONGEST_LIE_REST_SECONDS = 3.0, 30.0
"""Seconds for which a source rests after its first wrong body, and the maximum. Each further one doubles the time."""


@dataclass(slots=True, eq=False)
class Source:
    """State of one relay or origin. Times are in seconds of the caller's clock."""

    url: str
    success: float = 1.0
    """Moving average of the share of successful requests, from 0 to 1."""
    bandwidth: float | None = None
    """Moving average of the bandwidth of one connection in bytes/s. None until a large delivery has measured it."""
    rests_until: float = -math.inf
    delivered: int = 0
    """Number of correct bytes that the source has delivered."""
    _failures: int = field(default=0, repr=False)
    """Number of consecutive failures."""
    _lies: int = field(default=0, repr=False)

    def record_delivery(self, size: int, seconds: float) -> None:
        """Record `size` correct bytes that took `seconds`."""
        self._learn_bandwidth(size, seconds)
        self.success += _SMOOTHING * (1 - self.success)
        self.delivered += size
        self._failures = 0

    def record_failure(self, now: float) -> None:
        """Record that a request was refused, broke off or took too long."""
        self.success *= 1 - _SMOOTHING
        if self.rests_until <= now:  # Concurrent requests that fail count as one failure.
            self.rests_until = now + min(_REST_SECONDS * 2**self._failures, _LONGEST_REST_SECONDS)
            self._failures = min(self._failures + 1, 16)

    def record_defeat(self, size: int, seconds: float, now: float) -> None:
        """Record that another source was faster, after this one had sent `size` bytes in `seconds`."""
        if size:
            self._learn_bandwidth(size, seconds)
        else:
            self.record_failure(now)

    def record_lie(self, now: float) -> None:
        """Record a wrong body. Unlike a failure, it costs the source all trust."""
        self.success = 0.0
        if self.rests_until <= now:
            self.rests_until = now + min(_LIE_REST_SECONDS * 2**self._lies, _LONGEST_LIE_REST_SECONDS)
            self._lies = min(self._lies + 1, 16)

    def heal(self) -> None:
        """Regain some trust, because another source was asked instead."""
        self.success += _HEALING * (1 - self.success)

    def _learn_bandwidth(self, size: int, seconds: float) -> None:
        if size >= _RATED_BYTES:
            rate = size / max(seconds, 1e-6)
            self.bandwidth = rate if self.bandwidth is None else self.bandwidth + _SMOOTHING * (rate - self.bandwidth)


def choose(sources: Sequence[Source], excluded: Collection[Source], now: float, *, rng: random.Random) -> Source | None:
    """Draw a source by weight among those that are neither excluded nor resting. All other sources regain some trust.

    If all remaining sources are resting, returns the one that rests for the shortest time. Returns None if all are
    excluded.
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
    """Return whether a URL names an HTTP server. Never raises an error, because the URL may come from a stranger."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
