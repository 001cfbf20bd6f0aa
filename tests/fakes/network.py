"""A coordinator on loopback with a real chain, and the keys of all roles, for tests of the API.

Jobs are run by hand (`harness.run_job`), so a test decides when a trigger arrives. The clock can be moved.
"""

import asyncio
import math
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, Unpack

import httpx
import pytest

from coordinator import app, chain_events
from coordinator.api.application import build_api
from coordinator.api.process import cached_page
from coordinator.api.process.coordinator_metrics import list_metrics
from coordinator.api.process.meters import Meters
from coordinator.api.state import ApiState
from coordinator.config import CoordinatorConfig
from coordinator.context import Context
from coordinator.domain import retention
from coordinator.jobs import build_jobs
from covey.chain.structs import BondKind, PoolTerms
from covey.chain.wallet import Wallet, save_key
from covey.devnet import deploy
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol import http_signatures
from covey.protocol.api.common import MAX_WAIT_SECONDS
from covey.protocol.eip712 import sign
from covey.protocol.ids import PoolId, Step
from covey.protocol.messages import NodeRegistration
from covey.protocol.params import PoolParams
from covey.protocol.prices import PRICED_UNITS
from covey.protocol.status import SubmissionState
from covey.runtime.cycle import CycleResult
from covey.runtime.http import find_free_ports, serve_http
from covey.runtime.log import log_to_stderr
from covey.runtime.prometheus import build_registry
from tests.fakes.answer_watch import AnswerWatch
from tests.fakes.databases import empty
from tests.fakes.pool import INSTANCE, make_hash

PRICE, MIN_STAKE = 3, 100
SAFE_BLOCKS = 64
"""Number of following blocks that is enough for Anvil to call a block safe."""


