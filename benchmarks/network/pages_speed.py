"""Pages of a pool of 10,000 nodes and a million submissions: time of each page, events to 200 viewers, and heartbeats.

The rows are written directly. Each request is for another node, address, submission or part of a list, so no answer is
kept from an earlier one. Pages that all viewers share are asked for once they are outdated. Then a node sends
heartbeats to the API: alone, while 200 viewers listen to events, and while 200 readers, each of its own address, ask
for the largest lists as fast as they can.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import count, cycle
from pathlib import Path
from threading import Event as Flag

import httpx

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.network.coordinator_load import Wire, build_request
from benchmarks.network.coordinator_pool import Service, derive, open_pool, run_coordinator
from benchmarks.network.coordinator_rows import Crowd, fill
from benchmarks.network.coordinator_scale import await_first_step
from coordinator.db.database import Database
from covey.network.coordinator_client import CoordinatorClient

BARS = {
    "page_p95_ms": Bar(most=100),
    "events_s": Bar(most=3),
    "heartbeat_p99_ratio_with_viewers": Bar(most=1.1),
    "heartbeat_p99_ratio_with_readers": Bar(most=1.2),
}
_REQUESTS, _LOOKS, _LOOK_S = 40, 12, 1.1
"""Number of requests for each page, and for each shared page, which is asked for every _LOOK_S seconds."""
SHARED = {"pool": "/", "overview": "/v1/overview", "cases": "/cases", "validators": "/validators"}
"""Pages that all viewers share. They are kept for a second, so each request comes after that."""
_ADDRESSES = 8
"""Number of addresses that ask for a page in turn, because each has a rate limit."""
_VIEWERS = 200
_BEATS, _BEAT_S = 300, 0.05
_INSTANCE = "1" * 32


def list_paths(database: Database, crowd: Crowd) -> dict[str, list[str]]:
    """Return the paths of the requests for each page."""
    with database.read() as rows:
        nodes = rows.list_node_items(limit=_REQUESTS)
        items = rows.list_submission_items(limit=_REQUESTS)
    first, last = items[-1].task - crowd.submissions, items[0].task
    parts = [last - i * (last - max(0, first)) // _REQUESTS for i in range(_REQUESTS)]
    contributors = [item.contributor for item in nodes]
    addresses = [f"/v1/addresses/{address}" for address in contributors]
    return {
        "nodes": [f"/nodes?after={item.address}" for item in nodes],
        "node": [f"/nodes/{item.address}" for item in nodes],
        "address": [f"/addresses/{address}" for address in contributors],
        "statement": [
            f"{path}/submissions?limit=200&before={part}" for path, part in zip(addresses, parts, strict=True)
        ],
        "submissions": [f"/submissions?before={part}" for part in parts],
        "submissions_by_state": [f"/submissions?state=rejected&before={part}" for part in parts],
        "submissions_by_reason": [f"/submissions?reason=proof&before={part}" for part in parts],
        "submissions_by_policy": [f"/submissions?policy_version={i}" for i in range(_REQUESTS)],
        "submissions_by_validator": [f"/submissions?validator={_find_validator(database)}&before={p}" for p in parts],
        "submission": [f"/submissions/{item.receipt_hash}" for item in items],
        "epochs": [f"/epochs?before={i}" for i in range(1, _REQUESTS + 1)],
        "epoch": [f"/epochs/{i}" for i in range(min(_REQUESTS, crowd.epochs))],
        "largest": [f"/v1/epochs/{i}/submissions?limit=200" for i in range(min(_REQUESTS, crowd.epochs))],
        "policies": [f"/policies?before={i}" for i in range(1, _REQUESTS + 1)],
        **{name: [path] * _LOOKS for name, path in SHARED.items()},
    }


def _find_validator(database: Database) -> str:
    with database.read() as rows:
        turns = rows.list_turn_items(rows.list_submission_items(limit=1)[0].receipt_hash)
    return turns[0].validator or ""


def measure_pages(service: Service, paths: dict[str, list[str]]) -> list[Measurement]:
    """Return the 95th percentile of each page, and the largest of them. One request of each page comes before."""
    found, slowest, url = [], 0.0, f"http://127.0.0.1:{service.pages_port}"
    for number, (name, requests) in enumerate(paths.items(), start=1):
        with ExitStack() as opened:
            viewers = [
                opened.enter_context(
                    httpx.Client(
                        base_url=url,
                        transport=httpx.HTTPTransport(local_address=f"127.0.{number}.{100 + i}"),
                        trust_env=False,
                        timeout=60,
                    )
                )
                for i in range(_ADDRESSES)
            ]
            viewers[0].get(requests[0]).raise_for_status()
            seconds = []
            for viewer, path in zip(cycle(viewers), requests[1:] or requests, strict=False):
                if name in SHARED:
                    Flag().wait(_LOOK_S)
                started = time.monotonic()
                viewer.get(path).raise_for_status()
                seconds.append(time.monotonic() - started)
            value = sorted(seconds)[int(0.95 * len(seconds))]
            slowest = max(slowest, value)
            found.append(Measurement(name=f"{name}_p95_ms", value=1000 * value, unit="ms", n=len(seconds)))
    total = sum(len(requests) for requests in paths.values())
    return [*found, Measurement(name="page_p95_ms", value=1000 * slowest, unit="ms", n=total)]


async def measure_events(service: Service, database: Database) -> list[Measurement]:
    """Return the seconds from a commit until the last of all viewers has its event."""
    told = [asyncio.Event() for _ in range(_VIEWERS)]
    is_changed = False

    async def view(number: int) -> None:
        source = (_build_source(number), 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", service.pages_port, local_addr=source)
        writer.write(build_request("GET", f"127.0.0.1:{service.pages_port}", "/v1/events", b""))
        try:
            while line := await reader.readline():
                if line.startswith(b"event: overview"):
                    told[number].set()
                if is_changed and b'"block":' in line and b'"ended":true' in line:
                    return
        finally:
            writer.close()

    viewing = [asyncio.create_task(view(number)) for number in range(_VIEWERS)]
    async with asyncio.timeout(60):
        for each in told:
            await each.wait()
        is_changed = True
        with database.write() as rows:
            rows.set_fact("ended", 1)
        started = time.monotonic()
        await asyncio.gather(*viewing)
    seconds = time.monotonic() - started
    with database.write() as rows:
        rows.set_fact("ended", 0)
    return [Measurement(name="events_s", value=seconds, unit="s", n=_VIEWERS)]


async def measure_heartbeats(service: Service) -> float:
    """Return the 99th percentile of the seconds of heartbeats."""
    seconds = []
    async with CoordinatorClient(f"http://{service.authority}", derive("node-0"), chain_id=31337) as client:
        await client.register()
        for _ in range(_BEATS):
            started = time.monotonic()
            await client.send_heartbeat(instance=_INSTANCE, free_slots=1, cached_version=0)
            seconds.append(time.monotonic() - started)
            await asyncio.sleep(_BEAT_S)
    return sorted(seconds)[int(0.99 * len(seconds))]


async def _view(port: int, number: int, stopped: float) -> tuple[int, int]:
    """Listen to events until a time. Returns the number of lines, and 0 refusals."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(_build_source(number), 0))
    writer.write(build_request("GET", f"127.0.0.1:{port}", "/v1/events", b""))
    lines = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(stopped - time.time()):
            while await reader.readline():
                lines += 1
    writer.close()
    return lines, 0


