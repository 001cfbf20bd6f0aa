"""The clients of the benchmark `crowd`: nodes that are heard, work, vanish or register, viewers, and validators.

`main` runs one kind of them in a process of its own, and writes what they saw into a file at the end. Every node and
viewer connects from an address of its own, in 127.0.0.0/8.
"""

import asyncio
import json
import random
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.network.coordinator_load import (
    Client,
    Tally,
    Wire,
    build_claim,
    build_request,
    build_signed,
    hand_in,
    run_validator,
)
from benchmarks.network.coordinator_pool import derive, derive_contributor
from benchmarks.network.crowd_clients import PROGRESS_S, Commands, PhasedTally, Schedule, await_time, build_address

MOST_TURNS = 800
"""Maximum number of nodes that work at once. A turn that would exceed it is skipped and counted."""
VIEW_S = 5.0
"""Seconds between two looks of one viewer."""
_TIMEOUT_S = 60.0
"""Seconds after which an answer counts as lost."""
_REGISTERING = 24
"""Number of nodes that register at once before the run."""


async def register_all(port: int, nodes: int) -> None:
    """Register the nodes, some at a time. Raises RuntimeError if one is refused."""
    remaining, said_at = iter(range(nodes)), time.monotonic()

    async def run() -> None:
        nonlocal said_at
        for number in remaining:
            source = build_address(number, first=64)
            client = Client(port=port, wallet=derive(f"node-{number}"), tally=Tally(), source=source)
            status, answer = await client.post("/v1/nodes", {})
            client.close()
            if status != 200:
                raise RuntimeError(f"node {number} was not registered: {status} {answer}")
            if time.monotonic() - said_at > PROGRESS_S:
                said_at = time.monotonic()
                print(f"{number:,} of {nodes:,} nodes are registered", file=sys.stderr, flush=True)

    await asyncio.gather(*(run() for _ in range(_REGISTERING)))


@dataclass
class Seat:
    """A kept connection, and the nodes that take turns on it."""

    port: int
    source: str
    wire: Wire | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


async def run_presence(asked: dict[str, Any], tally: PhasedTally, commands: Commands) -> None:
    """Register the nodes, then send the heartbeats of all that have not vanished, and look at the public pages."""
    port, nodes, schedule = asked["port"], asked["nodes"], tally.schedule
    authority = f"127.0.0.1:{port}"
    await register_all(port, nodes)
    wallets = [derive(f"node-{number}") for number in range(nodes)]
    bodies = [
        json.dumps({"instance": f"{number:032x}", "free_slots": 4, "cached_version": None}).encode()
        for number in range(nodes)
    ]
    seats = [Seat(port, build_address(number, first=64)) for number in range(asked["connections"])]
    tally.started_at = await commands.await_start()
    sending: set[asyncio.Task[None]] = set()

    async def beat(number: int, due: float) -> None:
        seat = seats[number % len(seats)]
        async with seat.lock:
            for _ in range(2):  # The server may close a connection that is idle, as any client must expect.
                try:
                    if seat.wire is None:
                        seat.wire = await Wire.open(port, source=seat.source)
                    request = build_signed(wallets[number], authority, "/v1/heartbeat", bodies[number])
                    started = time.monotonic()
                    async with asyncio.timeout(_TIMEOUT_S):
                        status, body = await seat.wire.send(request)
                except (OSError, TimeoutError):
                    tally.lost, seat.wire = tally.lost + 1, None
                    continue
                tally.lags.append(started - due)
                tally.add("heartbeat", started, status, body)
                return

    looking = [
        asyncio.create_task(_look(asked, tally, viewer, tally.started_at + schedule.end_s))
        for viewer in range(asked["viewers"])
    ]
    vanishing = [schedule.compute_vanishing(number, nodes) for number in range(nodes)]
    order = random.Random(0).sample(range(nodes), nodes)
    beats = int(schedule.end_s / schedule.beat_s * nodes)
    for index in range(beats):
        number, elapsed = order[index % nodes], index * schedule.beat_s / nodes
        gone_at = vanishing[number]
        if gone_at is not None and elapsed > gone_at:
            continue
        due = tally.started_at + elapsed
        if due > time.monotonic():
            await await_time(due)
        sending.add(task := asyncio.create_task(beat(number, due)))
        task.add_done_callback(sending.discard)
    await asyncio.gather(*looking, *sending)


async def _look(asked: dict[str, Any], tally: PhasedTally, viewer: int, deadline: float) -> None:
    """Look at one public page after the other until the deadline."""
    port, source = asked["port"], build_address(viewer, first=32)
    wallet, contributor = derive(f"node-{viewer}"), derive_contributor(viewer, asked["contributors"]).address
    client, epochs = Client(port=port, wallet=wallet, tally=tally, source=source), 0
    pages = (
        "/v1/status",
        "/v1/submissions?limit=20",
        f"/v1/submissions?contributor={contributor}&limit=20",
        "/v1/submissions?state=REJECTED&limit=20",
        f"/v1/nodes/{wallet.address}",
        f"/v1/rewards/{contributor}?epoch=",
    )
    await asyncio.sleep(random.uniform(0, VIEW_S))
    turn = viewer
    while time.monotonic() < deadline:
        page, turn = pages[turn % len(pages)], turn + 1
        if page.endswith("="):
            page = f"{page}{epochs - 1}" if epochs else "/v1/pool"
        request = build_request("GET", f"127.0.0.1:{port}", page, b"")
        started = time.monotonic()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                client.wire = client.wire or await Wire.open(port, source=source)
                status, body = await client.wire.send(request)
        except (OSError, TimeoutError):
            tally.lost += 1
            client.close()
        else:
            tally.add("view", started, status, b"" if status == 404 else body)  # Many have earned nothing yet.
            if page == "/v1/status":
                epochs = body.count(b'"posted":true')
        await await_time(started + VIEW_S)
    client.close()