class Clock:
    """Unix time that a test can move."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset


def mine_draw(ctx: Context) -> None:
    """Mine the blocks that draw everything that is countersigned by now."""
    client, finality = ctx.client, ctx.config.finality
    with ctx.database.read() as repository:
        undrawn = [r.signed_at for r in repository.list_submissions(SubmissionState.SUBMITTED) if r.draw is None]
    if not undrawn:
        return
    time = max(undrawn) + ctx.params.verification.draw_seconds
    if client.get_block("latest").timestamp < time:
        client.request("evm_setNextBlockTimestamp", hex(time))
        client.request("evm_mine")
    if client.get_block(finality).timestamp < time:
        client.request("anvil_mine", hex(SAFE_BLOCKS))


def run_job(ctx: Context, name: str) -> None:
    """Run a job about all rows that it may be about, whether late or not. "settle" runs those that settle in order."""
    jobs = build_jobs(ctx)
    with ctx.database.read() as rows:
        unmarked, pruned = rows.list_unmarked(), rows.get_fact(retention.EPOCH)
    if name == "dispatch_validation":
        mine_draw(ctx)
        head = ctx.client.get_block(ctx.config.finality)
        with ctx.database.write() as rows:  # As the follower does when the block comes.
            before = rows.list_blocks()
            rows.replace_blocks([*(block for block in before if block[0] != head.number), (head.number, head.hash)])
        jobs["draw_submissions"](block=head.number)
        with ctx.database.write() as rows:  # It reads the events of these blocks later.
            rows.replace_blocks(before)
        with ctx.database.read() as rows:
            due = rows.list_due(math.inf, limit=1000)
        jobs["dispatch_validation"](receipts=due)
    elif name == "settle":
        jobs["begin_epoch"]()
        with ctx.database.read() as rows:
            numbers = [row.number for row in rows.list_unposted()]
        for number in numbers:
            jobs["close_epoch"](epoch=number)
            jobs["post_epoch"](epoch=number)
    elif name == "mark_settled":
        for number in unmarked:
            jobs[name](epoch=number)
    elif name == "prune_epoch":
        jobs[name](epoch=pruned)
    else:
        jobs[name]()


class CoordinatorHarness:
    """A coordinator in this process. Example: `await harness.follow()`, `harness.run_job("assign_tasks")`."""

    def __init__(self, chain: Any, ctx: Context, clock: Clock, api: ApiState, meters: Meters) -> None:
        self.chain, self.ctx, self.clock, self.api, self._meters = chain, ctx, clock, api, meters
        self.url = ctx.config.base_url

    def wallet(self, name: str) -> Wallet:
        known: Wallet | None = self.chain.wallets.get(name)
        return known or deploy.derive_wallet("test", name)

    def client(self, name: str, *, clock: Any = None) -> CoordinatorClient:
        return CoordinatorClient(
            self.url, self.wallet(name), chain_id=self.ctx.ledger.chain_id, clock=clock or self.clock
        )

    def read_metrics(self) -> dict[tuple[str, ...], float]:
        """Return what Prometheus would read, by name of the sample and values of its labels."""
        families = build_registry(*self._meters, *list_metrics(self.ctx)).collect()
        samples = (sample for family in families for sample in family.samples)
        return {(sample.name, *sample.labels.values()): sample.value for sample in samples}

    def run_job(self, name: str) -> None:
        run_job(self.ctx, name)

    async def follow(self) -> None:
        """Read the chain to its end and send the transactions of the outbox. Then mark what it settles, as jobs do."""
        for _ in range(20):
            if await chain_events.cycle(self.ctx) is CycleResult.IDLE and not self.ctx.sender._store.list_pending():
                break
        await asyncio.to_thread(self.run_job, "mark_settled")

    async def claim(
        self, client: CoordinatorClient, *, instance: str = INSTANCE, wait_seconds: float = MAX_WAIT_SECONDS
    ) -> Any:
        """Claim with a long poll, and run the job that serves it while it is open."""
        claim = client.claim_task(instance=instance, free_slots=1, cached_version=None, wait_seconds=wait_seconds)
        asking = asyncio.create_task(claim)
        while not asking.done():
            await asyncio.to_thread(self.run_job, "assign_tasks")
            await asyncio.wait({asking}, timeout=0.02)
        return asking.result()

    def sign(self, name: str, body: bytes = b"", **changes: Any) -> dict[str, str]:
        """Return the headers of a signed POST. `changes` replace parts of the request, or chain_id, now and nonce."""
        asked: dict[str, Any] = {"method": "POST", "authority": self.ctx.config.signed_authority, "path": "/v1/nodes"}
        about: dict[str, Any] = {
            "chain_id": self.ctx.ledger.chain_id,
            "now": int(self.clock()),
            "nonce": secrets.token_hex(8),
        }
        for key, value in changes.items():
            (about if key in about else asked)[key] = value
        request = http_signatures.SignedRequest(**({"query": "", "body": body} | asked))
        return {
            **http_signatures.sign_request(request, self.wallet(name), **about),
            "content-type": "application/json",
        }

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as http:
            return await http.post(self.url + path, content=body, headers=headers)


class MoreTerms(TypedDict, total=False):
    """Terms of a pool that some tests need, as in `PoolTerms`."""

    validator_bond: int
    header_quorum: int
    verdict_fee: int
    epoch_verdicts: int


def create_pool(chain: Any, params: PoolParams, **changes: Unpack[MoreTerms]) -> PoolId:
    """Create a pool that is funded and started. Its contributor stakes and registers "node"; policy 0 is published.

    `changes` are additional terms.
    """
    terms = PoolTerms(
        trainer=chain.address("trainer"),
        arbiter=chain.address("arbiter"),
        token=chain.deployment.token,
        params_hash=params.compute_hash(),
        reward_per_million=PRICE * PRICED_UNITS,
        min_stake=MIN_STAKE,
        slash_amount=60,
        quorum=params.quorum,
        challenge_window=10,
        veto_window=10,
        unbond_window=20,
        **changes,
    )
    pools, stakes, token = chain.contracts.pools, chain.contracts.stakes, chain.contracts.token
    ledger = chain.contracts.ledger
    chain.send(
        "operator", pools.create_pool(terms, [chain.address(f"validator-{i}") for i in range(3)], params.to_text())
    )
    pool = PoolId(pools.count_pools())
    chain.send("operator", token.approve(ledger.address, 1_000_000))
    chain.send("operator", ledger.fund_pool(pool, 1_000_000))
    chain.send("operator", pools.start_pool(pool))
    chain.send("contributor", token.approve(stakes.address, 3 * MIN_STAKE))
    chain.send("contributor", stakes.stake(pool, BondKind.CONTRIBUTOR, 3 * MIN_STAKE))
    for node in ("node", "node-2"):
        register(chain, pool, node)
    chain.send("trainer", chain.contracts.policies.publish(pool, Step(0), make_hash("policy 0")))
    return pool


def register(chain: Any, pool: PoolId, node: str) -> None:
    contributor, wallet = chain.wallets["contributor"], chain.wallets.get(node) or deploy.derive_wallet("test", node)
    message = NodeRegistration(
        pool=pool,
        contributor=contributor.address,
        node=wallet.address,
        nonce=chain.contracts.nodes.nonce_of(wallet.address),
        deadline=chain.now() + 60,
    )
    domain = chain.domain("node_registry")
    call = chain.contracts.nodes.register_node(
        pool,
        contributor=message.contributor,
        node=message.node,
        deadline=message.deadline,
        contributor_signature=sign(message, domain, contributor),
        node_signature=sign(message, domain, wallet),
    )
    chain.send("deployer", call)


@contextmanager
def open_harness(chain: Any, pool: PoolId, home: Path, **settings: Any) -> Iterator[CoordinatorHarness]:
    """Open the coordinator of a pool and serve its API in a thread.

    All answers must have statuses that the OpenAPI document describes. Public pages are of this moment, as they are
    where they cost little: on a slow machine they would be of some seconds ago.
    """
    (home / "deployment.json").parent.mkdir(parents=True, exist_ok=True)
    chain.deployment.save(home / "deployment.json")
    save_key(home / "operator.key", deploy.derive_key("test", "operator"))
    (port,) = find_free_ports(1)
    config = CoordinatorConfig(
        home=home / "coordinator",
        pool=pool,
        deployment=home / "deployment.json",
        key_file=home / "operator.key",
        port=port,
        poll_seconds=0.02,
        relays=("http://127.0.0.1:9",),
        **settings,
    )
    log_to_stderr()  # Commands of the same process print their results to standard output.
    clock = Clock()
    ctx = app.build(config, clock=clock)
    serving = asyncio.new_event_loop()

    meters = Meters()
    application = build_api(ctx, meters)
    watch = AnswerWatch(application)

    def serve() -> None:
        asyncio.set_event_loop(serving)
        serving.run_until_complete(serve_http(watch, host="127.0.0.1", port=port, stop=ctx.stop))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        _await_port(port)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cached_page, "CHEAP_SECONDS", math.inf)
            yield CoordinatorHarness(chain, ctx, clock, application.state.api, meters)
        assert watch.undescribed == set(), "the OpenAPI document does not describe these answers"
    finally:
        serving.call_soon_threadsafe(ctx.stop.set)
        thread.join(timeout=60)
        serving.close()
        ctx.database.close()


def _await_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise


def reset(harness: CoordinatorHarness) -> None:
    """Delete all rows and what the API remembers, set the clock right, and read the chain again."""
    harness.clock.offset = 0.0
    empty(harness.ctx.database)
    harness.api.members._nodes.clear()
    harness.api.polls._noted.clear()
    harness.api.heartbeat_buffer._heard.clear()
    harness.api.heartbeat_buffer._beats.clear()
    asyncio.run(harness.follow())
