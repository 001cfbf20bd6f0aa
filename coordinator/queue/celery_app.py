"""Celery: the jobs that move work along.  A message is only a kick, sent after commit; a lost or doubled one changes
nothing, because every job looks at the rows again and beat kicks whatever may be overdue.
"""

import importlib
import logging
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from celery import Celery
from celery.beat import EmbeddedService
from celery.exceptions import SecurityWarning
from celery.signals import setup_logging, worker_ready, worker_shutdown
from kombu.exceptions import ChannelError, OperationalError
from kombu.transport import resolve_transport

from coordinator.queue import folder_broker
from covey.errors import OperatorError, TransientError
from covey.runtime.log import get_logger

QUEUE = "covey"
SENT_AT = "sent_at"
"""Argument of a kick: the Unix time at which it was sent."""
PAUSE_S = 0.01
"""Seconds between two kicks of the same job in the background."""
BEAT_SECONDS = {
    "assign_tasks": 0.5,
    "expire_leases": 1.0,
    "dispatch_validation": 0.5,
    "tally": 2.0,
    "seek_signatures": 2.0,
    "settle_epoch": 1.0,
    "prune_files": 5.0,
}


def build_celery(broker_url: str, home: Path) -> Celery:
    """The Celery application; an empty URL means a folder in `home`, polled every 20 ms.

    Raises OperatorError("bad_broker_url").
    """
    folder_broker.register()
    if broker_url:
        _require_transport(broker_url)
    app = Celery("covey", broker=broker_url or f"{folder_broker.SCHEME}://", set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_default_queue=QUEUE,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=True,
        broker_connection_retry_on_startup=True,
        beat_schedule={name: {"task": name, "schedule": seconds} for name, seconds in BEAT_SECONDS.items()},
        beat_max_loop_interval=0.5,
    )
    if broker_url:
        # A kick must not wait for a broker that is gone: by default a connection is tried for seconds.
        app.conf.broker_connection_timeout = 3
        app.conf.broker_transport_options = {"max_retries": 0}
        if broker_url.startswith("redis"):
            app.conf.broker_transport_options |= {"socket_timeout": 30, "socket_connect_timeout": 3}
    else:
        folders = {name: home / "broker" / name for name in ("messages", "control")}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        app.conf.broker_transport_options = {
            "data_folder_in": str(folders["messages"]),
            "data_folder_out": str(folders["messages"]),
            "control_folder": str(folders["control"]),
            "polling_interval": 0.02,
        }
    return app


def _require_transport(broker_url: str) -> None:
    """Raise OperatorError("bad_broker_url") unless kombu has a transport for the URL, with its library."""
    scheme = broker_url.partition(":")[0]
    try:
        resolve_transport(scheme)
        if scheme.startswith("redis"):
            importlib.import_module("redis")
    except (KeyError, ImportError) as error:
        raise OperatorError(
            "bad_broker_url",
            f"the setting broker_url begins with {scheme}:, for which there is no transport: {error.args[0]}",
            fix="Use redis://HOST:6379/0 after pip install 'covey[redis]', or amqp://USER@HOST//",
        ) from error


class Kicker:
    """Sends kicks. A broker that does not answer costs latency, never state: beat kicks again."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def kick(self, job: str) -> None:
        """Ask the jobs process to run `job`. To be called after the commit only."""
        _require_job(job)
        try:
            self._app.send_task(job, kwargs={SENT_AT: time.time()}, ignore_result=True, retry=False, expires=30)
        except (OSError, OperationalError, ChannelError) as error:  # kombu's, around whatever a broker's library raises
            get_logger().warning("kick lost", job=job, error=str(error))


class BackgroundKicker:
    """Sends kicks from a thread of its own, so that a broker that hangs keeps no request waiting.

    Kicks of one job that come close together are sent as one.
    """

    def __init__(self, kicker: Kicker) -> None:
        self._kicker = kicker
        self._waiting: set[str] = set()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_over = False

    def kick(self, job: str) -> None:
        """Ask the jobs process to run `job` soon. To be called after the commit only."""
        _require_job(job)
        with self._change:
            self._waiting.add(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kicks", daemon=True)
                self._thread.start()
            self._change.notify()

    def close(self) -> None:
        """End the thread once it has sent what waits, or after a second if the broker hangs."""
        with self._change:
            self._is_over = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._waiting and not self._is_over:
                    self._change.wait()
                jobs, self._waiting = self._waiting, set()
                if not jobs:
                    return
            for job in sorted(jobs):
                self._kicker.kick(job)
            with self._change:
                self._change.wait_for(lambda: self._is_over, PAUSE_S)


def _require_job(job: str) -> None:
    if job not in BEAT_SECONDS:
        raise OperatorError("unknown_job", f"there is no job {job}", fix=f"Use one of {', '.join(BEAT_SECONDS)}")


def run_jobs(app: Celery, jobs: dict[str, Callable[[], None]]) -> None:
    """Run the jobs process with beat until SIGINT or SIGTERM; a job under way is finished first."""
    for name, job in jobs.items():
        app.task(_guard(_skip_covered(job)), name=name, ignore_result=True)
    beat = EmbeddedService(app, max_interval=0.5, thread=True, scheduler_cls="celery.beat:Scheduler")
    warnings.filterwarnings("ignore", category=SecurityWarning)  # about root and pickle; ours is JSON only
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    setup_logging.connect(lambda **_: None, weak=False)
    worker_ready.connect(lambda **_: beat.start(), weak=False)
    worker_shutdown.connect(lambda **_: beat.stop(), weak=False)
    worker = app.Worker(pool="solo", concurrency=1, quiet=True, without_gossip=True, without_mingle=True, beat=False)
    worker.start()
    if worker.exitcode:
        raise OperatorError("jobs_failed", "Celery's consumer ended", fix="Read its last lines, check the broker")


def _skip_covered(job: Callable[[], None]) -> Callable[..., None]:
    """Skip kicks that were sent before the job last began: it has seen what they are about."""
    begun_at = 0.0

    def run(*, sent_at: float | None = None) -> None:
        nonlocal begun_at
        if sent_at is None or sent_at > begun_at:
            begun_at = time.time()
            job()

    return run


def _guard(job: Callable[..., None]) -> Callable[..., None]:
    def run(**arguments: float) -> None:
        try:
            job(**arguments)
        except TransientError as error:
            get_logger().warning("job will be kicked again", code=error.code, message=error.message)

    return run
