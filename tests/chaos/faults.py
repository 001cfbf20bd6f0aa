"""The faults of a run, by name. A seed decides which happen, in which order, and for how long."""

import asyncio
import random
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from redis import Redis

from covey.errors import CoveyError
from covey.protocol.ids import PoolId, Step
from tests.chaos.actors import Record
from tests.fakes.coordinator_processes import CoordinatorProcesses
from tests.fakes.disk import SmallDisk
from tests.fakes.pool import make_hash
from tests.fakes.private_servers import PrivateServer
from tests.fakes.troubled_node import Trouble, TroubledNode

ROLES = ("serve", "jobs", "more jobs")
"""Names of the processes of the coordinator."""
CLOCK_S = (60.0, 120.0)
"""Smallest and largest number of seconds by which a clock jumps, in either direction."""
WAITING_SHARE = 0.6
"""Share of the faults before which work goes on."""
PATIENCE_S, STUCK_S = 20.0, 300.0
"""Maximum number of seconds to wait for work between two faults, and after the last one."""
Fault = Callable[[], Awaitable[None]]


class Servers(NamedTuple):
    """What a coordinator of several processes uses."""

    postgres: PrivateServer
    redis: PrivateServer


@dataclass(kw_only=True)
class Faults:
    """What may go wrong in one run. Example: `await faults.happen(12)`."""

    chain: Any
    pool: PoolId
    node: TroubledNode
    """The chain's node as the coordinator sees it."""
    processes: CoordinatorProcesses
    servers: Servers | None
    """None: the coordinator uses SQLite and a folder."""
    disk: SmallDisk | None
    """Where the database and the store are. None if this user may not mount one."""
    record: Record
    random: random.Random
    lock_s: float
    """Seconds for which another process has SQLite's lock."""
    happened: list[str] = field(default_factory=list)
    _locked_until: float = 0.0
    """Time of the monotonic clock until which another process has SQLite's lock."""
    _ends: list[asyncio.Task[None]] = field(default_factory=list)
    """What ends faults that last while others happen."""

    async def happen(self, count: int, names: tuple[str, ...] = ()) -> None:
        """Let a number of faults happen, of some names or of all, and end those that last.

        About half of them wait until work goes on after the one before. Raises TimeoutError if it does not go on after
        the last one.
        """
        try:
            for fault in islice(self._deal(names), count):
                await fault()
                if self.random.random() < WAITING_SHARE:
                    with suppress(TimeoutError):
                        await self._await_promises(PATIENCE_S)
                else:
                    await asyncio.sleep(self.random.uniform(0.2, 2.0))
        finally:
            await asyncio.gather(*self._ends)
        await self._await_promises(STUCK_S)

    async def _await_promises(self, seconds: float) -> None:
        """Wait until the coordinator has made some more promises. Raises TimeoutError after `seconds`."""
        before = len(self.record.promises)
        async with asyncio.timeout(seconds):
            while len(self.record.promises) < before + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def keep_running(self) -> Iterator[str]:
        """Start processes again that have ended because the chain or the database is down, as `covey up` does.

        Yields a sentence for each that has ended otherwise.
        """
        for name, code in self.processes.list_ended().items():
            if code != 75:
                yield f"{name} ended by itself with code {code}: {self.processes.read_log(name, lines=3)}"
            self.happened.append(f"({name} ended with code {code} and is started again)")
            self.processes.start(name)

    def _deal(self, names: tuple[str, ...]) -> Iterator[Fault]:
        """Yield the faults that are possible here in random order, again and again."""
        chosen = [fault for name, fault in self.list_faults().items() if not names or name in names]
        if not chosen:
            raise ValueError(f"none of the faults {names} is among {list(self.list_faults())}")
        while True:
            yield from self.random.sample(chosen, len(chosen))

    def list_faults(self) -> dict[str, Fault]:
        """Return the faults by name."""
        faults: dict[str, Fault] = {f"kill {role}": partial(self._kill, role) for role in ROLES}
        faults |= {
            "stop the chain's node": self._stop_chain,
            "take blocks back": self._reorganise,
            "publish a policy": self._publish,
            "silent validator": self._silence,
            "clock jumps ahead": partial(self._move_clock, 1),
            "clock jumps back": partial(self._move_clock, -1),
        }
        for trouble in (
            Trouble.STALE,
            Trouble.SILENT,
            Trouble.GARBAGE,
            Trouble.UNWILLING,
            Trouble.BEHIND,
            Trouble.BLIND,
            Trouble.FORGETFUL,
        ):
            faults[f"{trouble.name.lower()} answers of the chain's node"] = partial(self._trouble, trouble)
        if self.disk is not None:
            faults["full disk"] = partial(self._fill, self.disk)
        if self.servers is None:
            return faults | {"empty the broker": self._empty_broker, "lock SQLite": self._lock}
        postgres, redis = self.servers
        return faults | {
            "kill an API process": self._kill_server,
            "kill PostgreSQL": partial(self._restart, "PostgreSQL", postgres),
            "kill Redis": partial(self._restart, "Redis", redis),
            "stop PostgreSQL": partial(self._stop, "PostgreSQL", postgres),
            "stop Redis": partial(self._stop, "Redis", redis),
            "flush Redis": partial(self._flush, redis),
            "kill all API processes without PostgreSQL": partial(self._kill_without, postgres),
        }

    # -- processes and their clocks

    async def _kill(self, role: str) -> None:
        self.happened.append(f"kill {role}")
        self.processes.kill(role)
        self.processes.start(role)

    async def _kill_server(self) -> None:
        for server in self.processes.list_servers()[:1]:
            self.happened.append("kill an API process")
            server.kill()

    async def _kill_without(self, postgres: PrivateServer) -> None:
        seconds = self._draw_seconds()
        self.happened.append(f"kill all API processes, while PostgreSQL is dead for {seconds:.1f} s")
        await asyncio.to_thread(postgres.kill)
        for server in self.processes.list_servers():
            server.kill()
        await asyncio.sleep(seconds)
        await asyncio.to_thread(postgres.start)

    async def _move_clock(self, direction: int) -> None:
        role, jump = self.random.choice(ROLES), direction * self.random.uniform(*CLOCK_S)
        clock = self.processes.get_clock(role)
        self._begin(
            f"clock of {role} jumps by {jump:.0f} s", partial(clock.move, jump), partial(clock.move, 0.0), until_s=10.0
        )

    # -- the chain

    async def _stop_chain(self) -> None:
        process = self.chain.anvil.process
        stop, go = (partial(process.send_signal, number) for number in (signal.SIGSTOP, signal.SIGCONT))
        await self._suffer("stop the chain's node", stop, go)

    async def _trouble(self, trouble: Trouble) -> None:
        def turn(to: Trouble) -> None:
            self.node.trouble = to

        await self._suffer(f"{trouble.name} node", partial(turn, trouble), partial(turn, Trouble.NONE))

    async def _reorganise(self) -> None:
        depth = self.random.choice((1, 2, 4, 8, 16, 32, 64))
        self.happened.append(f"take {depth} blocks back")
        await asyncio.to_thread(self.chain.client.request, "anvil_reorg", depth, [])

    async def _publish(self) -> None:
        """Publish the next policy, again if a reorganisation has dropped it."""
        policies = self.chain.contracts.policies
        step = await asyncio.to_thread(policies.steps_of, self.pool)
        self.happened.append(f"publish policy {step}")
        call = policies.publish(self.pool, Step(step), make_hash(f"policy {step}"))
        try:
            await asyncio.to_thread(self.chain.send, "trainer", call)
        except CoveyError as error:
            self.happened.append(f"policy {step} was not published: {error.code}")

    # -- validators

    async def _silence(self) -> None:
        validator = self.chain.wallets[f"validator-{self.random.randrange(3)}"].address
        silent = self.record.silent
        self._begin(
            f"validator {validator} is silent",
            partial(silent.add, validator),
            partial(silent.discard, validator),
            until_s=10.0,
        )

    # -- database, broker and disk

    async def _fill(self, disk: SmallDisk) -> None:
        def free() -> None:
            disk.free()
            if self.servers is not None:
                self.servers.postgres.recover()

        await self._suffer("full disk", disk.fill, free)

    async def _lock(self) -> None:
        if time.monotonic() < self._locked_until:
            return
        self._locked_until = time.monotonic() + self.lock_s + 1
        database = sqlite3.connect(self.processes.home / "coordinator.sqlite3", timeout=60, check_same_thread=False)
        database.isolation_level = None

        def unlock() -> None:
            database.execute("ROLLBACK")
            database.close()

        begin = partial(database.execute, "BEGIN IMMEDIATE")
        await asyncio.to_thread(begin)
        self._begin("another process locks SQLite", lambda: None, unlock, until_s=self.lock_s, is_drawn=False)

    async def _empty_broker(self) -> None:
        self.happened.append("empty the broker")
        for message in (self.processes.home / "broker" / "messages").glob("*.msg"):
            message.unlink(missing_ok=True)

    async def _restart(self, name: str, server: PrivateServer) -> None:
        self.happened.append(f"kill {name} and start it again")
        await asyncio.to_thread(server.restart)

    async def _stop(self, name: str, server: PrivateServer) -> None:
        await self._suffer(f"stop {name}", server.stop, server.resume)

    async def _flush(self, redis: PrivateServer) -> None:
        self.happened.append("flush Redis")
        with Redis.from_url(redis.url, socket_timeout=10) as client:
            await asyncio.to_thread(client.flushall)

    # -- how long

    def _draw_seconds(self) -> float:
        return self.random.uniform(0.5, 3)

    async def _suffer(self, name: str, begin: Callable[[], object], end: Callable[[], object]) -> None:
        """Let a fault last while nothing else happens."""
        seconds = self._draw_seconds()
        self.happened.append(f"{name} for {seconds:.1f} s")
        await asyncio.to_thread(begin)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(end)

    def _begin(
        self,
        name: str,
        begin: Callable[[], object],
        end: Callable[[], object],
        *,
        until_s: float,
        is_drawn: bool = True,
    ) -> None:
        """Begin a fault that lasts while others happen, for at most or, unless it is drawn, exactly `until_s`."""
        seconds = self.random.uniform(1.0, until_s) if is_drawn else until_s
        self.happened.append(f"{name} for {seconds:.1f} s")
        begin()

        async def wait() -> None:
            try:
                await asyncio.sleep(seconds)
            finally:
                end()

        self._ends.append(asyncio.create_task(wait()))
