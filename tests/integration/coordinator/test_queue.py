"""Jobs processes on each broker that is available: messages reach their queues, none is lost, and none hangs others."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coordinator.queue.celery_app import JobTrigger, build_celery
from coordinator.queue.routes import ROUTES, JobQueue

pytestmark = pytest.mark.integration
HANG_S = 240
"""Deadline against hanging, in seconds, of the start and of the end of a process."""
BROKERS = {"folder": "", "redis": "redis://127.0.0.1:6379/13", "rabbitmq": "amqp://guest:guest@127.0.0.1:5672//"}
PROGRAM = """
import sys, time
from pathlib import Path
from coordinator.db.leadership import FileLeadership
from coordinator.queue.celery_app import build_celery, run_jobs
from coordinator.queue.routes import ROUTES, parse_queues
from covey.errors import TransientError
url, folder, prefix, queues, beats = sys.argv[1:]
home = Path(folder)
def make(name):
    def job(**ids):
        with (home / "done").open("a") as file:
            file.write(" ".join([name, *map(str, ids.values())]) + chr(10))
        if name in ("expire_leases", "post_epoch") and not (home / "may_post").exists():
            raise TransientError("database_unavailable", "gone")
        if name == "prune_epoch":
            raise KeyError("a defect")
        while name == "draw_submissions" and not (home / "may_draw").exists():
            time.sleep(0.01)
        if name == "close_epoch" and ids:
            (home / f"closing-{ids['epoch']}").touch()
            while len(list(home.glob("closing-*"))) < 2:
                time.sleep(0.01)
    return job
app = build_celery(url, home, prefix=prefix)
if beats == "no":
    app.conf.beat_schedule = {}
