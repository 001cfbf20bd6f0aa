"""How long a node waits for the answer to its heartbeat while others attack the coordinator: slow peers and floods.

Each attack lasts a few times the server's deadline for a slow peer. One node sends 80 heartbeats a second meanwhile,
and the seconds count from when a heartbeat is due. `heartbeat_p99_ms.quiet` is the same without an attack, in the same
run. Attackers, the node and the coordinator share the cores.

`tests/integration/coordinator/test_floods.py` runs the same attacks, and asserts what holds on a machine of any speed.
"""

import argparse
import asyncio
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import finish
from benchmarks.measurement import Bar, Measurement, find_misses, set_bars
from benchmarks.network.coordinator_load import Wire, build_request, build_signed, compute_percentiles
from benchmarks.network.coordinator_pool import derive, open_pool, run_coordinator
from covey.chain.wallet import Wallet
from covey.runtime.connections import ConnectionLimits, raise_descriptor_limit

BARS = {"heartbeat_p99_ms": Bar(most=100), "heartbeats_refused": Bar(most=0)}
PATH = "/v1/heartbeat"
BODY = b'{"instance":"%s","free_slots":1}' % (b"0" * 32)
BEATS_PER_S, FLOOD_PER_S = 80, 750
CONNECTIONS = 320
"""Cap of the benchmark's server. The attack with idle connections opens more than three times as many."""
IDLE_CONNECTIONS, SLOW_CONNECTIONS = 1100, 200
_HANG_S = 60.0
"""Time in seconds that a slow machine may take to close connections whose deadlines are over."""
_RECOVERY_S = 4.2
"""Seconds after which an address may send as many requests at once again as at first. A flood is hardest then."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A running coordinator at which `node` is registered."""

    port: int
    node: Wallet
    """Wallet of the node that sends heartbeats."""
    other: Wallet
    """Wallet of another node, whose large bodies are admitted."""
    limits: ConnectionLimits
    """Deadlines of the server."""
    flood_s: float
    """Duration of a flood in seconds."""

    def sign(self, wallet: Wallet, body: bytes = BODY, path: str = PATH) -> bytes:
        """Return a signed request."""
        return build_signed(wallet, f"127.0.0.1:{self.port}", path, body)

    def build_unsigned(self, body: bytes = BODY) -> bytes:
        """Return a request without a signature."""
        return build_request("POST", f"127.0.0.1:{self.port}", PATH, body)


class SlowPeer(asyncio.Protocol):
    """A connection that sends the start of a request, then a byte now and then until the server closes it."""

    def __init__(self, start: bytes) -> None:
        self._start = start
        self._loop = asyncio.get_running_loop()
        self.ended = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._start:
            transport.write(self._start)
            self._loop.call_later(0.5, self._drip)

    def _drip(self) -> None:
        if not self.ended.done():
            self._transport.write(b"x")
            self._loop.call_later(0.5, self._drip)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


async def register(target: Target) -> int:
    """Register the node at the coordinator. Returns the status."""
    wire = await Wire.open(target.port)
    status, _ = await wire.send(target.sign(target.node, b"", "/v1/nodes"))
    wire.close()
    return status


async def send_paced(
    target: Target, requests: Iterator[bytes], *, rate: float, connections: int
) -> tuple[Counter[int], list[float]]:
    """Send requests at a rate per second until there are no more. Returns the statuses, and the seconds from due time
    to answer.

    At its cap, the server closes the connection that it has waited for longest, and clients connect again.
    """
    wires = [await Wire.open(target.port) for _ in range(connections)]
    statuses: Counter[int] = Counter()
    durations: list[float] = []
    started, places = time.monotonic(), iter(range(10**9))

    async def run(number: int) -> None:
        while True:
            due = started + next(places) / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            request = next(requests, None)
            if request is None:
                return
            try:
                status, _ = await wires[number].send(request)
            except ConnectionError:
                wires[number] = await Wire.open(target.port)
                status, _ = await wires[number].send(request)
            statuses[status] += 1
            durations.append(time.monotonic() - due)

    await asyncio.gather(*map(run, range(connections)))
    for wire in wires:
        wire.close()
    return statuses, durations


async def hold(target: Target, starts: Sequence[bytes], *, patience: float) -> None:
    """Open a slow connection for each start of a request, and wait until the server has closed all.

    Raises TimeoutError if the server keeps one open, and RuntimeError if it closed all before its deadline.
    """
    loop, opened = asyncio.get_running_loop(), time.monotonic()
    peers = [
        (await loop.create_connection(lambda start=start: SlowPeer(start), "127.0.0.1", target.port))[1]  # type: ignore[misc]
        for start in starts
    ]
    async with asyncio.timeout(patience + _HANG_S):
        await asyncio.gather(*(peer.ended for peer in peers))
    if time.monotonic() - opened < 0.9 * patience:
        raise RuntimeError("the server closed all slow connections before its deadline")


