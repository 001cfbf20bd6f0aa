"""What a worker expects to earn by `covey worker measure`, and what it then earns in a pool that always has work.

ARGS of `make bench NAME=expected-pay` may be `--seconds 600 --measure 60`. The coordinator and the
validators run on the same machine as the worker and take a part of its processor, which a contributor's machine has for
itself. Steps are so large that the trainer never has a batch.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses
from covey.cli import app
from covey.demo.demo_network import POOL, DemoNetwork
from covey.demo.participants import DemoOptions, Participants
from covey.protocol.api.public import SubmissionView
from covey.protocol.status import SubmissionState

BAR = Bar(least=0.85, most=1.15)
WARM_UP_SECONDS = 20.0
"""Seconds after the first submission that are not counted, as the measurement does not count its first task."""
READY_SECONDS = 300.0
"""Deadline in seconds for the first policy, and again for the first submission."""
DECIDE_SECONDS = 300.0
"""Deadline in seconds for the verdicts about all work of the window."""
MAX_ROWS = 10_000
NAME = "expected-pay"


class BusyParticipants(Participants):
    """A pool with more work in one step than the worker does in the benchmark."""

    def _write(self, name: str, values: Mapping[str, Any]) -> Any:
        if name == "pool":
            values["terms"]["reward_per_million"] = 10**17  # more would deter too little for so large a task
            params: dict[str, Any] = values["params"]
            params |= {"groups_per_step": 65_536, "groups_per_task": 256}
            rules = {"audit_rate": 0.02, "audit_rows": 1, "newcomer_submissions": 1, "confirm_rate": 0.0}
            params["verification"] |= rules
        return super()._write(name, values)


def sum_paid(rows: Sequence[SubmissionView], known: frozenset[str]) -> int:
    """Return the units of accepted work that is not in `known`."""
    paid = (SubmissionState.ACCEPTED, SubmissionState.SETTLED)
    return sum(row.units for row in rows if row.state in paid and row.receipt_hash not in known)


def build_measurements(expected: float, earned: float, *, tasks: int, load: float) -> list[Measurement]:
    """Build the measurements. `expected` and `earned` are in units per second."""
    return [
        Measurement(name="expected_units_per_second", value=expected, unit="units/s", n=1),
        Measurement(name="earned_units_per_second", value=earned, unit="units/s", n=tasks),
        Measurement(name="earned_over_expected", value=earned / expected, unit="ratio", n=tasks, bar=BAR),
        Measurement(name="load_average", value=load, unit="processes", n=1),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench NAME=expected-pay")
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the window in which the worker earns")
    parser.add_argument("--measure", type=float, default=60.0, help="length of the measurement before it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        participants = BusyParticipants(Path(folder) / "pool", DemoOptions(steps=1, workers=1, cheats=0))
        network = DemoNetwork(participants, lambda words: app(words, standalone_mode=False))
        try:
            network.open()
            measurements = _measure(network, seconds=options.seconds, measure_seconds=options.measure)
        finally:
            network.close()
    return finish(NAME, measurements, find_misses(measurements), arguments)


def _measure(network: DemoNetwork, *, seconds: float, measure_seconds: float) -> list[Measurement]:
    """Measure the machine, then let the worker work for a while, and count what the validators accept of it."""
    for name in ("coordinator", "jobs", "origin", "relay", "trainer", *network.participants.validators):
        network.start(name)
    _await(lambda: network.contracts.policies.steps_of(POOL) > 0, READY_SECONDS)
    file = network.participants.folder / "worker-1.toml"
    command = [sys.executable, "-m", "covey", "worker", "measure", "--config", str(file), "--json"]
    printed = subprocess.run(
        [*command, "--seconds", str(measure_seconds)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    expected = float(json.loads(printed)["tokens_per_second"])
    network.start("worker-1")
    rows = _Rows(network)
    _await(lambda: bool(rows.read()), READY_SECONDS)
    _wait(WARM_UP_SECONDS)
    known, begun = frozenset(row.receipt_hash for row in rows.read()), time.monotonic()
    _wait(seconds)
    seen, length = {row.receipt_hash for row in rows.read()} - known, time.monotonic() - begun
    load = os.getloadavg()[1]

    def read_window() -> list[SubmissionView]:
        return [row for row in rows.read() if row.receipt_hash in seen]

    _await(lambda: all(row.state is not SubmissionState.SUBMITTED for row in read_window()), DECIDE_SECONDS)
    units = sum_paid(read_window(), known)
    return build_measurements(expected, units / length, tasks=len(seen), load=load)


class _Rows:
    """The worker's submissions, as the coordinator lists them."""

    def __init__(self, network: DemoNetwork) -> None:
        self._network, self._node = network, network.participants.workers[0].node

    def read(self) -> list[SubmissionView]:
        return asyncio.run(self._read())

    async def _read(self) -> list[SubmissionView]:
        from covey.network.coordinator_client import CoordinatorClient

        async with CoordinatorClient(self._network.url, None, chain_id=0) as client:
            return await client.list_submissions(limit=MAX_ROWS, node=self._node)


def _wait(seconds: float) -> None:
    time.sleep(seconds)


def _await(is_done: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"the condition was not met within {seconds:.0f} s")
        _wait(1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
