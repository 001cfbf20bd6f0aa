"""`covey coordinator jobs --separate`: a process for each queue, which are kept running and end together."""

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.queue.routes import JobQueue
from covey.devnet.deploy import derive_wallet
from covey.errors import CoveyError
from covey.network.coordinator_client import CoordinatorClient
from covey.protocol.api.common import MAX_WAIT_SECONDS
from covey.protocol.api.worker import TaskOrder
from covey.runtime.http import find_free_ports
from tests.fakes.coordinator_processes import CoordinatorProcesses
from tests.fakes.network import create_pool
from tests.fakes.pool import INSTANCE, make_params
from tests.fakes.troubled_node import Trouble, TroubledNode, open_troubled_node
from tests.integration.chain.conftest import Chain, open_chain

pytestmark = [pytest.mark.integration, pytest.mark.slow]
HANG_S = 240
"""Deadline against hanging, in seconds, of the start and of the end of processes."""


@dataclass(kw_only=True)
class Setting:
    """A coordinator with separate jobs, whose pool has one task at a time."""

    chain: Chain
    node: TroubledNode
    processes: CoordinatorProcesses
    jobs: subprocess.Popen[bytes]
    metrics_port: int

    def client(self, name: str) -> CoordinatorClient:
        wallet = self.chain.wallets.get(name) or derive_wallet("test", name)
        return CoordinatorClient(self.processes.url, wallet, chain_id=self.chain.deployment.chain_id)

    def list_children(self) -> list[psutil.Process]:
        """The processes of the queues, without the one that Python starts to count shared resources."""
        children = psutil.Process(self.jobs.pid).children()
        living = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        return [child for child in living if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    with ExitStack() as stack:
        chain = stack.enter_context(open_chain())
        node = stack.enter_context(open_troubled_node(chain.client.rpc_url))
        pool = create_pool(chain, make_params(groups_per_step=2))
        (metrics_port,) = find_free_ports(1)
        processes = CoordinatorProcesses(chain, pool, tmp_path, rpc_url=node.url, jobs_metrics_port=metrics_port)
        stack.callback(processes.end)
        processes.start("serve")
        jobs = processes.start("jobs", "--separate")
        yield Setting(chain=chain, node=node, processes=processes, jobs=jobs, metrics_port=metrics_port)


async def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def register(client: CoordinatorClient) -> None:
    """Register a node once the API serves."""
    deadline = time.monotonic() + HANG_S
    while True:
        try:
            await client.register()
            return
        except CoveyError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)


async def claim(client: CoordinatorClient) -> TaskOrder:
    order = await client.claim_task(instance=INSTANCE, free_slots=1, cached_version=None, wait_seconds=MAX_WAIT_SECONDS)
    assert order is not None, "no task was leased during the poll"
    return order


async def read_metrics(setting: Setting) -> dict[tuple[str, ...], float]:
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as http:
        text = (await http.get(f"http://127.0.0.1:{setting.metrics_port}/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def count_starts(setting: Setting) -> int:
    """Return how many processes have begun to serve their queue."""
    return sum("jobs are served" in line for line in setting.processes.read_log("jobs", lines=1000))


async def test_jobs__chains_node_is_silent_and_a_process_is_killed__assign_and_end_together(setting: Setting):
    await wait_until(lambda: count_starts(setting) == len(JobQueue))
    async with setting.client("node") as first, setting.client("node-2") as second:
        await register(first)
        await register(second)
        order = await claim(first)
        waiting = asyncio.create_task(claim(second))
        setting.node.trouble = Trouble.SILENT
        await wait_until(lambda: setting.node.troubled > 0)
        await first.return_task(order.task, order.lease)
        assert (await waiting).task != order.task, "another task is planned and leased to the node that waits"
        setting.node.trouble = Trouble.NONE
    killed = setting.list_children()[0]
    killed.kill()
    await wait_until(lambda: count_starts(setting) == len(JobQueue) + 1)
    values = await read_metrics(setting)
    jobs = {labels[0] for name, *labels in values if name == "covey_job_seconds_count"}
    assert jobs >= {"assign_tasks", "begin_epoch"}, "they are jobs of two queues, and so of two processes"
    assert values["covey_job_lag_seconds_count", "assign_tasks"] > 0
    assert values["covey_rpc_seconds_count", "eth_call"] > 0
    children = setting.list_children()
    setting.jobs.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(setting.jobs.wait, HANG_S) == 0
    assert len(children) == len(JobQueue)
    assert not any(child.is_running() for child in children)
