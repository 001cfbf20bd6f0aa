"""Leads a run of the benchmark `crowd`: starts its clients, publishes policies, and watches machine and database.

A thread stands for the trainer: it publishes the next policy as soon as a batch is full. The watch raises the rate of
submissions in the second half of the run.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any

from eth_utils.crypto import keccak
from sqlalchemy import func, select

from benchmarks.network.coordinator_pool import BenchmarkPool, Service, derive
from benchmarks.network.crowd_clients import PROGRESS_S, Schedule
from benchmarks.network.rate_search import CpuSample, RateSearch, parse_cpu
from coordinator.db.database import Database
from coordinator.db.models import SubmissionRow, TaskRow
from covey.chain.contracts import Contracts
from covey.chain.deploying import send_and_wait
from covey.chain.json_rpc import ChainClient
from covey.errors import TransientError
from covey.protocol.ids import Step, hash_from_bytes

SAMPLE_S = 0.25
"""Seconds between two looks at whether a task is pending."""
_PUBLISH_S = 0.5
_END_S = 30.0
"""Maximum time in seconds until a process of clients has ended."""


class Crew:
    """Clients of one kind in a process of their own. Example: `Crew("work", asked, rate=50.0)`."""

    def __init__(self, kind: str, asked: dict[str, object], *, rate: float) -> None:
        """`asked` describes the clients, as JSON can represent it, and `rate` is their target in 1/s."""
        self._folder = tempfile.TemporaryDirectory(prefix="covey-bench-")
        self._file = Path(self._folder.name) / "found.json"
        about = json.dumps(asked | {"kind": kind, "rate": rate, "file": str(self._file)})
        command = [sys.executable, "-m", "benchmarks.network.crowd_load", about]
        self._kind = kind
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def await_ready(self) -> None:
        """Wait until the clients are prepared, which they report on. Raises RuntimeError if their process ends."""
        if self._read() != "ready":
            raise RuntimeError(f"the clients of kind {self._kind} failed: see their output above")

    def tell(self, command: str) -> None:
        """Send a command: "start", or "rate 55.0"."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def read_result(self) -> dict[str, Any]:
        """Return what the clients saw. Raises RuntimeError if their process ends before."""
        if self._read() != "done":
            raise RuntimeError(f"the clients of kind {self._kind} failed: see their output above")
        found: dict[str, Any] = json.loads(self._file.read_text())
        return found

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.communicate(timeout=_END_S)
        self._folder.cleanup()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


@contextmanager
def open_crews(asked: dict[str, object], *kinds: str, rate: float) -> Iterator[list[Crew]]:
    """Start clients of each kind, wait until they are ready, and end them after the block."""
    with ExitStack() as stack:
        crews = []
        for kind in kinds:
            crews.append(crew := Crew(kind, asked, rate=rate))
            stack.callback(crew.close)
        for crew in crews:
            crew.await_ready()
        yield crews


@contextmanager
def publish_policies(pool: BenchmarkPool, database: Database) -> Iterator[None]:
    """Publish the next policy within a second of a full batch, until the block ends."""
    client, stop, trainer = ChainClient(pool.client.rpc_url), Flag(), derive("trainer")
    policies = Contracts(client, pool.deployment).policies

    def run() -> None:
        while not stop.wait(_PUBLISH_S):
            try:
                with database.read() as rows:
                    latest, open_step = rows.get_latest_step(), rows.get_open_step()
                if latest is None or open_step is not None:
                    continue
                number = Step(latest.number + 1)
                call = policies.publish(pool.pool, number, hash_from_bytes(keccak(text=f"policy {number}")))
                send_and_wait(client, trainer, to=call.to, data=call.data, chain_id=pool.deployment.chain_id)
                while not stop.wait(_PUBLISH_S):
                    with database.read() as rows:
                        latest = rows.get_latest_step()
                    if latest is not None and latest.number == number:
                        break
            except TransientError as error:
                print(f"a policy is not published yet: {error.message}", file=sys.stderr)

    thread = Thread(target=run, name="trainer")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@dataclass
