"""Kills and deceives the processes of a coordinator at random, and then proves that every promise was kept.

Nodes and validators work while the faults of `tests.chaos.faults` happen: processes are killed, disks
are full, clocks jump, blocks are taken back. Then the pool is ended and must settle. A seed repeats the same faults in
the same order. Even seeds run on SQLite and a folder. Odd ones run two API processes on a PostgreSQL and a Redis of
their own, which are stopped and killed as well.

Example: python -m tests.chaos --seeds 8
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from covey.chain.structs import BondKind
from covey.devnet import deploy
from covey.errors import TransientError
from covey.protocol.ids import PoolId
from tests.chaos.actors import Decider, Network, Record, run_node, run_validator
from tests.chaos.faults import ROLES, Faults, Servers
from tests.chaos.promises import OPEN, find_broken, has_rows
from tests.fakes.coordinator_processes import CoordinatorProcesses
from tests.fakes.disk import SmallDisk, open_small_disk
from tests.fakes.network import MIN_STAKE, create_pool, register
from tests.fakes.pool import make_params
from tests.fakes.private_servers import open_private_postgres, open_private_redis
from tests.fakes.troubled_node import open_troubled_node
from tests.integration.chain.conftest import open_chain

START_S, DRAIN_S = 300.0, 900.0
"""Maximum number of seconds until the first promise, and until all is settled."""
FAULTS = 12
"""Number of faults of a run."""
LOCK_S = 60.0
"""Seconds for which another process has SQLite's lock."""
NODES = ("node", *(f"node-{number}" for number in range(2, 9)))
BLOCKS_BEFORE = 80
"""Blocks before the first task, so that no reorganisation takes the pool itself back."""


@contextmanager
def open_servers(folder: Path, *, has_own_disk: bool, is_wanted: bool) -> Iterator[Servers | None]:
    """Run a PostgreSQL and a Redis. None if they are not wanted, or are not installed.

    On a disk of its own, the folder has the files of PostgreSQL too, whose user could not reach it otherwise.
    """
    if not is_wanted:
        yield None
        return
    data = folder / "postgres" if has_own_disk else None
    if data is not None:
        data.mkdir(mode=0o700)
    with open_private_postgres(folder, data=data) as postgres, open_private_redis(folder) as redis:
        yield Servers(postgres, redis) if postgres and redis else None


@contextmanager
def open_folder() -> Iterator[tuple[Path, SmallDisk | None]]:
    """Make a folder for all files of a run, logs included, on a disk of its own.

    The disk is None if this user may not mount one.
    """
    with tempfile.TemporaryDirectory(prefix="covey-chaos-") as name, open_small_disk(Path(name)) as disk:
        if disk is None:
            print("this user may not mount a file system, so no disk is ever full", flush=True)
        yield Path(name), disk


class Chaos:
    """One run. Example: `await chaos.run(lambda: chaos.faults.happen(12))`."""

    def __init__(self, faults: Faults) -> None:
        self.faults, self.chain, self.pool = faults, faults.chain, faults.pool
        self.processes, self.record = faults.processes, faults.record
        self._broken: list[str] = []
        self._decide = Decider(every=7)

    async def run(self, happen: Callable[[], Awaitable[None]]) -> list[str]:
        """Do everything. What `happen` does begins once a first promise was made.

        Returns a sentence for each promise that was broken.
        """
        for name in ROLES:
            self.processes.start(name)
        keeping = asyncio.create_task(self._keep_running())
        network = Network(
            url=self.processes.url,
            chain_id=self.chain.deployment.chain_id,
            pool=self.pool,
            court=self.chain.deployment.slashing_court,
            contributor=self.chain.address("contributor"),
            record=self.record,
        )
        wallets = [deploy.derive_wallet("test", name) for name in NODES]
        actors = [asyncio.create_task(run_node(network, wallet)) for wallet in wallets]
        actors += [
            asyncio.create_task(run_validator(network, self.chain.wallets[f"validator-{i}"], self._decide))
            for i in range(3)
        ]
        try:
            async with asyncio.timeout(START_S):
                await self.record.has_begun.wait()
            try:
                await happen()
            except TimeoutError:
                self._broken.append("Work did not go on after the faults.")
            self.record.is_working = False
            async with asyncio.timeout(DRAIN_S):
                await asyncio.gather(*actors[: len(NODES)])
            await self._settle(network)
        finally:
            self.record.is_over = True
            keeping.cancel()
            await asyncio.gather(*actors, keeping, return_exceptions=True)
            self.processes.end()
        home, url = self.processes.home, self.processes.database_url
        return [*self._broken, *find_broken(self.chain, self.pool, home, url, self.record, self._decide)]

    def report(self, broken: Sequence[str]) -> None:
        """Print what was broken, with the faults and the logs that led to it."""
        logs = [line for role in ROLES for line in self.processes.read_log(role, lines=60)]
        refusals = [f"{code}: {count}" for code, count in self.record.refusals.items()]
        for line in (*self.faults.happened, *broken, *logs, *refusals):
            print(f"  {line}", flush=True)

    async def _keep_running(self) -> None:
        while True:
            self._broken += self.faults.keep_running()
            await asyncio.sleep(0.5)

    # -- the end

    async def _settle(self, network: Network) -> None:
        """End the pool once all work is decided, because it closes soon after, and wait until all is settled."""
        deadline = time.monotonic() + DRAIN_S
        await self._await_none("submissions WHERE decision IS NULL", deadline)
        await asyncio.to_thread(self.chain.send, "operator", self.chain.contracts.pools.end_pool(self.pool))
        async with network.open(self.chain.wallets["node"]) as client:
            while time.monotonic() < deadline:
                try:
                    if (await client.get_status()).settled:
                        break
                except TransientError:
                    pass
                await asyncio.sleep(0.25)
        await self._await_none(f"intents WHERE state IN {OPEN}", deadline)

    async def _await_none(self, condition: str, deadline: float) -> None:
        """Wait until no rows have a condition, or until `deadline` on the monotonic clock."""
        url = self.processes.database_url
        while time.monotonic() < deadline and await asyncio.to_thread(has_rows, url, condition):  # noqa: ASYNC110
            await asyncio.sleep(0.25)