beat = FileLeadership(home / "beat")
run_jobs(
    app,
    {name: make(name) for name in ROUTES},
    queues=parse_queues(queues),
    read_commit=lambda: int((home / "commit").read_text()) if (home / "commit").exists() else 0,
    is_leader=beat.is_held,
)
"""
ALL = ",".join(JobQueue)


def require(url: str) -> None:
    if url:
        port = int(url.rsplit(":", maxsplit=1)[-1].split("/", maxsplit=1)[0])
        try:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        except OSError:
            pytest.skip(f"no broker answers on port {port}")


class Broker:
    """A broker with queues of this test, and the jobs processes that serve them."""

    def __init__(self, url: str, home: Path) -> None:
        self.url, self.home, self.prefix = url, home, f"covey-test-{secrets.token_hex(4)}"
        self.app = build_celery(url, home, prefix=self.prefix)
        self.commit: int | None = None
        self.jobs = JobTrigger(self.app, get_commit=lambda: self.commit)

    def list_done(self) -> list[str]:
        path = self.home / "done"
        return path.read_text().splitlines() if path.exists() else []

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HANG_S
        while not is_so():
            assert time.monotonic() < deadline, [log.read_text() for log in self.home.glob("*.log")]
            time.sleep(0.02)

    @contextmanager
    def serve(self, queues: str = ALL, *, name: str = "jobs", beats: bool = False) -> Iterator[subprocess.Popen[bytes]]:
        arguments = [sys.executable, "-c", PROGRAM, self.url, str(self.home), self.prefix, queues]
        with (self.home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*arguments, "yes" if beats else "no"],
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                cwd=Path.cwd(),
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def close(self) -> None:
        if self.url:
            with self.app.connection_for_write() as connection:
                for queue in JobQueue:
                    connection.default_channel.queue_delete(f"{self.prefix}-{queue}")
        self.app.close()


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    require(BROKERS[request.param])
    broker = Broker(BROKERS[request.param], tmp_path)
    yield broker
    broker.close()


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end. A job under way is finished first."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=HANG_S) == 0


def test_triggers__doubled_failing_and_after__all_have_their_effect_and_the_process_ends_when_told(broker: Broker):
    """A trigger that was sent before the process runs waits for it. One run covers all commits before it.

    A failing job does not stop the following ones.
    """
    broker.commit = 3
    (broker.home / "commit").write_text("3")
    for _ in range(3):
        broker.jobs.trigger("assign_tasks")
    with broker.serve() as process:
        broker.wait_until(lambda: broker.list_done() == ["assign_tasks"])
        broker.jobs.trigger("expire_leases")
        for job in ("prune_epoch", "mark_settled"):
            broker.jobs.trigger(job, epoch=7)
        broker.wait_until(lambda: len(broker.list_done()) >= 4)
        broker.commit = 4
        broker.jobs.trigger("assign_tasks")
        broker.wait_until(lambda: len(broker.list_done()) >= 5)
        end(process)
    assert sorted(broker.list_done()) == sorted(
        ["assign_tasks", "expire_leases", "prune_epoch 7", "mark_settled 7", "assign_tasks"]
    )
    assert "a defect" in (broker.home / "jobs.log").read_text(), "a job that breaks is seen"


def test_jobs__message_about_an_epoch_fails_for_now__celery_retries_it_until_it_succeeds(broker: Broker):
    with broker.serve("chain") as process:
        broker.jobs.trigger("post_epoch", epoch=4)
        broker.wait_until(lambda: len(broker.list_done()) >= 3)
        (broker.home / "may_post").touch()
        before = len(broker.list_done())
        broker.wait_until(lambda: len(broker.list_done()) > before)
        end(process)
    assert set(broker.list_done()) == {"post_epoch 4"}
    assert "Traceback" not in (broker.home / "jobs.log").read_text()


def test_jobs__draw_hangs__all_other_jobs_of_the_process_run(broker: Broker):
    with broker.serve() as process:
        for _ in range(20):
            broker.jobs.trigger("draw_submissions")
        broker.wait_until(lambda: broker.list_done() == ["draw_submissions"])
        others = sorted(set(ROUTES) - {"draw_submissions", "post_epoch"})
        for job in others:
            broker.jobs.trigger(job)
        broker.wait_until(lambda: sorted(broker.list_done()[1:]) == others)
        (broker.home / "may_draw").touch()
        end(process)


def test_jobs__two_processes_of_bulk__run_two_messages_at_the_same_time(broker: Broker):
    """Each run waits until both have begun, and a process of this queue runs one job at a time."""
    with broker.serve("bulk", name="one") as one, broker.serve("bulk", name="other") as other:
        for epoch in (1, 2):
            broker.jobs.trigger("close_epoch", epoch=epoch)
        broker.wait_until(lambda: sorted(broker.list_done()) == ["close_epoch 1", "close_epoch 2"])
        end(one)
        end(other)


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_jobs__process_is_killed_during_a_run__another_one_runs_it(broker: Broker):
    """A message is acknowledged after its run.

    A folder has no acknowledgements, and Redis gives a message out again after an hour, so there beat replaces it.
    """
    with broker.serve("bulk", name="one") as one:
        broker.jobs.trigger("close_epoch", epoch=1)
        broker.wait_until(lambda: broker.list_done() == ["close_epoch 1"])
        one.kill()
        one.wait()
    (broker.home / "closing-2").touch()
    with broker.serve("bulk", name="other") as other:
        broker.wait_until(lambda: broker.list_done() == ["close_epoch 1"] * 2)
        end(other)


def test_beat__two_processes_without_any_trigger__sweeps_run_and_another_process_takes_over(tmp_path: Path):
    broker = Broker("", tmp_path)
    (tmp_path / "may_draw").touch()
    with broker.serve(beats=True, name="one") as one, broker.serve("now,chain", beats=True, name="other") as other:
        broker.wait_until(lambda: set(broker.list_done()) == {"sweep", "sweep_settled"})
        end(one)
        (tmp_path / "done").unlink()
        broker.wait_until(lambda: "sweep" in broker.list_done())
        end(other)
    broker.close()
