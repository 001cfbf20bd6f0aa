"""What the coordinator reads from the chain when it starts, and the limits that it serves with."""

import asyncio
from pathlib import Path

import pytest

from coordinator import app
from coordinator.api.process.meters import Meters
from covey.chain.events import PoolCreated
from covey.chain.follower import Follower
from covey.runtime.connections import ConnectionLimits
from tests.fakes.network import CoordinatorHarness, create_pool

pytestmark = pytest.mark.integration


def test_build__creation_of_the_pool_is_not_safe_yet__has_its_parameters_and_follows_safe_blocks(
    harness: CoordinatorHarness, tmp_path: Path
):
    chain, params = harness.chain, harness.ctx.params
    pool = create_pool(chain, params)
    safe = Follower(chain.client, chain.deployment, finality="safe").poll(())
    assert not any(isinstance(event, PoolCreated) and event.pool == pool for event in safe.events)
    changes = {"finality": "safe", "pool": pool, "home": tmp_path / "home"}
    ctx = app.build(harness.ctx.config.model_copy(update=changes))
    assert (ctx.params, ctx.ledger.pool) == (params, pool)
    assert ctx.follower.poll(()).cursor[-1].number == chain.client.get_block("safe").number
    ctx.database.close()


async def test_serve__connections_of_the_settings__are_the_limit(
    harness: CoordinatorHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = []

    async def serve(_: object, *, stop: asyncio.Event, limits: ConnectionLimits, **__: object) -> None:
        seen.append(limits.connections)
        stop.set()

    monkeypatch.setattr(app, "serve_http", serve)
    changes = {"home": tmp_path / "home", "connections": 100}
    ctx = app.build(harness.ctx.config.model_copy(update=changes))
    await app._serve_api(ctx, Meters())
    ctx.database.close()
    assert seen == [100]


def test_build__pools_on_one_broker__have_queues_of_their_own(harness: CoordinatorHarness, tmp_path: Path):
    pool = create_pool(harness.chain, harness.ctx.params)
    names: list[set[str]] = []
    for number in (harness.ctx.config.pool, pool):
        ctx = app.build(harness.ctx.config.model_copy(update={"pool": number, "home": tmp_path / str(number)}))
        routes = ctx.jobs._trigger._app.conf.task_routes
        names.append({route["queue"] for route in routes.values()})
        ctx.database.close()
    assert [len(each) for each in names] == [3, 3]
    assert names[0].isdisjoint(names[1])
