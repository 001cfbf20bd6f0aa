"""Composition root of `covey coordinator pages`: a process that reads, and never writes or signs."""

import asyncio
import os
import time
from threading import Event as Flag

import uvloop

from coordinator.api.process.meters import Meters
from coordinator.app import find_params, read_pool_unit
from coordinator.config import CoordinatorConfig
from coordinator.db.database import Database
from coordinator.domain.stakes import StakeRule
from coordinator.pages.chain_facts import PoolOnChain
from coordinator.pages.context import PagesContext
from coordinator.pages.pages_application import build_pages
from coordinator.pages.policy_sources import PolicySources
from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.chain.history import History
from covey.chain.json_rpc import open_chain
from covey.errors import TransientError
from covey.object_store import LinkSigner, ObjectStore
from covey.protocol.ids import PoolId
from covey.protocol.params import PoolParams
from covey.runtime.bounded_executor import BoundedExecutor
from covey.runtime.connections import ConnectionLimits
from covey.runtime.cycle import stop_signals
from covey.runtime.http import serve_http
from covey.runtime.log import configure, get_logger
from covey.runtime.prometheus import serve_metrics

NICENESS = 5
"""How much the process yields to others on its machine: viewers must not delay the claims of nodes."""
TABLES_SECONDS = 60.0
"""Maximum time in seconds to wait for the tables, which `covey coordinator serve` makes."""


def build(config: CoordinatorConfig) -> PagesContext:
    """Read the pool from the chain, and open the database read-only.

    Raises TransientError("no_tables") if there are no tables within TABLES_SECONDS, and the errors of what it opens.
    """
    deployment = Deployment.load(config.deployment)
    client = open_chain(deployment, config.rpc_url)
    contracts, pool = Contracts(client, deployment), PoolId(config.pool)
    terms = contracts.pools.get_terms(pool)
    params_text = find_params(History(client=client, contracts=contracts), pool)
    database = Database(config.pages_database, is_read_only=True)
    _await_tables(database)
    return PagesContext(
        config=config,
        params=PoolParams.from_text(params_text, terms.params_hash),
        terms=terms,
        stake_rule=StakeRule(pool=pool, min_stake=terms.min_stake, unit=read_pool_unit(contracts, pool)),
        deployment=deployment,
        database=database,
        store=ObjectStore.open(config.store, LinkSigner(secret=b"", base_url=config.base_url)),
        chain=PoolOnChain(client, contracts, pool, terms),
        sources=PolicySources(pool, config.relays),
        executor=BoundedExecutor("chain's node or store", threads=4, patience_s=15.0),
        clock=time.time,
        stop=asyncio.Event(),
    )


def _await_tables(database: Database) -> None:
    deadline = time.monotonic() + TABLES_SECONDS
    while True:
        try:
            database.require_tables()
        except TransientError:
            if time.monotonic() > deadline:
                raise
            Flag().wait(0.5)
        else:
            return


def serve(config: CoordinatorConfig) -> None:
    """Serve the pages until a stop signal."""
    configure("pages", level=config.log_level)
    os.nice(NICENESS)
    ctx, meters = build(config), Meters()

    async def run() -> None:
        with stop_signals(ctx.stop):
            await serve_http(
                build_pages(ctx, meters),
                host=config.host,
                port=config.pages_port,
                stop=ctx.stop,
                on_bound=lambda: get_logger().info(
                    "coordinator serves pages", url=config.pages_base_url, pool=config.pool
                ),
                limits=ConnectionLimits(connections=config.connections),
            )

    with serve_metrics(config.pages_metrics, *meters):
        uvloop.run(run())
    ctx.executor.close()
    ctx.database.close()
