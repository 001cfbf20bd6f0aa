"""What a coordinator depends on becomes slow, silent or unwilling while nodes and validators work.

Signs of life are answered meanwhile, work goes on afterwards, and every promise is kept. A database that is stopped
answers nobody, so with it only the rest is asked for.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from covey.errors import CoveyError, TransientError
from covey.network.coordinator_client import CoordinatorClient
from tests.chaos.actors import Decider, Network, Record, run_node, run_validator
from tests.conftest import IS_FULL
from tests.fakes.coordinator_processes import CoordinatorProcesses
from tests.fakes.network import create_pool
from tests.fakes.pool import INSTANCE, make_params
from tests.fakes.private_servers import PrivateServer, open_private_postgres, open_private_redis
from tests.fakes.troubled_node import Trouble, TroubledNode, open_troubled_node
from tests.integration.chain.conftest import Chain, open_chain

pytestmark = [pytest.mark.integration, pytest.mark.slow]
OUTAGE_SECONDS, BEATS = (20.0, 200) if IS_FULL else (2.0, 20)
"""Minimum time in seconds of each outage, and minimum number of heartbeats that are answered within it."""
RATIO, LEAST_SECONDS = 20, 1.0
"""In an outage the 95th percentile of the times of heartbeats may be `RATIO` times that before the first outage, or
`LEAST_SECONDS` seconds. The latter is a tenth of a client's timeout, and a heartbeat that waits for what is out takes
longer.
"""
RESUME_SECONDS, SETTLE_SECONDS = 300.0, 900.0
"""Deadlines against hanging, in seconds, until work begins or goes on, and until all work is settled."""
Outage = Callable[[], None]


@dataclass(kw_only=True)
class Setting:
    """A coordinator with what it depends on."""

    chain: Chain
    node: TroubledNode
    redis: PrivateServer
    postgres: PrivateServer | None
    processes: CoordinatorProcesses
    network: Network
    record: Record = field(default_factory=Record)

    def client(self, name: str) -> CoordinatorClient:
        return self.network.open(self.chain.wallets[name])

    def list_outages(self) -> dict[str, tuple[Outage, Outage]]:
        """How each outage begins and ends, by what is out."""

        def trouble(kind: Trouble) -> Outage:
            return lambda: setattr(self.node, "trouble", kind)

        outages = {f"the node is {kind.name}": (trouble(kind), trouble(Trouble.NONE)) for kind in list(Trouble)[1:]}
        outages["Redis is stopped"] = self.redis.stop, self.redis.resume
        if self.postgres is not None:
            outages["PostgreSQL is stopped"] = self.postgres.stop, self.postgres.resume
        return outages


@contextmanager
def open_setting(folder: Path, *, has_postgres: bool) -> Iterator[Setting]:
    params = make_params(
        max_submission_bytes=24_576,
        groups_per_step=4000,
        groups_per_task=1,
        epoch_seconds=3,
        strikes_to_suspend=10_000,
        lease_seconds=60,
    )
    with ExitStack() as stack:
        redis = stack.enter_context(open_private_redis(folder))
        postgres = stack.enter_context(open_private_postgres(folder)) if has_postgres else None
        if redis is None or (has_postgres and postgres is None):
            pytest.skip("no Redis or no PostgreSQL is installed for a test to start")
        chain = stack.enter_context(open_chain())
        node = stack.enter_context(open_troubled_node(chain.client.rpc_url))
        pool = create_pool(chain, params)
        chain.client.request("evm_setIntervalMining", 1)
        settings = {"rpc_url": node.url, "broker_url": redis.url}
        if postgres is not None:
            settings |= {"database_url": postgres.url}
        processes = CoordinatorProcesses(chain, pool, folder, **settings)
        stack.callback(processes.end)
        record = Record()
        network = Network(
            url=processes.url,
            chain_id=chain.deployment.chain_id,
            pool=pool,
            court=chain.deployment.slashing_court,
            contributor=chain.address("contributor"),
            record=record,
        )
        yield Setting(
            chain=chain,
            node=node,
            redis=redis,
            postgres=postgres,
            processes=processes,
            network=network,
            record=record,
        )


@asynccontextmanager
async def working(setting: Setting) -> AsyncIterator[None]:
    """Run the coordinator, a node and the validators within the block."""
    for verb in ("serve", "jobs"):
        setting.processes.start(verb)
    network, wallets = setting.network, setting.chain.wallets
    actors = [asyncio.create_task(run_node(network, wallets["node"], instance=INSTANCE))]
    decide = Decider(every=1_000_000)
    actors += [asyncio.create_task(run_validator(network, wallets[f"validator-{i}"], decide)) for i in range(3)]
    try:
        async with asyncio.timeout(RESUME_SECONDS):
            await setting.record.has_begun.wait()
        yield
    finally:
        setting.record.is_working, setting.record.is_over = False, True
        await asyncio.gather(*actors, return_exceptions=True)


async def beat(setting: Setting, seconds: float) -> tuple[float, list[str]]:
    """Send at least `BEATS` heartbeats, for at least some seconds.

    Returns the 95th percentile of the seconds that each took, and the codes of those that failed. An outage lasts until
    its test ends it, so a heartbeat that waits for the end of the outage fails with a timeout of the client.
    """
    times, failures = list[float](), list[str]()
    async with setting.client("node") as client:
        end = time.monotonic() + seconds
        while time.monotonic() < end or (len(times) < BEATS and not failures):
            started = time.monotonic()
            try:
                await client.send_heartbeat(instance=INSTANCE, free_slots=1, cached_version=None)
            except CoveyError as error:
                failures.append(error.code)
            times.append(time.monotonic() - started)
            await asyncio.sleep(0.02)
    return statistics.quantiles(times, n=20, method="inclusive")[-1], failures


async def await_more(setting: Setting, count: int) -> None:
    """Wait until there are more promises than `count`."""
    deadline = time.monotonic() + RESUME_SECONDS
    while len(setting.record.promises) <= count:
        assert time.monotonic() < deadline, f"nothing was promised any more: {setting.record.refusals}"
        await asyncio.sleep(0.05)


async def settle(setting: Setting) -> list[str]:
    """End the pool, and return the states of all promised work once everything is settled."""
    chain = setting.chain
    setting.record.is_working = False
    await asyncio.to_thread(chain.send, "operator", chain.contracts.pools.end_pool(setting.network.pool))
    deadline = time.monotonic() + SETTLE_SECONDS
    async with setting.client("node") as client:
        while time.monotonic() < deadline:
            try:
                if (await client.get_status()).settled:
                    return [str((await client.get_submission(each)).state) for each in setting.record.promises]
            except TransientError:
                pass
            await asyncio.sleep(0.25)
    raise AssertionError("the pool did not settle in time")


@pytest.mark.full
@pytest.mark.parametrize("has_postgres", [True, False], ids=["postgres", "sqlite"])
async def test_outages__one_after_another__heartbeats_are_answered_and_nothing_is_lost(
    tmp_path: Path, has_postgres: bool
):
    slow: dict[str, tuple[float, list[str]]] = {}
    with open_setting(tmp_path, has_postgres=has_postgres) as setting:
        async with working(setting):
            usual, failures = await beat(setting, 0.0)
            assert failures == []
            for name, (begin, end) in setting.list_outages().items():
                begin()
                seconds, failures = await beat(setting, OUTAGE_SECONDS)
                end()
                if (failures or seconds > max(RATIO * usual, LEAST_SECONDS)) and "PostgreSQL" not in name:
                    slow[name] = seconds, failures
                await await_more(setting, len(setting.record.promises))
            states = await settle(setting)
        assert setting.node.troubled > 0, "no request met a trouble"
    assert slow == {}
    assert set(states) == {"SETTLED"}
