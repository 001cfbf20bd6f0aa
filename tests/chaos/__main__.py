"""Kills and deceives the processes of a coordinator at random, and then proves that every promise was kept.

Nodes and validators work for some seconds while API and jobs are killed, the broker is emptied, the chain's node is
stopped, and blocks with epochs and policies are taken back. Then the pool is ended and must settle. A seed repeats the
same faults at the same times. Even seeds run on SQLite and a folder. Odd ones run two API processes on a PostgreSQL and
a Redis of their own, which are stopped and killed as well.

Example: python -m tests.chaos --seeds 8
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from covey.chain.structs import BondKind
from covey.devnet import deploy
from covey.errors import CoveyError, TransientError
from covey.protocol.ids import PoolId, Step
from tests.chaos.actors import Decider, Network, Record, run_node, run_validator
from tests.chaos.promises import find_broken
from tests.fakes.coordinator_processes import CoordinatorProcesses
from tests.fakes.network import MIN_STAKE, create_pool, register
from tests.fakes.pool import make_hash, make_params
from tests.fakes.private_servers import PrivateServer, open_private_postgres, open_private_redis
from tests.integration.chain.conftest import open_chain

START_S, WORK_S, DRAIN_S = 300.0, 20.0, 900.0
"""Maximum number of seconds until the first promise, seconds with faults, and maximum number until all is settled."""
NODES = ("node", *(f"node-{number}" for number in range(2, 9)))
BLOCKS_BEFORE = 80
"""Blocks before the first task, so that no reorganisation takes the pool itself back."""


class Servers(NamedTuple):
    """What a coordinator of several processes uses."""

    postgres: PrivateServer
    redis: PrivateServer


@contextmanager
def open_servers(folder: Path, *, is_wanted: bool) -> Iterator[Servers | None]:
    """Run a PostgreSQL and a Redis. None if they are not wanted, or are not installed."""
    if not is_wanted:
        yield None
        return
    with open_private_postgres(folder) as postgres, open_private_redis(folder) as redis:
        yield Servers(postgres, redis) if postgres and redis else None


class Chaos:
    """One run. Example: `await Chaos(chain, pool, folder, seed=3).run()`."""

    def __init__(
        self, chain: Any, pool: PoolId, folder: Path, *, seed: int, work_s: float, servers: Servers | None = None
    ) -> None:
        """Faults happen for `work_s` seconds. Without `servers`, the coordinator uses SQLite and a folder."""
        self.chain, self.pool, self.folder, self._work_s, self._servers = chain, pool, folder, work_s, servers
        self.database_url = servers.postgres.url if servers else f"sqlite:///{folder / 'home' / 'coordinator.sqlite3'}"
        self.random = random.Random(seed)
        self.faults: list[str] = []
        self.record = Record()
        settings: dict[str, object] = {}
        if servers is not None:
            redis = servers.redis.url
            settings = {"database_url": servers.postgres.url, "broker_url": redis, "nonces_url": redis, "processes": 2}
        self.processes = CoordinatorProcesses(chain, pool, folder, **settings)

    async def run(self) -> list[str]:
        """Do everything. Returns a sentence for each promise that was broken."""
        for name in ("serve", "jobs", "more jobs"):
            self.processes.start(name)
        network = Network(
            url=self.processes.url,
            chain_id=self.chain.deployment.chain_id,
            pool=self.pool,
            court=self.chain.deployment.slashing_court,
            contributor=self.chain.address("contributor"),
            record=self.record,
        )
        decide = Decider(every=7)
        wallets = [deploy.derive_wallet("test", name) for name in NODES]
        actors = [asyncio.create_task(run_node(network, wallet)) for wallet in wallets]
        actors += [
            asyncio.create_task(run_validator(network, self.chain.wallets[f"validator-{i}"], decide)) for i in range(3)
        ]
        try:
            await self._break_things()
            self.record.is_working = False
            async with asyncio.timeout(DRAIN_S):
                await asyncio.gather(*actors[: len(NODES)])
            await self._settle(network)
        finally:
            self.record.is_over = True
            await asyncio.gather(*actors, return_exceptions=True)
            self.processes.end()
        return find_broken(self.chain, self.pool, self.processes.home, self.database_url, self.record)

    # -- faults

    async def _break_things(self) -> None:
        faults: list[Callable[[], None]] = [
            lambda: self._kill("serve"),
            lambda: self._kill("jobs"),
            lambda: self._kill("more jobs"),
            self._stop_chain,
            self._reorganise,
            self._publish,
        ]
        if self._servers is None:
            faults.append(self._empty_broker)
        else:
            postgres, redis = self._servers
            faults += [
                lambda: self._restart("PostgreSQL", postgres),
                lambda: self._restart("Redis", redis),
                lambda: self._stop("PostgreSQL", postgres),
                lambda: self._stop("Redis", redis),
            ]
        async with asyncio.timeout(START_S):
            await self.record.has_begun.wait()
        end = time.monotonic() + self._work_s
        while time.monotonic() < end:
            fault = self.random.choice(faults)
            await asyncio.to_thread(fault)
            await asyncio.sleep(self.random.uniform(0.2, 2.0))

    def _kill(self, role: str) -> None:
        self.faults.append(f"kill {role}")
        self.processes.kill(role)
        self.processes.start(role)

    def _empty_broker(self) -> None:
        self.faults.append("empty the broker")
        for message in (self.processes.home / "broker" / "messages").glob("*.msg"):
            message.unlink(missing_ok=True)

    def _restart(self, name: str, server: PrivateServer) -> None:
        self.faults.append(f"kill {name} and start it again")
        server.restart()

    def _stop(self, name: str, server: PrivateServer) -> None:
        seconds = self.random.uniform(0.5, 3)
        self.faults.append(f"stop {name} for {seconds:.1f} s")
        server.stop()
        time.sleep(seconds)
        server.resume()

    def _stop_chain(self) -> None:
        seconds = self.random.uniform(0.5, 3)
        self.faults.append(f"stop the chain's node for {seconds:.1f} s")
        self.chain.anvil.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.chain.anvil.process.send_signal(signal.SIGCONT)

    def _reorganise(self) -> None:
        depth = self.random.choice((1, 2, 4, 8, 16, 32, 64))
        self.faults.append(f"take {depth} blocks back")
        self.chain.client.request("anvil_reorg", depth, [])

    def _publish(self) -> None:
        """Publish the next policy, again if a reorganisation has dropped it."""
        policies = self.chain.contracts.policies
        step = policies.steps_of(self.pool)
        self.faults.append(f"publish policy {step}")
        try:
            self.chain.send("trainer", policies.publish(self.pool, Step(step), make_hash(f"policy {step}")))
        except CoveyError as error:
            self.faults.append(f"policy {step} was not published: {error.code}")

    # -- the end

    async def _settle(self, network: Network) -> None:
        deadline = time.monotonic() + DRAIN_S
        await asyncio.to_thread(self.chain.send, "operator", self.chain.contracts.pools.end_pool(self.pool))
        async with network.open(self.chain.wallets["node"]) as client:
            while time.monotonic() < deadline:
                try:
                    if (await client.get_status()).settled:
                        return
                except TransientError:
                    pass
                await asyncio.sleep(0.25)


def _register_others(chain: Any, pool: PoolId) -> None:
    """Stake for all nodes, and register those that `create_pool` has not registered."""
    stakes, amount = chain.contracts.stakes, len(NODES) * MIN_STAKE
    chain.send("contributor", chain.contracts.token.approve(stakes.address, amount))
    chain.send("contributor", stakes.stake(pool, BondKind.CONTRIBUTOR, amount))
    for name in NODES[2:]:
        register(chain, pool, name)


def run_seed(seed: int, *, work_s: float = WORK_S) -> list[str]:
    """Run one seed on a chain of its own. Returns what was broken, after the faults that led to it.

    `work_s` is the number of seconds in which faults happen.
    """
    params = make_params(
        max_submission_bytes=24_576,
        max_staleness=1,
        groups_per_step=4000,
        groups_per_task=1,
        epoch_seconds=3,
        epoch_leaves=40,
        strikes_to_suspend=10_000,
        lease_seconds=30,
    )
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="covey-chaos-") as name,
        open_servers(Path(name), is_wanted=seed % 2 == 1) as servers,
        open_chain() as chain,
    ):
        pool = create_pool(chain, params)
        _register_others(chain, pool)
        chain.client.request("anvil_mine", hex(BLOCKS_BEFORE))
        chain.client.request("evm_setIntervalMining", 1)
        chaos = Chaos(chain, pool, Path(name), seed=seed, work_s=work_s, servers=servers)
        broken = asyncio.run(chaos.run())
        count = len(chaos.record.promises)
        print(
            f"seed {seed} on {'PostgreSQL' if servers else 'SQLite'}: {count} promises, {len(chaos.faults)} faults, "
            f"{time.monotonic() - started:.0f} s",
            flush=True,
        )
        if broken:
            logs = [line for role in ("serve", "jobs") for line in chaos.processes.read_log(role)]
            for line in (*chaos.faults, *broken, *logs, *(f"{code}: {n}" for code, n in chaos.record.refusals.items())):
                print(f"  {line}", flush=True)
        return broken


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds; default: 1")
    parser.add_argument("--first", type=int, default=0, help="first seed; default: 0")
    options = parser.parse_args(arguments)
    broken = [seed for seed in range(options.first, options.first + options.seeds) if run_seed(seed)]
    if broken:
        print(f"promises were broken with these seeds: {broken}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
