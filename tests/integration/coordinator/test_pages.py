"""`covey coordinator pages` as an operator starts it: it reads what `serve` writes, and can write nothing."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from coordinator.config import CoordinatorConfig
from coordinator.pages import app
from covey.errors import TransientError
from covey.runtime.http import find_free_ports
from tests.fakes.coordinator_processes import CoordinatorProcesses
from tests.fakes.network import CoordinatorHarness, create_pool
from tests.fakes.pages import open_pages
from tests.fakes.pool import make_params
from tests.integration.chain.conftest import Chain

pytestmark = pytest.mark.integration
HANG_S = 60.0


async def await_answer(client: httpx.AsyncClient, path: str) -> httpx.Response:
    """Ask until the server answers."""
    deadline = time.monotonic() + HANG_S
    while True:
        try:
            return await client.get(path)
        except httpx.TransportError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


@pytest.fixture
async def processes(running: Chain, tmp_path) -> AsyncIterator[CoordinatorProcesses]:
    port, metrics_port = find_free_ports(2)
    pool = create_pool(running, make_params())
    started = CoordinatorProcesses(running, pool, tmp_path, pages_port=port, pages_metrics_port=metrics_port)
    try:
        yield started
    finally:
        started.end()


async def test_pages__started_before_serve__show_the_pool_and_its_events(processes: CoordinatorProcesses):
    pages, config = processes.start("pages"), CoordinatorConfig.load(processes.settings)
    processes.start("serve")
    async with httpx.AsyncClient(base_url=config.pages_base_url, trust_env=False, timeout=HANG_S) as client:
        overview = (await await_answer(client, "/v1/overview")).json()
        assert (overview["pool"], overview["name"]) == (config.pool, "test")
        assert overview["step"] in (-1, 0), "`serve` may have read step 0 by now"
        async with client.stream("GET", "/v1/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.aiter_lines()
            assert await anext(lines) == "event: overview"
            data = (await anext(lines)).removeprefix("data: ")
            assert json.loads(data)["pool"] == config.pool
        async with httpx.AsyncClient(base_url=config.base_url, trust_env=False) as api:
            answer = await await_answer(api, "/")
            assert (answer.status_code, answer.headers["location"]) == (307, f"{config.pages_base_url}/")
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        metrics = (await client.get(f"http://127.0.0.1:{config.pages_metrics_port}/metrics")).text
    assert 'covey_request_seconds_count{route="GET /v1/overview"}' in metrics
    pages.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(pages.wait, HANG_S) == 0


async def test_policies__a_relay_serves_one__shows_its_size_kind_and_source(harness: CoordinatorHarness, relay: str):
    await harness.follow()
    ctx = app.build(harness.ctx.config.model_copy(update={"relays": (relay,)}))
    try:
        await ctx.executor.run(ctx.sources.refresh)
        async with open_pages(ctx) as client:
            newest, *_ = (await client.get("/v1/policies")).json()["items"]
            page = (await client.get("/policies")).text
        (way,) = newest["ways"]
        assert (newest["step"], way["kind"], way["sources"]) == (1, "full", [relay])
        assert way["size"] >= 2 * 2048, "the weights have 2048 values of two bytes"
        assert f"full, {way['size']:,} bytes, 1 source" in page
    finally:
        ctx.database.close()
        ctx.executor.close()


async def test_build__a_running_coordinator__reads_chain_and_rows_and_cannot_write(harness: CoordinatorHarness):
    ctx = app.build(harness.ctx.config)
    try:
        await ctx.executor.run(ctx.chain.refresh)
        ledger, pool = harness.chain.contracts.ledger, harness.ctx.ledger.pool
        assert ctx.chain.money is not None
        assert ctx.chain.money.escrow == ledger.escrow_of(pool)
        assert set(ctx.chain.validators) == set(harness.ctx.chain.validators)
        with pytest.raises(TransientError, match="readonly"), ctx.database.write() as rows:
            rows.set_fact("lease", 9)
    finally:
        ctx.database.close()
        ctx.executor.close()
