"""What the clients of the benchmark `crowd` have in common: the times of a run, what they count, and how they are led.

`Schedule` says when a phase ends and when a node vanishes, so that processes agree on it without messages.
"""

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.network.coordinator_load import Tally, compute_percentiles

Phase = Literal["warm", "first", "second"]
VANISHING_OF_TEN = 3
"""Number of nodes in ten that take a lease and are not heard any more."""
PROGRESS_S = 10.0
"""Seconds between two lines about the progress of a run."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Times of a run in seconds. Example: Schedule(warm_s=30, run_s=600, beat_s=30)."""

    warm_s: float
    """Seconds before the run that are not counted, in which each node is heard for the first time."""
    run_s: float
    beat_s: float
    """Seconds between two heartbeats of a node."""

    @property
    def end_s(self) -> float:
        """Seconds from the start to the end of the run."""
        return self.warm_s + self.run_s

    def find_phase(self, elapsed: float) -> Phase:
        """Return the phase at a number of seconds after the start."""
        if elapsed < self.warm_s:
            return "warm"
        return "first" if elapsed < self.warm_s + self.run_s / 2 else "second"

    def compute_vanishing(self, number: int, nodes: int) -> float | None:
        """Return the seconds after which a node takes a lease and vanishes. None if it stays.

        Three of each ten nodes do so, one after another and evenly over the run.
        """
        if number % 10 >= VANISHING_OF_TEN:
            return None
        return self.warm_s + self.run_s * (number + 0.5) / nodes


def build_address(number: int, *, first: int) -> str:
    """Return an own loopback address. Example: number=256, first=64 gives "127.64.1.0"."""
    return f"127.{first + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


@dataclass
class PhasedTally(Tally):
    """What the clients have seen, by phase. `encode` returns it with percentiles of each phase and of the whole run."""

    schedule: Schedule = field(default_factory=lambda: Schedule(warm_s=0, run_s=0, beat_s=1))
    started_at: float = 0.0
    """Time of the start on the monotonic clock."""
    refused: dict[str, int] = field(default_factory=dict)
    """Number of refused requests by kind."""
    lost: int = 0
    """Number of requests whose connection ended before the answer."""
    skipped: int = 0
    """Number of turns that were skipped because too many nodes worked already."""
    lags: list[float] = field(default_factory=list)
    """Seconds by which heartbeats were sent later than they were due."""
    claims: list[tuple[float, float | None]] = field(default_factory=list)
    """Times on the monotonic clock at which nodes asked for work and got it. None: they did not get it in the run."""
    orders: list[tuple[int, int, str, float, float]] = field(default_factory=list)
    """Task, lease, node, beginning and end of each lease that a node got, in Unix seconds."""

    def add(self, kind: str, started: float, status: int, body: bytes) -> None:
        """Count an answer."""
        phase = self.schedule.find_phase(started - self.started_at)
        if status >= 300:
            self.refused[kind] = self.refused.get(kind, 0) + 1
            body = body.partition(b',"message"')[0]  # A message names a node or a lease, so no two are equal.
        super().add(f"{kind}@{phase}", started, status, body)

    def encode(self) -> str:
        """Return the counts and percentiles as JSON."""
        phases: dict[str, dict[str, dict[str, float]]] = {}
        for kind in sorted({name.partition("@")[0] for name in self.durations}):
            parts = {phase: self.durations.get(f"{kind}@{phase}", []) for phase in ("warm", "first", "second")}
            parts["run"] = parts["first"] + parts["second"]
            phases[kind] = {phase: compute_percentiles(values) for phase, values in parts.items() if values}
        found = {
            "phases": phases,
            "lag": compute_percentiles(self.lags) if self.lags else {},
            "submitted": self.submitted,
            "judged": self.judged,
            "lost": self.lost,
            "skipped": self.skipped,
            "claims": self.claims,
            "orders": self.orders,
            "problems": dict(sorted(self.problems.items(), key=lambda pair: -pair[1])[:12]),
            "refused": self.refused,
        }
        return json.dumps(found)


class Commands:
    """Reads lines from standard input: "start", then any number of "rate 55.0"."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        """Target rate in turns per second."""
        self._data = b""
        self._start = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)

    async def await_start(self) -> float:
        """Say that all is prepared, wait for the start, and return its time on the monotonic clock."""
        print("ready", flush=True)
        await self._start
        return time.monotonic()

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            name, _, value = line.decode().partition(" ")
            if name == "start" and not self._start.done():
                self._start.set_result(None)
            elif name == "rate":
                self.rate = float(value)


async def await_time(at: float) -> None:
    """Wait until a time on the monotonic clock."""
    await asyncio.sleep(max(0.0, at - time.monotonic()))
