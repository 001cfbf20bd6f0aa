"""Counts of engine failures: deaths over one lease, and consecutive hangs."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from worker.leases import HeldLease


class Failure(NamedTuple):
    """The counts after one more failure of the engine."""

    deaths: int
    """Number of times the engine died over this lease."""
    total: int
    """Deaths over this lease if the engine died, consecutive hangs if it hung, 0 for any other kind of failure."""


@dataclass(slots=True, kw_only=True)
class EngineHealth:
    """Failure counts of one engine, for example `failure = health.record_failure("engine_died", held)`."""

    clock: Callable[[], float] = time.monotonic
    hangs: int = 0
    """Number of consecutive calls at which the engine hung."""
    hung_at: float = -math.inf
    """Time of the engine's last hang, on `clock`. Minus infinity before the first."""

    def record_failure(self, code: str, held: HeldLease) -> Failure:
        """Count a failure over a lease. Calls that ran concurrently with a hung one ended with it and count once."""
        is_new = held.begun >= self.hung_at
        deaths = held.deaths + (is_new and code == "engine_died")
        if is_new and code == "engine_timeout":
            self.hangs, self.hung_at = self.hangs + 1, self.clock()
        return Failure(deaths, {"engine_died": deaths, "engine_timeout": self.hangs}.get(code, 0))

    def record_success(self) -> None:
        """Reset the number of hangs, because the engine has finished a task."""
        self.hangs = 0
