"""Two processes of the queue "now", and claims at the same time: no task and no node is leased twice."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinator.db.database import Database
from coordinator.domain import stakes, tasks
from coordinator.domain.presence import NodeBeat
from coordinator.domain.stakes import Stake
from covey.protocol.status import TaskState
from tests.fakes.databases import open_schema
from tests.fakes.pool import INSTANCE, STAKE_RULE, FakePool, make_address, make_params

pytestmark = pytest.mark.integration
NODES, TASKS = 90, 60
HANG_S = 240
"""Deadline against hanging, in seconds, of a process."""
PROGRAM = """
import sys
from types import SimpleNamespace
from coordinator import jobs
from coordinator.db.database import Database
from tests.fakes.pool import make_params
ctx = SimpleNamespace(database=Database(sys.argv[1]), params=make_params(), clock=lambda: 1000.0)
print("ready", flush=True)
while True:
    jobs.assign_tasks(ctx)
    with ctx.database.read() as rows:
        if not rows.has_pending():
            break
ctx.database.close()
"""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        database = Database(f"sqlite:///{tmp_path / 'rows.sqlite3'}")
        database.migrate()
        yield database
        database.close()
        return
    with open_schema() as url:
        database = Database(url)
        database.migrate()
        yield database
        database.close()


def build_sign(name: str) -> NodeBeat:
    return NodeBeat(
        node=make_address(name), instance=INSTANCE, free_slots=1, cached_version=0, is_claim=True, waiting_until=1e12
    )


def claim(pool: FakePool, *names: str) -> None:
    with pool.database.write() as rows:
        tasks.claim_tasks(rows, pool.params, [build_sign(name) for name in names], rule=STAKE_RULE, now=pool.now)


def test_assign_tasks__two_processes_and_claims__lease_each_task_once(database: Database):
    pool = FakePool(database, make_params(groups_per_step=TASKS, groups_per_task=1))
    names = [f"n{number}" for number in range(NODES)]
    pool.register(*names)
    with database.write() as rows:
        for name in names:
            stakes.record_stake(rows, make_address(f"{name}'s owner"), Stake(100, 0), block=1)
    pool.publish(0)
    command = [sys.executable, "-c", PROGRAM, database.url]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()))
            for _ in range(2)
        ]
        for process in processes:
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for start in range(0, NODES, 3):
            pool.wait(names[start], seconds=600)  # It is leased a task by a process.
            claim(pool, names[start + 1], names[start + 2])
        for process in processes:
            assert process.wait(HANG_S) == 0
    leased = pool.tasks(TaskState.ASSIGNED)
    assert len({task.node for task in leased}) == len({task.id for task in leased}) == TASKS
    assert sorted(task.lease or 0 for task in leased) == list(range(1, TASKS + 1))
    assert pool.tasks(TaskState.PENDING) == []