class Watched:
    """What was seen of machine and database in a run."""

    search: RateSearch
    dry: list[float] = field(default_factory=list)
    """Times on the monotonic clock at which no task was pending."""
    idle: dict[str, float] = field(default_factory=dict)
    """Share of idle time of the machine, by phase."""
    memory: dict[str, float] = field(default_factory=dict)
    """Resident memory of the API process in MB, at the end of each phase."""
    accepted: dict[str, int] = field(default_factory=dict)
    """Number of submissions that were countersigned, at the end of each phase."""


def watch(
    service: Service, database: Database, schedule: Schedule, crew: Crew, search: RateSearch, *, step_s: float
) -> Watched:
    """Watch a run from its start to its end, and tell `crew` the target rates of the second half.

    `step_s` is the number of seconds for which a rate is kept.
    """
    found, started = Watched(search), time.monotonic()
    phase, phase_cpu = schedule.find_phase(0.0), read_cpu()
    said = step_at = started
    step_cpu, step_count = phase_cpu, 0
    while (elapsed := time.monotonic() - started) < schedule.end_s:
        with database.read() as rows:
            if not rows.has_pending():
                found.dry.append(time.monotonic())
        now, current = time.monotonic(), schedule.find_phase(elapsed)
        if current != phase:
            _end_phase(found, service, database, phase, phase_cpu.compute_idle_share(read_cpu()))
            phase, phase_cpu = current, read_cpu()
            step_at, step_cpu, step_count = now, phase_cpu, count_submissions(database)
        elif phase == "second" and now - step_at >= step_s:
            cpu, count = read_cpu(), count_submissions(database)
            rate = search.note(achieved=(count - step_count) / (now - step_at), idle=step_cpu.compute_idle_share(cpu))
            crew.tell(f"rate {rate:.3f}")
            step_at, step_cpu, step_count = now, cpu, count
        if now - said >= PROGRESS_S:
            said = now
            _say(service, database, elapsed - schedule.warm_s, search, phase_cpu.compute_idle_share(read_cpu()))
        time.sleep(SAMPLE_S)
    _end_phase(found, service, database, phase, phase_cpu.compute_idle_share(read_cpu()))
    return found


def _end_phase(found: Watched, service: Service, database: Database, phase: str, idle: float) -> None:
    found.idle[phase] = idle
    found.memory[phase] = read_memory(service.api.pid)
    found.accepted[phase] = count_submissions(database)


def _say(service: Service, database: Database, elapsed: float, search: RateSearch, idle: float) -> None:
    with database.read() as rows:
        tasks, step = rows.count_by_state(TaskRow), rows.get_latest_step()
        work = rows.count_by_state(SubmissionRow)
    shown = ", ".join(f"{name.lower()} {count:,}" for name, count in sorted(tasks.items()))
    undecided = work.get("SUBMITTED", 0)
    print(
        f"{elapsed:4.0f} s: step {step.number if step else -1}, tasks {shown}; {undecided:,} of {sum(work.values()):,}"
        f" submissions undecided; target {search.rate:.1f} a second, {idle:.0%} idle,"
        f" API {read_memory(service.api.pid):,.0f} MB",
        file=sys.stderr,
        flush=True,
    )


def count_submissions(database: Database) -> int:
    """Return the number of submissions."""
    with database.read() as rows:
        return rows.session.scalar(select(func.count()).select_from(SubmissionRow)) or 0


def read_cpu() -> CpuSample:
    """Return the time of all cores until now. Raises OSError where there is no `/proc/stat`."""
    return parse_cpu(Path("/proc/stat").read_text())


def read_memory(pid: int) -> float:
    """Return the resident memory of a process in MB. Raises OSError if it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024
