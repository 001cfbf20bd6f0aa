"""What a coordinator does with a million submissions of 10,000 nodes: public pages, and an epoch of 50,000 leaves.

The rows are written directly. Pages are read over HTTP from `covey coordinator serve` on SQLite. The write lock's time
is that of the longest transaction while an epoch closes.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.network.coordinator_pool import BenchmarkPool, Service, open_pool, run_coordinator
from benchmarks.network.coordinator_rows import Crowd, fill
from coordinator import jobs
from coordinator.db.database import Database
from coordinator.db.repository import Repository
from coordinator.domain import epoch_closing, tasks
from coordinator.domain.settlement import Ledger
from covey.object_store import LinkSigner, ObjectStore
from covey.protocol.ids import Address
from covey.protocol.prices import ScheduledPrice

BARS = {"view_ms": Bar(most=20), "lock_ms": Bar(most=100)}
_REQUESTS = 40
"""Number of requests for each page."""
_CALM_S = 60.0
"""Maximum time that the coordinator takes to look up the stake of all contributors."""


class TimedDatabase(Database):
    """Notes how long each transaction held the write lock."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.held: list[float] = []

    @contextmanager
    def write(self) -> Iterator[Repository]:
        """Open the one writing transaction, and note its seconds."""
        started = 0.0
        with super().write() as repository:
            started = time.monotonic()
            yield repository
        self.held.append(time.monotonic() - started)


def await_first_step(service: Service) -> None:
    """Wait until the coordinator has read the chain."""
    for _ in range(300):
        if httpx.get(f"http://127.0.0.1:{service.port}/v1/status", trust_env=False, timeout=60).json()["step"] == 0:
            return
        time.sleep(0.1)
    raise RuntimeError("the coordinator has not read the chain within 30 s")


def measure_views(service: Service, pages: Sequence[str]) -> list[Measurement]:
    """Return the median and the longest time of each page, after a first request that is reported alone."""
    measurements, slowest = [], 0.0
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", trust_env=False, timeout=60) as http:
        for page in pages:
            seconds = []
            for _ in range(_REQUESTS + 1):
                started = time.monotonic()
                http.get(page).raise_for_status()
                seconds.append(time.monotonic() - started)
            name = page.removeprefix("/v1").strip("/").partition("?")[0].partition("/")[0] or page
            name += "".join(f"_{part.partition('=')[0]}" for part in page.partition("?")[2].split("&") if part)
            name += "_one" if page.count("/") > 2 else ""
            first, rest = seconds[0], sorted(seconds[1:])
            slowest = max(slowest, statistics.median(rest))
            for kind, value in (("first", first), ("median", statistics.median(rest)), ("longest", rest[-1])):
                measurements.append(
                    Measurement(name=f"{name}.{kind}_ms", value=1000 * value, unit="ms", n=1 if kind == "first" else 40)
                )
    return [*measurements, Measurement(name="view_ms", value=1000 * slowest, unit="ms", n=_REQUESTS * len(pages))]


def build_ledger(pool: BenchmarkPool) -> Ledger:
    """Return what epochs are computed with."""
    return Ledger(
        chain_id=pool.deployment.chain_id,
        address=pool.deployment.epoch_ledger,
        pool=pool.pool,
        prices=(ScheduledPrice(reward_per_million=3, start=0),),
        epoch_units=10**15,
        epoch_length=1,
        windows=20,
    )


def record_root(database: Database, ledger: Ledger) -> None:
    """Record the true root of the last posted epoch's rewards, with which their proofs are compared."""
    with database.write() as rows:
        epoch = next(row for row in reversed(rows.list_epochs()) if row.posted_block is not None)
        amounts = {Address(who): amount for who, amount in rows.list_rewards(epoch.number).items()}
        epoch.reward_root = epoch_closing.build_reward_tree(ledger, amounts).root


def measure_closing(url: str, pool: BenchmarkPool, folder: Path, leaves: int) -> list[Measurement]:
    """Close an epoch with all submissions that no epoch holds."""
    with closing(TimedDatabase(url)) as database:
        ctx = SimpleNamespace(
            database=database,
            ledger=build_ledger(pool),
            store=ObjectStore.open(f"file://{folder}", LinkSigner(secret=b"s", base_url="http://x")),
            config=SimpleNamespace(pool=pool.pool),
            jobs=SimpleNamespace(trigger=lambda *_, **__: None),
        )
        started = time.monotonic()
        with database.write() as rows:
            number = epoch_closing.begin_epoch(rows, now=time.time())
        if number is None:
            raise RuntimeError("an epoch is open already")
        jobs.close_epoch(ctx, epoch=number)  # type: ignore[arg-type]
        seconds = time.monotonic() - started
        with database.read() as rows:
            closed = rows.get_epoch(number)
        if closed is None or closed.leaf_count != leaves:
            raise RuntimeError(f"the epoch has {closed and closed.leaf_count} leaves instead of {leaves}")
        count = len(database.held)
        return [
            Measurement(name="lock_ms", value=1000 * max(database.held), unit="ms", n=count),
            Measurement(name="close_s", value=seconds, unit="s", n=1),
        ]


def measure_assignment(url: str, pool: BenchmarkPool, nodes: int) -> list[Measurement]:
    """Lease a task to each of many waiting nodes, and time the transactions."""
    with closing(TimedDatabase(url)) as database:
        with database.write() as rows:
            latest = rows.get_latest_step()
            rows.add_tasks(nodes, policy_version=0 if latest is None else latest.number, groups=1)
        leased, started, now = 0, time.monotonic(), time.time()
        while leased < nodes:
            with database.write() as rows:
                leased += (count := tasks.assign_tasks(rows, pool.params, now=now))
            if not count:
                raise RuntimeError(f"{leased} of {nodes} nodes got a task")
        seconds = time.monotonic() - started
        held = 1000 * max(database.held[1:])
        return [
            Measurement(name="assign_per_s", value=nodes / seconds, unit="1/s", n=nodes),
            Measurement(name="assign_lock_ms", value=held, unit="ms", n=len(database.held) - 1),
        ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench NAME=scale", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--submissions", type=int, default=1_000_000, help="submissions; default: 1,000,000")
    parser.add_argument("--leaves", type=int, default=50_000, help="leaves of the epoch; default: 50,000")
    parser.add_argument("--nodes", type=int, default=10_000, help="nodes; default: 10,000")
    options = parser.parse_args(list(arguments))
    crowd = Crowd(submissions=options.submissions, unsettled=options.leaves, nodes=options.nodes)
    with tempfile.TemporaryDirectory(prefix="covey-bench-") as folder, open_pool(Path(folder), nodes=1) as pool:
        with run_coordinator(pool, jobs=0) as service:
            (path,) = Path(folder).glob("coordinator-*/home/coordinator.sqlite3")
            url = f"sqlite:///{path}"
            await_first_step(service)
            with closing(Database(url)) as database:
                pages = fill(database, crowd)
                record_root(database, build_ledger(pool))
            time.sleep(min(_CALM_S, 2 + options.nodes / 1000))
            measurements = measure_views(service, pages)
        measurements += measure_assignment(url, pool, options.nodes)
        measurements += measure_closing(url, pool, Path(folder) / "store", crowd.open_leaves)
    measurements = set_bars(measurements, BARS)
    return finish("scale", measurements, find_misses(measurements), arguments)