async def attack_with_slow_headers(target: Target) -> None:
    """Headers never end."""
    start = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1:{target.port}\r\nx-more: ".encode()
    await hold(target, [start] * SLOW_CONNECTIONS, patience=target.limits.headers_s)


async def attack_with_slow_bodies(target: Target) -> None:
    """Half of the requests are admitted, so that the server waits for their bodies."""
    body = b" " * 200_000
    pairs = ((target.sign(target.other, body), target.build_unsigned(body)) for _ in range(SLOW_CONNECTIONS // 2))
    await hold(target, [each[:-199_000] for pair in pairs for each in pair], patience=target.limits.progress_s)


async def attack_with_idle_connections(target: Target) -> None:
    """There are more connections than the server keeps open."""
    await hold(target, [b""] * IDLE_CONNECTIONS, patience=target.limits.headers_s)


async def flood(target: Target, build: Callable[[], bytes], expected: int) -> None:
    """Send built requests. Raises RuntimeError if one is answered with a status other than `expected` and 429."""
    count = int(FLOOD_PER_S * target.flood_s)
    statuses, _ = await send_paced(target, (build() for _ in range(count)), rate=FLOOD_PER_S, connections=50)
    if statuses.total() != count or not set(statuses) <= {expected, 429}:
        raise RuntimeError(f"{count} requests of a flood were answered with {dict(statuses)}")


async def flood_with_unsigned_requests(target: Target) -> None:
    await flood(target, target.build_unsigned, 401)


async def flood_with_forged_signatures(target: Target) -> None:
    """The signatures are those of another request of the node."""

    def build() -> bytes:
        head, mark, rest = target.sign(target.node).partition(b'nonce="')
        _, quote, rest = rest.partition(b'"')
        return head + mark + secrets.token_urlsafe(18).encode() + quote + rest

    await flood(target, build, 401)


async def flood_of_an_unknown_key(target: Target) -> None:
    stranger = derive("stranger")
    await flood(target, lambda: target.sign(stranger), 403)


Attack = Callable[[Target], Awaitable[None]]
SLOW_PEERS: dict[str, Attack] = {
    "slow_headers": attack_with_slow_headers,
    "slow_bodies": attack_with_slow_bodies,
    "idle_connections": attack_with_idle_connections,
}
FLOODS: dict[str, Attack] = {
    "unknown_key": flood_of_an_unknown_key,
    "unsigned": flood_with_unsigned_requests,
    "forged": flood_with_forged_signatures,
}


async def beat_during(target: Target, attack: Awaitable[None], *, rate: float) -> tuple[Counter[int], list[float]]:
    """Send the node's heartbeats until the attack is over, as `send_paced` does."""
    running = asyncio.ensure_future(attack)

    def build() -> Iterator[bytes]:
        while not running.done():
            yield target.sign(target.node)

    answers = await send_paced(target, build(), rate=rate, connections=4)
    await running
    return answers


async def measure(target: Target) -> list[Measurement]:
    """Measure heartbeats without an attack, then during each one. Raises RuntimeError if the node is refused."""
    if await register(target) != 200:
        raise RuntimeError("the coordinator did not register the node")
    attacks: dict[str, Attack] = {"quiet": lambda target: asyncio.sleep(target.flood_s), **SLOW_PEERS, **FLOODS}
    measurements, refused = [], 0
    for name, attack in attacks.items():
        await asyncio.sleep(_RECOVERY_S)
        statuses, durations = await beat_during(target, attack(target), rate=BEATS_PER_S)
        refused += statuses.total() - statuses[204]
        value, n = 1000 * compute_percentiles(durations)["p99"], len(durations)
        measurements.append(Measurement(name=f"heartbeat_p99_ms.{name}", value=value, unit="ms", n=n))
    total = sum(each.n for each in measurements)
    return [*measurements, Measurement(name="heartbeats_refused", value=refused, unit="count", n=total)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("make bench NAME=floods", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each flood (10)")
    options = parser.parse_args(arguments)
    raise_descriptor_limit(ConnectionLimits(connections=2 * IDLE_CONNECTIONS))
    with (
        tempfile.TemporaryDirectory(prefix="covey-floods-") as folder,
        open_pool(Path(folder), nodes=2) as pool,
        run_coordinator(pool, connections=CONNECTIONS) as service,
    ):
        target = Target(
            port=service.port,
            node=derive("node-0"),
            other=derive("node-1"),
            limits=ConnectionLimits(),
            flood_s=options.seconds,
        )
        measurements = set_bars(asyncio.run(measure(target)), BARS)
    return finish("floods", measurements, find_misses(measurements), arguments)