async def run_work(asked: dict[str, Any], tally: PhasedTally, commands: Commands) -> None:
    """Have nodes submit at the target rate, others vanish with a lease, and validators judge."""
    port, nodes, schedule = asked["port"], asked["nodes"], tally.schedule
    wallets = [derive(f"node-{number}") for number in range(nodes)]
    contributors = [derive_contributor(number, nodes).address for number in range(asked["contributors"])]
    tally.started_at = await commands.await_start()
    deadline = tally.started_at + schedule.end_s
    working: set[asyncio.Task[None]] = set()
    idle = deque(
        number
        for number in random.Random(1).sample(range(nodes), nodes)
        if schedule.compute_vanishing(number, nodes) is None
    )

    async def take_turn(number: int, *, vanishes: bool) -> None:
        source = build_address(number, first=64)
        client = Client(port=port, wallet=wallets[number], tally=tally, source=source)
        try:
            order = await _claim(client, number, tally, deadline)
            if order is not None and not vanishes:
                lease = len(tally.orders) - 1
                if await hand_in(client, order, asked, contributors[number % len(contributors)]):
                    tally.orders[lease] = (*tally.orders[lease][:4], time.time())
        except OSError:
            tally.lost += 1
        finally:
            client.close()
            if not vanishes:
                idle.append(number)

    def start(number: int, *, vanishes: bool) -> None:
        working.add(task := asyncio.create_task(take_turn(number, vanishes=vanishes)))
        task.add_done_callback(working.discard)

    async def vanish() -> None:
        for number in range(nodes):
            at = schedule.compute_vanishing(number, nodes)
            if at is not None:
                await await_time(tally.started_at + at)
                start(number, vanishes=True)

    async def submit() -> None:
        due = tally.started_at
        while due < deadline:
            await await_time(due)
            if idle and len(working) < MOST_TURNS:
                start(idle.popleft(), vanishes=False)
            else:
                tally.skipped += 1
            due += 1 / commands.rate

    async def judge(number: int) -> None:
        while time.monotonic() < deadline:
            try:
                await run_validator(port, number, asked, tally, lambda: time.monotonic() >= deadline)
            except OSError:
                tally.lost += 1

    await asyncio.gather(submit(), vanish(), *(judge(number) for number in range(asked["validators"])))
    await asyncio.gather(*working)


async def _claim(client: Client, number: int, tally: PhasedTally, deadline: float) -> dict[str, Any] | None:
    """Ask for a lease until there is one, and note when it was asked for and when it came."""
    started, claim = time.monotonic(), build_claim(number) | {"cached_version": None}
    client.wire = await Wire.open(client.port, source=client.source)
    claims = [] if tally.schedule.find_phase(started - tally.started_at) == "warm" else tally.claims
    while time.monotonic() < deadline:
        status, order = await client.post("/v1/tasks/claim", claim)
        if status != 200:
            break
        if order is not None:
            claims.append((started, time.monotonic()))
            about = order["task"], order["lease"], client.wallet.address
            tally.orders.append((*about, time.time(), float(order["deadline"])))
            answer: dict[str, Any] = order
            return answer
    claims.append((started, None))
    return None


async def run_storm(asked: dict[str, Any], tally: PhasedTally, commands: Commands) -> None:
    """Register one new node after the other at the target rate, all from one address."""
    wallets = [derive(f"node-{number}") for number in range(asked["nodes"])]
    tally.started_at = await commands.await_start()
    registering: set[asyncio.Task[None]] = set()

    async def register(number: int) -> None:
        client = Client(port=asked["port"], wallet=wallets[number], tally=tally)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await client.post("/v1/nodes", {})
        except (OSError, TimeoutError):
            tally.lost += 1
        finally:
            client.close()

    said_at = tally.started_at
    for number in range(asked["nodes"]):
        await await_time(tally.started_at + number / commands.rate)
        if time.monotonic() - said_at >= PROGRESS_S:
            said_at = time.monotonic()
            print(f"{number:,} of {asked['nodes']:,} registrations are sent", file=sys.stderr, flush=True)
        registering.add(task := asyncio.create_task(register(number)))
        task.add_done_callback(registering.discard)
    await asyncio.gather(*registering)


Kind = Callable[[dict[str, Any], PhasedTally, Commands], Coroutine[Any, Any, None]]
KINDS: dict[str, Kind] = {"presence": run_presence, "work": run_work, "storm": run_storm}


def raise_limit() -> int:
    """Let this process open as many files as the system allows, and return that number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


async def _run(asked: dict[str, Any]) -> str:
    raise_limit()
    tally = PhasedTally(schedule=Schedule(**asked["schedule"]))
    await KINDS[asked["kind"]](asked, tally, Commands(asked.get("rate", 1.0)))
    return tally.encode()


def main() -> None:
    """Run the clients that the first argument describes, as JSON."""
    asked = json.loads(sys.argv[1])
    Path(asked["file"]).write_text(uvloop.run(_run(asked)))
    print("done", flush=True)


if __name__ == "__main__":
    main()
