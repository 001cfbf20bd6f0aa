"""The coordinator's composition root. It builds the context from settings, and runs the API and jobs processes."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

import uvloop
from eth_utils.crypto import keccak

from coordinator import identity
from coordinator.chain_state import ChainState
from coordinator.config import CoordinatorConfig
from coordinator.context import Context
from coordinator.db.database import Database
from coordinator.domain.settlement import Ledger
from coordinator.domain.stakes import StakeRule
from coordinator.queue.celery_app import BackgroundJobTrigger, JobTrigger, build_celery, run_jobs
from coordinator.queue.job_meters import JobMeters
from coordinator.queue.routes import JobQueue
from covey.chain.account_lock import lock_account
from covey.chain.amounts import SMALLEST, TokenUnit, read_unit
from covey.chain.contracts import Contracts
from covey.chain.deployment import Deployment
from covey.chain.fees import FeeLimits
from covey.chain.follower import Follower
from covey.chain.history import History
from covey.chain.json_rpc import open_chain, require_version
from covey.chain.sender import Sender
from covey.chain.wallet import load_key
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.object_store import LinkSigner, ObjectStore
from covey.protocol.canaries import require_consent
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Address, PoolId
from covey.protocol.messages import CanaryConsent
from covey.protocol.params import PoolParams
from covey.runtime.bounded_executor import BoundedExecutor
from covey.runtime.child_processes import call_when_orphaned
from covey.runtime.connections import ConnectionLimits
from covey.runtime.cycle import CycleResult, Pace, run_forever, stop_signals
from covey.runtime.garbage import exempt_from_collection
from covey.runtime.http import serve_http
from covey.runtime.http_processes import HttpProcesses
from covey.runtime.log import configure, get_logger
from covey.runtime.prometheus import empty_shared_folder, serve_metrics, share_values

if TYPE_CHECKING:
    from coordinator.api.process.meters import Meters

LOOK_AHEAD_SECONDS = 2.0
"""Minimum time in seconds between two reads of the chain by an API process that does not follow it."""


def build(config: CoordinatorConfig, *, clock: Callable[[], float] = time.time) -> Context:
    """Build the context: prepare the database, read the pool from the chain, and open the object store.

    Raises OperatorError with the code "wrong_home", "not_the_signer" or "epoch_too_small", and the errors of the
    database, the chain and the store.
    """
    from coordinator.db.database_outbox import DatabaseOutbox

    config.home.mkdir(parents=True, exist_ok=True)
    deployment = Deployment.load(config.deployment)
    client = open_chain(deployment, config.rpc_url)
    contracts = Contracts(client, deployment)
    signer = load_key(config.key_file)
    pool = PoolId(config.pool)
    database = Database(config.database)
    database.prepare()
    network = identity.read_identity(client, deployment, pool)
    identity.require_same(database, network)  # Checked before contracts are read, which another chain may lack.
    require_version(client, deployment)
    terms = contracts.pools.get_terms(pool)
    if terms.signer != signer.address:
        raise OperatorError(
            "not_the_signer",
            f"{signer.address} is not the signer of pool {pool}, which is {terms.signer}",
            fix="Set key_file to the signer's key file, or name this key with covey pool rotate signer",
        )
    params_text = find_params(History(client=client, contracts=contracts), pool)
    params = PoolParams.from_text(params_text, terms.params_hash)
    if terms.epoch_units < params.max_task_units:
        raise OperatorError(
            "epoch_too_small",
            f"an epoch of pool {pool} pays for {terms.epoch_units} units, but a task may earn {params.max_task_units}",
            fix="Create a pool with a larger epoch_units",
        )
    require_consents(config, contracts, Domain(chain_id=deployment.chain_id, contract=contracts.court.address))
    identity.record(database, network)
    chain = ChainState(contracts, pool, validator_bond=terms.validator_bond)
    chain.refresh()
    secret = keccak(b"covey links" + bytes(signer.key))
    celery = build_celery(config.broker_url, config.home, prefix=name_queues(contracts.ledger.address, pool))
    return Context(
        config=config,
        params=params,
        params_text=params_text,
        terms=terms,
        stake_rule=StakeRule(pool=pool, min_stake=terms.min_stake, unit=read_pool_unit(contracts, pool)),
        ledger=Ledger(
            chain_id=deployment.chain_id,
            address=contracts.ledger.address,
            pool=pool,
            prices=contracts.pools.get_prices(pool),
            epoch_units=terms.epoch_units,
            fees=terms.verdict_fees,
            header_quorum=terms.header_quorum,
            epoch_length=terms.epoch_length,
            windows=terms.challenge_window + terms.veto_window,
        ),
        database=database,
        store=ObjectStore.open(config.store, LinkSigner(secret=secret, base_url=config.base_url)),
        client=client,
        contracts=contracts,
        follower=Follower(client, deployment, finality=config.finality),
        sender=Sender(
            client,
            signer,
            DatabaseOutbox(database),
            chain_id=deployment.chain_id,
            finality=config.finality,
            limits=FeeLimits.of(config),
            lock=partial(lock_account, deployment, signer.address),
        ),
        signer=signer,
        operator=contracts.pools.operator_of(pool),
        jobs=BackgroundJobTrigger(JobTrigger(celery, get_commit=lambda: database.newest_commit)),
        chain=chain,
        chain_executor=BoundedExecutor("chain's node", threads=8, patience_s=12.0),
        store_executor=BoundedExecutor("object store", threads=8, patience_s=60.0),
        clock=clock,
        stop=asyncio.Event(),
    )


def require_consents(config: CoordinatorConfig, contracts: Contracts, domain: Domain) -> None:
    """Raise OperatorError("no_consent") unless the contributor of each canary has agreed that its work is void.

    The consent for a node that is not registered yet is checked with each of its receipts.
    """
    pool = PoolId(config.pool)
    for node, canary in config.canaries.items():
        contributor = contracts.nodes.contributor_of(pool, Address(node))
        if contributor is None:
            get_logger().warning("a canary is not registered yet", node=node)
            continue
        consent = CanaryConsent(pool=pool, node=Address(node), kind=canary.kind)
        try:
            require_consent(consent, canary.consent, domain=domain, contributor=contributor)
        except ProtocolError as error:
            raise OperatorError(
                "no_consent",
                f"the setting canaries names {node}, but its contributor {contributor} has not consented",
                fix=f"Run covey worker consent {node} --verdict {canary.verdict} with the contributor's key",
            ) from error


def read_pool_unit(contracts: Contracts, pool: PoolId) -> TokenUnit:
    """Return the unit of the pool's token, or SMALLEST if the token does not report a valid unit."""
    try:
        return read_unit(contracts.get_token(pool))
    except OperatorError as error:
        if error.code != "odd_token":
            raise
        return SMALLEST


