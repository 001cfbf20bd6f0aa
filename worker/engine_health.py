"""Counts engine failures: deaths during one lease, and consecutive hangs."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from worker.leases import HeldLease


class Failure(NamedTuple):
    """The counts after one more engine failure."""

    deaths: int
    """Number of times that the engine died during this lease."""
    total: int
    """Count that matters for this failure: deaths during the lease, or consecutive hangs. 0 for any other kind of
    failure.
    """


@dataclass(slots=True, kw_only=True)
class EngineHealth:
    """Failure counts of one engine. Example: `failure = health.record_failure("engine_died", held)`."""

    clock: Callable[[], float] = time.monotonic
    hangs: int = 0
    """Number of consecutive engine calls that hung."""
    hung_at: float = -math.inf
    """Time of the engine's last hang on `clock`. Minus infinity if it never hung."""

    def record_failure(self, code: str, held: HeldLease) -> Failure:
        """Count a failure during a lease. Concurrent calls that ended with one hung call count as one hang."""
        is_new = held.begun >= self.hung_at
        deaths = held.deaths + (is_new and code == "engine_died")
        if is_new and code == "engine_timeout":
            self.hangs, self.hung_at = self.hangs + 1, self.clock()
        return Failure(deaths, {"engine_died": deaths, "engine_timeout": self.hangs}.get(code, 0))

    def record_success(self) -> None:
        """Reset the number of hangs after a finished task."""
        self.hangs = 0
