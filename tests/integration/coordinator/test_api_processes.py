"""Several processes that serve the API: what they share, and what happens when one or their parent is killed."""

import asyncio
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from redis.exceptions import RedisError

from coordinator.app import build
from coordinator.config import CoordinatorConfig
from covey.errors import TransientError
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol import http_signatures
from covey.protocol.api.worker import TaskOrder
from covey.runtime.http import find_free_ports
from tests.fakes.coordinator_processes import CoordinatorProcesses
from tests.fakes.databases import open_schema
from tests.fakes.network import create_pool
from tests.fakes.pool import INSTANCE, make_params
from tests.integration.chain.conftest import Chain

pytestmark = pytest.mark.integration
REDIS = os.environ.get("COVEY_TEST_REDIS", "redis://127.0.0.1:6379/12")
HANG_S = 300
"""Deadline against hanging, in seconds, of the start and of the end of several processes."""


@dataclass(kw_only=True)
class Coordinator:
    """`covey coordinator serve` with two API processes."""

    chain: Chain
    processes: CoordinatorProcesses
    parent: subprocess.Popen[bytes]
    config: CoordinatorConfig

    @property
    def url(self) -> str:
        return self.processes.url

    def client(self, name: str) -> CoordinatorClient:
        return CoordinatorClient(self.url, self.chain.wallets[name], chain_id=self.chain.deployment.chain_id)

    def build_heartbeat(self) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of a signed request of the node."""
        body = b'{"instance": "%s", "free_slots": 1, "cached_version": null}' % INSTANCE.encode()
        request = http_signatures.SignedRequest(
            method="POST", authority=self.processes.authority, path="/v1/heartbeat", query="", body=body
        )
        headers = http_signatures.sign_request(
            request,
            self.chain.wallets["node"],
            chain_id=self.chain.deployment.chain_id,
            now=int(time.time()),
            nonce=secrets.token_hex(8),
        )
        return body, headers | {"content-type": "application/json"}


@pytest.fixture(scope="module")
def standing(running: Chain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    try:
        Redis.from_url(REDIS, socket_connect_timeout=10).ping()
    except RedisError as error:
        pytest.skip(f"no Redis answers: {error}")
    folder = tmp_path_factory.mktemp("processes")
    with open_schema() as database_url:
        (metrics_port,) = find_free_ports(1)
        settings = {
            "processes": 2,
            "database_url": database_url,
            "nonces_url": REDIS,
            "metrics_port": metrics_port,
        }
        processes = CoordinatorProcesses(running, create_pool(running, make_params()), folder, **settings)
        found = Coordinator(
            chain=running,
            processes=processes,
            parent=processes.start("serve"),
            config=CoordinatorConfig.load(processes.settings),
        )
        try:
            yield found
        finally:
            found.parent.terminate()
            found.parent.wait(HANG_S)


@pytest.fixture
async def coordinator(standing: Coordinator) -> Coordinator:
    """The coordinator, which is started again if a test has killed it."""
    if standing.parent.poll() is not None:
        standing.parent = standing.processes.start("serve")
    await await_ready(standing)
    return standing


async def await_ready(coordinator: Coordinator) -> None:
    """Wait until both processes are ready: each answers some of many new connections."""
    deadline = time.monotonic() + HANG_S
    ready = 0
    while ready < 20:
        assert time.monotonic() < deadline, "the coordinator was not ready in time"
        try:
            async with httpx.AsyncClient(trust_env=False) as http:
                answer = await http.get(f"{coordinator.url}/ready", timeout=30)
            ready = ready + 1 if answer.status_code == 200 else 0
        except httpx.HTTPError:
            ready = 0
        if not ready:
            await asyncio.sleep(0.1)


async def await_children(coordinator: Coordinator, known: set[int]) -> None:
    """Wait until two processes serve, none of which has one of some ids."""
    deadline = time.monotonic() + HANG_S
    while len([each for each in coordinator.processes.list_servers() if each.pid not in known]) < 2:
        assert time.monotonic() < deadline, "the processes did not come back"
        await asyncio.sleep(0.1)


async def test_request__sent_again_over_many_connections__passes_once(coordinator: Coordinator):
    async with coordinator.client("node") as node:
        await node.register()
    body, headers = coordinator.build_heartbeat()

    async def send() -> int:
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as http:
            return (await http.post(f"{coordinator.url}/v1/heartbeat", content=body, headers=headers)).status_code

    statuses = await asyncio.gather(*(send() for _ in range(30)))
    assert sorted(statuses) == [204, *[401] * 29]


async def test_claim__lease_is_made_by_another_process__wakes_the_poll(coordinator: Coordinator):
    """PostgreSQL tells the process that has the poll; it does not look at a timer."""
    ctx = build(coordinator.config)
    async with coordinator.client("node") as node:
        await node.register()
        asking = asyncio.create_task(
            node.claim_task(instance=INSTANCE, free_slots=1, cached_version=None, wait_seconds=20.0)
        )
        order = await assign_until_answered(ctx, asking)
    ctx.database.close()
    assert order.policy_version == 0


async def assign_until_answered(ctx, asking: "asyncio.Task[TaskOrder | None]") -> TaskOrder:
    from coordinator.jobs import assign_tasks

    while not asking.done():
        await asyncio.to_thread(assign_tasks, ctx)
        await asyncio.wait({asking}, timeout=0.05)
    order = asking.result()
    assert order is not None
    return order


async def test_serve__one_process_is_killed__is_replaced_and_nobody_is_refused_for_long(coordinator: Coordinator):
    before = {each.pid for each in coordinator.processes.list_servers()}
    assert len(before) == 2
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    await await_children(coordinator, {killed})
    await await_ready(coordinator)
    assert before - {killed} < {each.pid for each in coordinator.processes.list_servers()}, "the other one went on"


async def read_answers(coordinator: Coordinator) -> dict[tuple[str, ...], float]:
    """Return the metrics of all processes, by name and values of labels."""
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as http:
        text = (await http.get(f"http://127.0.0.1:{coordinator.config.metrics_port}/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert len(found) == len(samples), "no process has a sample of its own"
    return found


async def test_metrics__many_connections_and_a_killed_process__are_sums_that_go_on(coordinator: Coordinator):
    async def ask(times: int) -> None:
        for _ in range(times):
            async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as http:
                assert (await http.get(f"{coordinator.url}/health")).status_code == 200

    health = ("covey_request_seconds_count", "GET /health")
    before = (await read_answers(coordinator)).get(health, 0.0)
    await ask(20)
    assert (await read_answers(coordinator))[health] == before + 20
    known = {each.pid for each in coordinator.processes.list_servers()}
    os.kill(min(known), signal.SIGKILL)
    await await_children(coordinator, {min(known)})
    await await_ready(coordinator)
    await ask(5)
    values = await read_answers(coordinator)
    assert values[health] == before + 25
    assert values["covey_chain_poll_age_seconds",] < 60
    assert values["covey_polls",] == 0


async def test_serve__parent_is_killed__its_processes_end_too(coordinator: Coordinator):
    servers = coordinator.processes.list_servers()
    coordinator.processes.kill("serve")
    gone, alive = await asyncio.to_thread(psutil.wait_procs, servers, timeout=HANG_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert (len(gone), alive) == (2, [])
    with pytest.raises(TransientError):
        async with coordinator.client("node") as node:
            await node.register()