def find_params(history: History, pool: PoolId) -> str:
    """Return the text of the pool's parameters, as published at its creation. The caller compares it with the hash.

    The newest blocks are read whatever the setting `finality`, so that a pool can be served before its creation is
    safe. Raises TransientError("no_block") if the creation is not visible yet.
    """
    text = history.find_params(pool)
    if text is not None:
        return text
    raise TransientError("no_block", f"the chain's node does not show the creation of pool {pool} yet")


def serve(config: CoordinatorConfig) -> None:
    """Run the API, the follower and the sender until a stop signal. The API runs in `processes` processes."""
    from coordinator.api.process.coordinator_metrics import list_metrics
    from coordinator.api.process.meters import Meters
    from coordinator.chain_events import cycle

    configure("coordinator", level=config.log_level)
    if config.processes > 1:
        share_values(empty_shared_folder(config.metrics_folder), "follower")
    ctx, meters = build(config), Meters()

    def run_api() -> Awaitable[None]:
        if config.processes == 1:
            return _serve_api(ctx, meters)
        each = partial(serve_api_process, config)
        return HttpProcesses(each, host=config.host, port=config.port, count=config.processes).run(ctx.stop)

    with serve_metrics(config, *meters, *list_metrics(ctx)):
        uvloop.run(_run_with_cycle(cycle, ctx, wait_s=config.chain_poll_seconds, run=run_api))
    _close(ctx)


