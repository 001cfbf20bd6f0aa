"""How often the engine died over one lease, and how often it hung in a row."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from worker.leases import HeldLease


class Failure(NamedTuple):
    """A failure of the engine, counted."""

    deaths: int
    """Deaths of the engine over this lease."""
    total: int
    """Deaths over this lease, or hangs in a row, by the kind of the failure; 0 for other kinds."""


@dataclass(slots=True, kw_only=True)
class EngineHealth:
    """Example: `failure = health.record_failure("engine_died", held)`."""

    clock: Callable[[], float] = time.monotonic
    hangs: int = 0
    """Calls in a row at which the engine hung."""
    hung_at: float = -math.inf
    """When the engine hung last, by `clock`."""

    def record_failure(self, code: str, held: HeldLease) -> Failure:
        """Count a failure over a lease.  What ran alongside a call that hung ended with it and is counted once."""
        is_new = held.begun >= self.hung_at
        deaths = held.deaths + (is_new and code == "engine_died")
        if is_new and code == "engine_timeout":
            self.hangs, self.hung_at = self.hangs + 1, self.clock()
        return Failure(deaths, {"engine_died": deaths, "engine_timeout": self.hangs}.get(code, 0))

    def record_success(self) -> None:
        """The engine is done with a task, so it does not hang."""
        self.hangs = 0
