"""The context of the pages of a pool by hand (`FakePool`), with a chain of invented values."""

import asyncio
from pathlib import Path
from typing import Any, cast

import httpx

from coordinator.config import CoordinatorConfig
from coordinator.db.intent_row import IntentRow
from coordinator.db.models import EpochRow
from coordinator.domain.settlement import build_header
from coordinator.pages.chain_facts import Money, PoolOnChain
from coordinator.pages.context import PagesContext
from coordinator.pages.pages_application import build_pages
from coordinator.pages.policy_sources import PolicySources
from covey.chain.node_answers import Block
from covey.chain.outbox import IntentState
from covey.object_store import LinkSigner, ObjectStore
from covey.protocol.ids import PoolId
from covey.runtime.bounded_executor import BoundedExecutor
from tests.fakes.epochs import close_epoch, mark_settled
from tests.fakes.pool import (
    POOL,
    STAKE_RULE,
    FakePool,
    make_address,
    make_deployment,
    make_hash,
    make_ledger,
    make_terms,
)


class FakePoolOnChain:
    """Facts that were looked up once. `refresh` changes nothing."""

    def __init__(self, pool: FakePool) -> None:
        self.money: Money | None = Money(escrow=1000, promised=100)
        self.head: Block | None = Block(
            number=7, hash=make_hash("7"), parent_hash=make_hash("6"), timestamp=1000, base_fee=1
        )
        self.bonds = dict.fromkeys(pool.validators, 50)
        self.validators = tuple(pool.validators)
        self.active = frozenset(pool.validators)
        self.prices = make_ledger().prices

    def refresh(self) -> None:
        """Change nothing."""


def make_pages_context(pool: FakePool, folder: Path, **settings: Any) -> PagesContext:
    """Return the context of a pool's pages, with an empty store in `folder`, and the pool's own clock."""
    values = {"home": folder, "pool": POOL, "deployment": folder / "none", "key_file": folder / "none"} | settings
    config = CoordinatorConfig.model_validate(values)
    return PagesContext(
        config=config,
        params=pool.params,
        terms=make_terms(),
        stake_rule=STAKE_RULE,
        deployment=make_deployment(),
        database=pool.database,
        store=ObjectStore.open(f"file://{folder / 'store'}", LinkSigner(secret=b"", base_url="")),
        chain=cast(PoolOnChain, FakePoolOnChain(pool)),
        sources=PolicySources(PoolId(POOL), config.relays),
        executor=BoundedExecutor("test", threads=1, patience_s=5.0),
        clock=lambda: pool.now,
        stop=asyncio.Event(),
    )


def settle(pool: FakePool) -> EpochRow:
    """Close an epoch with all that is decided, and post it in the transaction whose hash is that of "transaction"."""
    closed = close_epoch(pool, make_ledger())
    with pool.database.write() as rows:
        epoch = rows.get_epoch(closed.epoch.number)
        assert epoch is not None
        epoch.header_hash = build_header(epoch, PoolId(POOL)).compute_hash()
        epoch.posted_block, epoch.final_at, epoch.reward, epoch.cumulative = 5, 2000, "9", "9"
        rows.add(
            IntentRow(
                key=f"epoch/{POOL}/{epoch.number}/0",
                recipient=make_address("ledger"),
                data="0x",
                value="0",
                label="post",
                state=IntentState.MINED,
                transaction_hash=make_hash("transaction"),
            )
        )
    mark_settled(pool)
    return closed.epoch


def open_pages(ctx: PagesContext) -> httpx.AsyncClient:
    """Return a client of the pages."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=build_pages(ctx)), base_url="http://pages")