def serve_api_process(config: CoordinatorConfig, number: int, listener: socket.socket) -> None:
    """Run one of several API processes until a stop signal, or until the process that follows the chain has ended."""
    from coordinator.api.process.meters import Meters
    from coordinator.chain_events import look_ahead

    configure("coordinator", level=config.log_level)
    share_values(config.metrics_folder, f"api{number}")
    ctx = build(config)

    async def run_api() -> None:
        loop = asyncio.get_running_loop()
        stop = partial(loop.call_soon_threadsafe, ctx.stop.set)
        Thread(target=call_when_orphaned, args=(stop,), daemon=True).start()
        await _serve_api(ctx, Meters(), listener=listener)

    wait_s = max(LOOK_AHEAD_SECONDS, config.chain_poll_seconds)
    uvloop.run(_run_with_cycle(look_ahead, ctx, wait_s=wait_s, run=run_api))
    _close(ctx)


async def _run_with_cycle(
    cycle: Callable[[Context], Awaitable[CycleResult]],
    ctx: Context,
    *,
    wait_s: float,
    run: Callable[[], Awaitable[None]],
) -> None:
    """Repeat a cycle while `run()` runs. A stop signal ends both."""
    with stop_signals(ctx.stop):
        pace = Pace(idle_wait_s=wait_s, max_retry_s=max(1.0, wait_s))
        repeating = asyncio.create_task(run_forever(cycle, ctx, stop=ctx.stop, pace=pace))
        repeating.add_done_callback(lambda _: ctx.stop.set())
        await run()
        await repeating


async def _serve_api(ctx: Context, meters: "Meters", *, listener: socket.socket | None = None) -> None:
    from coordinator.api.application import build_api

    api, config = build_api(ctx, meters), ctx.config
    exempt_from_collection()
    limits = ConnectionLimits(connections=config.connections)

    def say() -> None:
        get_logger().info("coordinator serves", url=config.base_url, pool=config.pool)

    await serve_http(
        api, host=config.host, port=config.port, stop=ctx.stop, on_bound=say, limits=limits, listener=listener
    )


def name_queues(ledger: Address, pool: int) -> str:
    """Return the common prefix of the names of a pool's queues. It is unique, because pools may share a broker.

    Example: "covey-5fbdb231-1" for pool 1 of the ledger 0x5fbdb231....
    """
    return f"covey-{ledger[2:10]}-{pool}"


def jobs(config: CoordinatorConfig, queues: Collection[JobQueue] = tuple(JobQueue)) -> None:
    """Run the jobs of some queues until a stop signal."""
    from coordinator.jobs import VALIDATORS_SECONDS, build_jobs

    configure("jobs", level=config.log_level)
    ctx = build(config)
    exempt_from_collection()
    beat, meters = ctx.database.open_leadership("beat"), JobMeters()
    looking = _look_at_validators(ctx, wait_s=VALIDATORS_SECONDS) if JobQueue.CHAIN in queues else nullcontext()
    shared = (*ctx.database.writer_meter, *ctx.client.metrics)
    with looking, serve_metrics(config.jobs_metrics, *meters, *shared):
        run_jobs(
            build_celery(config.broker_url, config.home, prefix=name_queues(ctx.ledger.address, config.pool)),
            build_jobs(ctx),
            queues=queues,
            read_commit=ctx.database.read_commit,
            is_leader=beat.is_held,
            meters=meters,
        )
    beat.close()
    _close(ctx)


@contextmanager
def _look_at_validators(ctx: Context, *, wait_s: float) -> Iterator[None]:
    """Read the validators every `wait_s` seconds in a thread, so that no job waits for the chain's node.

    A defect in the thread sends SIGTERM to this process, and is raised at the end of the block.
    """
    from coordinator.chain_events import look_ahead

    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    pace = Pace(idle_wait_s=wait_s, max_retry_s=wait_s)
    look = partial(look_ahead, max_age_s=0.0)  # Only the pace decides when to read.

    def end(_: Future[None]) -> None:
        if not stop.is_set():
            os.kill(os.getpid(), signal.SIGTERM)  # Otherwise jobs would judge by outdated validators.

    def run() -> None:
        with closing(loop):
            loop.run_until_complete(run_forever(look, ctx, stop=stop, pace=pace))

    executor = ThreadPoolExecutor(1, "validators")
    looking = executor.submit(run)
    looking.add_done_callback(end)
    executor.shutdown(wait=False)
    try:
        yield
        if looking.done():
            looking.result()
    finally:
        with suppress(RuntimeError):  # The loop is closed after a defect.
            loop.call_soon_threadsafe(stop.set)


def _close(ctx: Context) -> None:
    ctx.jobs.close()
    ctx.chain_executor.close()
    ctx.store_executor.close()
    ctx.database.close()
