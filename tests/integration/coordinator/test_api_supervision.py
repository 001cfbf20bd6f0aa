"""API processes that cannot start: what `covey coordinator serve` waits for, and what ends it."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from sqlalchemy import create_engine, text

from tests.fakes.coordinator_processes import CoordinatorProcesses
from tests.fakes.network import create_pool
from tests.fakes.pool import make_params
from tests.fakes.private_servers import PrivateServer, open_private_postgres, open_private_redis
from tests.integration.chain.conftest import open_chain

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.full]
HANG_S = 300
"""Deadline against hanging, in seconds."""


@dataclass(kw_only=True)
class Setting:
    """A coordinator with two API processes on a PostgreSQL of its own."""

    processes: CoordinatorProcesses
    postgres: PrivateServer

    def read_log(self) -> str:
        return "\n".join(self.processes.read_log("serve", lines=10_000))


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    with ExitStack() as stack:
        postgres = stack.enter_context(open_private_postgres(tmp_path))
        redis = stack.enter_context(open_private_redis(tmp_path))
        if postgres is None or redis is None:
            pytest.skip("no Redis or no PostgreSQL is installed for a test to start")
        chain = stack.enter_context(open_chain())
        settings = {"processes": 2, "database_url": postgres.url, "nonces_url": redis.url, "broker_url": redis.url}
        processes = CoordinatorProcesses(chain, create_pool(chain, make_params()), tmp_path, **settings)
        stack.callback(processes.end)
        yield Setting(processes=processes, postgres=postgres)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=30, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_serve__processes_start_while_the_database_is_down__waits_and_ends_only_if_tables_are_newer(setting: Setting):
    serve = setting.processes.start("serve")
    wait_until(lambda: is_ready(setting.processes.url))
    setting.postgres.kill()
    for server in setting.processes.list_servers():
        server.kill()
    # More early ends than were once enough to end all.
    wait_until(lambda: setting.read_log().count('"error": "database_unavailable: ') >= 6)
    assert serve.poll() is None
    assert "Traceback" not in setting.read_log()
    setting.postgres.start()
    wait_until(lambda: is_ready(setting.processes.url))

    engine = create_engine(setting.postgres.url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'later'"))
    engine.dispose()
    servers = setting.processes.list_servers()
    servers[0].kill()
    assert serve.wait(HANG_S) == 1
    assert setting.processes.read_log("serve", lines=1)[0].startswith("covey: unknown_tables: ")
    assert psutil.wait_procs(servers, timeout=HANG_S)[1] == []
