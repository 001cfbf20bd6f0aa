"""The jobs process on each broker that is available: kicks arrive, and beat replaces lost ones."""

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

from coordinator.queue.celery_app import BEAT_SECONDS, Kicker, build_celery

pytestmark = pytest.mark.integration
HANG_S = 240
"""Deadline against hanging, in seconds, of the start and of the end of a process."""
BROKERS = {"folder": "", "redis": "redis://127.0.0.1:6379/13", "rabbitmq": "amqp://guest:guest@127.0.0.1:5672//"}
PROGRAM = """
import sys
from pathlib import Path
from coordinator.queue.celery_app import BEAT_SECONDS, build_celery, run_jobs
from covey.errors import TransientError
url, home, queue, beats = sys.argv[1:]
done = Path(home, "done")
def make(name):
    def job():
        with done.open("a") as file:
            file.write(name + chr(10))
        if name == "expire_leases":
            raise TransientError("database_unavailable", "gone")
        if name == "settle_epoch":
            raise KeyError("a defect")
    return job
app = build_celery(url, Path(home))
app.conf.task_default_queue = queue
if beats == "no":
    app.conf.beat_schedule = {}
run_jobs(app, {name: make(name) for name in BEAT_SECONDS})
"""


def require(url: str) -> None:
    if url:
        port = int(url.rsplit(":", maxsplit=1)[-1].split("/", maxsplit=1)[0])
        try:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        except OSError:
            pytest.skip(f"no broker answers on port {port}")


@contextmanager
def run_process(url: str, home: Path, queue: str, *, beats: bool) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [sys.executable, "-c", PROGRAM, url, str(home), queue, "yes" if beats else "no"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            arguments, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=Path.cwd()
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until(is_so: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def read_done(home: Path) -> list[str]:
    path = home / "done"
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("broker", BROKERS)
def test_kicks__doubled_failing_and_after__all_have_their_effect_and_the_process_ends_when_told(
    broker: str, tmp_path: Path
):
    """A kick that was sent before the process runs waits for it. One run covers all kicks that were sent before it.

    A failing job does not stop the following ones.
    """
    require(url := BROKERS[broker])
    queue = f"covey-test-{secrets.token_hex(4)}"
    app = build_celery(url, tmp_path)
    app.conf.task_default_queue = queue
    kicker = Kicker(app)
    kicker.kick("assign_tasks")
    kicker.kick("assign_tasks")
    try:
        with run_process(url, tmp_path, queue, beats=False) as process:
            wait_until(lambda: read_done(tmp_path) == ["assign_tasks"], (tmp_path / "log").read_text)
            for job in ("expire_leases", "settle_epoch", "tally"):
                kicker.kick(job)
            wait_until(lambda: "tally" in read_done(tmp_path), (tmp_path / "log").read_text)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=HANG_S) == 0
        assert sorted(read_done(tmp_path)) == ["assign_tasks", "expire_leases", "settle_epoch", "tally"]
        assert "a defect" in (tmp_path / "log").read_text(), "a job that breaks is seen"
    finally:
        if url:
            with app.connection_for_write() as connection:
                connection.default_channel.queue_delete(queue)
        app.close()


def test_beat__without_any_kick__runs_every_job(tmp_path: Path):
    with run_process("", tmp_path, "covey-test", beats=True) as process:
        wait_until(lambda: set(read_done(tmp_path)) == set(BEAT_SECONDS), (tmp_path / "log").read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=HANG_S) == 0