def _register_others(chain: Any, pool: PoolId) -> None:
    """Stake for all nodes, and register those that `create_pool` has not registered."""
    stakes, amount = chain.contracts.stakes, len(NODES) * MIN_STAKE
    chain.send("contributor", chain.contracts.token.approve(stakes.address, amount))
    chain.send("contributor", stakes.stake(pool, BondKind.CONTRIBUTOR, amount))
    for name in NODES[2:]:
        register(chain, pool, name)


@contextmanager
def open_chaos(seed: int, *, has_servers: bool, lock_s: float = LOCK_S) -> Iterator[Chaos]:
    """Prepare a run on a chain of its own, with two API processes on PostgreSQL and Redis if `has_servers`.

    Another process has SQLite's lock for `lock_s` seconds at a time.
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
        judgement_seconds=5,
    )
    with ExitStack() as stack:
        folder, disk = stack.enter_context(open_folder())
        servers = stack.enter_context(open_servers(folder, has_own_disk=disk is not None, is_wanted=has_servers))
        chain = stack.enter_context(open_chain())
        node = stack.enter_context(open_troubled_node(chain.anvil.url))
        pool = create_pool(chain, params)
        _register_others(chain, pool)
        chain.client.request("anvil_mine", hex(BLOCKS_BEFORE))
        chain.client.request("evm_setIntervalMining", 1)
        settings: dict[str, object] = {"rpc_url": node.url}
        if servers is not None:
            redis = servers.redis.url
            settings |= {"database_url": servers.postgres.url, "broker_url": redis, "nonces_url": redis, "processes": 2}
        yield Chaos(
            Faults(
                chain=chain,
                pool=pool,
                node=node,
                processes=CoordinatorProcesses(chain, pool, folder, **settings),
                servers=servers,
                disk=disk,
                record=Record(),
                random=random.Random(seed),
                lock_s=lock_s,
            )
        )


def run_seed(seed: int, *, count: int = FAULTS, lock_s: float = LOCK_S, names: tuple[str, ...] = ()) -> list[str]:
    """Run one seed, with `count` faults, which have some names or are drawn from all.

    Returns what was broken, after the faults that led to it.
    """
    started = time.monotonic()
    with open_chaos(seed, has_servers=seed % 2 == 1, lock_s=lock_s) as chaos:
        faults = chaos.faults
        broken = asyncio.run(chaos.run(lambda: faults.happen(count, names)))
        print(
            f"seed {seed} on {'PostgreSQL' if faults.servers else 'SQLite'}: {len(faults.record.promises)} promises, "
            f"{len(faults.happened)} faults, {time.monotonic() - started:.0f} s",
            flush=True,
        )
        if broken:
            chaos.report(broken)
        return broken


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds; default: 1")
    parser.add_argument("--faults", default="", help='names of faults, separated by commas: "full disk"; default: all')
    parser.add_argument("--first", type=int, default=0, help="first seed; default: 0")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Processes and disks of the run do not outlive it.
    names = tuple(filter(None, options.faults.split(",")))
    broken = [seed for seed in range(options.first, options.first + options.seeds) if run_seed(seed, names=names)]
    if broken:
        print(f"promises were broken with these seeds: {broken}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