async def _read(port: int, number: int, stopped: float, *, epochs: int) -> tuple[int, int]:
    """Ask for the largest lists until a time. Returns the numbers of answers and of those that were refused."""
    wire = await Wire.open(port, source=_build_source(number))
    answers = refused = 0
    for i in count(number):
        if time.time() > stopped:
            break
        path = f"/v1/epochs/{i % epochs}/submissions?limit=200&before={2_000_000 + i}"
        status, _ = await wire.send(build_request("GET", "127.0.0.1", path, b""))
        answers, refused = answers + 1, refused + (status == 429)
        if status == 429:
            await asyncio.sleep(0.05)
    wire.close()
    return answers, refused


def _build_source(number: int) -> str:
    return f"127.0.{1 + number // 100}.{1 + number % 100}"


def look_all(port: int, epochs: int, seconds: float, results: "multiprocessing.Queue[tuple[int, int]]") -> None:
    """Run all readers of lists, or all viewers of events if `epochs` is 0. Their process runs this."""
    look = partial(_read, epochs=epochs) if epochs else _view

    async def run() -> None:
        stopped = time.time() + seconds
        found = await asyncio.gather(*(look(port, number, stopped) for number in range(_VIEWERS)))
        results.put((sum(each for each, _ in found), sum(each for _, each in found)))

    asyncio.run(run())


@contextmanager
def looking(port: int, epochs: int, seconds: float) -> Iterator["multiprocessing.Queue[tuple[int, int]]"]:
    """Run `look_all` in a process of its own."""
    spawning = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[tuple[int, int]] = spawning.Queue()
    process = spawning.Process(target=look_all, args=(port, epochs, seconds, results))
    process.start()
    try:
        yield results
    finally:
        process.join(seconds + 60)
        process.kill()


def measure_others(service: Service, crowd: Crowd) -> list[Measurement]:
    """Return what viewers of events, and readers of lists, do to heartbeats."""
    quiet = asyncio.run(measure_heartbeats(service))
    found = [Measurement(name="heartbeat_quiet_p99_ms", value=1000 * quiet, unit="ms", n=_BEATS)]
    duration = 3 + _BEATS * (_BEAT_S + 0.05)
    answers = refused = 0
    for name, epochs in (("viewers", 0), ("readers", crowd.epochs)):
        with looking(service.pages_port, epochs, duration) as results:
            Flag().wait(3.0)
            busy = asyncio.run(measure_heartbeats(service))
            answers, refused = results.get(timeout=duration + 60)
        found += [
            Measurement(name=f"heartbeat_{name}_p99_ms", value=1000 * busy, unit="ms", n=_BEATS),
            Measurement(name=f"heartbeat_p99_ratio_with_{name}", value=busy / quiet, unit="", n=_BEATS),
        ]
    return [
        *found,
        Measurement(name="lists_per_s", value=answers / duration, unit="1/s", n=answers),
        Measurement(name="refused_share", value=refused / max(1, answers), unit="", n=answers),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench NAME=pages", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--submissions", type=int, default=1_000_000, help="submissions; default: 1,000,000")
    parser.add_argument("--nodes", type=int, default=10_000, help="nodes; default: 10,000")
    parser.add_argument("--postgres", action="store_true", help="use PostgreSQL instead of SQLite")
    options = parser.parse_args(list(arguments))
    crowd = Crowd(submissions=options.submissions, unsettled=options.submissions // 20, nodes=options.nodes)
    with (
        tempfile.TemporaryDirectory(prefix="covey-bench-") as folder,
        open_pool(Path(folder), nodes=1) as pool,
        run_coordinator(pool, jobs=0, postgres=options.postgres, pages=True) as service,
    ):
        await_first_step(service)
        with closing(Database(service.database_url)) as database:
            fill(database, crowd)
            measurements = measure_pages(service, list_paths(database, crowd))
            measurements += asyncio.run(measure_events(service, database))
        measurements += measure_others(service, crowd)
    measurements = set_bars(measurements, BARS)
    return finish("pages", measurements, find_misses(measurements), arguments)
