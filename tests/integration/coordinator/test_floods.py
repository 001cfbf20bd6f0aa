"""Floods and slow clients: every heartbeat is answered meanwhile, slow connections are closed, and nothing leaks.

The server is that of `covey coordinator serve` in a process of its own, which can open 1,024 files. Attackers and
heartbeats are in the process of the test, on the same cores. How long heartbeats wait is measured by the benchmark
`floods`, whose attacks these are. The slice has shorter deadlines for slow peers than the product, and short floods.
The full version has the product's deadlines.
"""

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from benchmarks.network.broadcast import await_answer
from benchmarks.network.floods import FLOODS, IDLE_CONNECTIONS, SLOW_PEERS, Attack, Target, beat_during, register
from covey.chain.wallet import save_key
from covey.devnet import deploy
from covey.runtime.connections import ConnectionLimits, raise_descriptor_limit
from covey.runtime.http import find_free_ports
from tests.fakes.network import create_pool
from tests.fakes.pool import make_params
from tests.integration.chain.conftest import Chain

pytestmark = [pytest.mark.integration, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[3]
BEATS_PER_SECONDS = 20
"""Few enough that a machine that was held up for seconds does not exceed the limit of requests when it catches up."""
HANG_S = 60.0
"""Time in seconds that a slow machine may take for what has no deadline of its own."""
KEPT_DESCRIPTORS = 20
"""Number of descriptors that the server may keep: connections to the chain and the database, and of later requests."""
SHORT = ConnectionLimits(headers_s=2, progress_s=2, progress_bytes=2000)
"""Deadlines of the slice."""
SERVE = f"""
import sys
from pathlib import Path
from coordinator import app
from coordinator.config import CoordinatorConfig
from covey.runtime.connections import ConnectionLimits

serve_http = app.serve_http
app.serve_http = lambda api, **values: serve_http(api, **values | {{"limits": {SHORT}}})
app.serve(CoordinatorConfig.load(Path(sys.argv[1])))
"""
"""The server with the deadlines of the slice, which are not settings."""


@dataclass(frozen=True)
class Server:
    """A coordinator's process, and the target of attacks."""

    process: subprocess.Popen[bytes]
    target: Target

    def count_descriptors(self) -> int:
        return psutil.Process(self.process.pid).num_fds()

    def await_descriptors(self, most: int) -> None:
        """Wait until the server has at most that number of descriptors open."""
        deadline = time.monotonic() + HANG_S
        while (count := self.count_descriptors()) > most:
            assert time.monotonic() < deadline, f"{count} descriptors are open, at most {most} expected"
            time.sleep(0.05)


@contextlib.contextmanager
def serve(folder: Path, chain: Chain, command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a coordinator with 1,024 descriptors, yield its process and port, and check that it had no defect."""
    chain.deployment.save(folder / "deployment.json")
    save_key(folder / "operator.key", deploy.derive_key("test", "operator"))
    pool, (port,) = create_pool(chain, make_params()), find_free_ports(1)
    config, log = folder / "coordinator.toml", folder / "log"
    config.write_text(
        f'home = "home"\npool = {pool}\ndeployment = "deployment.json"\nkey_file = "operator.key"\nport = {port}\n'
    )
    limited = ["sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh", *command, str(config)]
    with log.open("wb") as output:
        process = subprocess.Popen(limited, cwd=ROOT, stdout=output, stderr=output, env=dict(os.environ))
    try:
        await_answer(f"http://127.0.0.1:{port}/health", process, seconds=2 * HANG_S)
        yield process, port
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(HANG_S)
    text = log.read_text()
    assert "Traceback" not in text, text
    assert "defect" not in text, text


@pytest.fixture(scope="module", params=["slice", pytest.param("full", marks=pytest.mark.full)])
def server(
    request: pytest.FixtureRequest, running: Chain, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Run the coordinator, and register its node."""
    is_full = request.param == "full"
    limits = ConnectionLimits() if is_full else SHORT
    command = ["-m", "covey", "coordinator", "serve", "--config"] if is_full else ["-c", SERVE]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit(ConnectionLimits(connections=2 * IDLE_CONNECTIONS))
    with serve(tmp_path_factory.mktemp("coordinator"), running, [sys.executable, *command]) as (process, port):
        node, other = running.wallets["node"], deploy.derive_wallet("test", "node-2")
        target = Target(port=port, node=node, other=other, limits=limits, flood_s=24.0 if is_full else 1.0)
        assert asyncio.run(register(target)) == 200
        yield Server(process, target)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("attack", {**SLOW_PEERS, **FLOODS}.values(), ids={**SLOW_PEERS, **FLOODS})
async def test_heartbeats__while_an_attack_lasts__are_all_answered_and_nothing_leaks(server: Server, attack: Attack):
    before = server.count_descriptors()
    async with asyncio.timeout(server.target.flood_s + 4 * HANG_S):
        statuses, _ = await beat_during(server.target, attack(server.target), rate=BEATS_PER_SECONDS)
    assert set(statuses) == {204}
    server.await_descriptors(before + KEPT_DESCRIPTORS)
