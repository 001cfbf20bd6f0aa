"""The Celery application. It runs the jobs in three queues, by what they wait for (`coordinator.queue.routes`).

A message is sent after the commit that it is about, and names a block, receipts or an epoch. Every job reads the rows
again, so a duplicate message changes nothing. A message is acknowledged after its run. Celery retries it after a
TransientError, and the sweeps of beat replace lost messages.
"""

import importlib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery, current_task
from celery.beat import EmbeddedService, Scheduler
from celery.exceptions import SecurityWarning
from celery.signals import setup_logging, worker_ready, worker_shutdown
from kombu.exceptions import ChannelError, OperationalError
from kombu.transport import resolve_transport

from coordinator.queue import folder_broker
from coordinator.queue.job_meters import JobMeters
from coordinator.queue.job_runs import JobRuns
from coordinator.queue.routes import ROUTES, JobQueue
from covey.errors import OperatorError, TransientError
from covey.runtime.log import get_logger

SENT_AT = "covey_sent_at"
"""Header of a message with the Unix time at which it was sent. Messages of beat and retries have none."""
PREFIX = "covey"
"""Default prefix of the names of the queues on the broker."""
PAUSE_SECONDS = 0.01
"""Time in seconds for which triggers in the background are collected before they are sent."""
CLOCKS_DIFFER_SECONDS = 60.0
"""Maximum difference in seconds between the clocks of two machines. A message of beat expires this time after the next
one is due."""
TRIGGER_EXPIRES_SECONDS = CLOCKS_DIFFER_SECONDS
"""Time in seconds after which a trigger expires."""
MAX_WAITING = 100
"""Number of messages in a queue from which beat sends no more. A queue without a worker must not grow forever."""
REPORT_SECONDS = 300.0
"""Time in seconds between two log lines with the metrics of the jobs."""
BROKER_SECONDS = 3.0
"""Maximum time in seconds that a sweep waits for a connection to the broker."""
MAX_RECEIPTS = 100
"""Maximum number of receipts in one message."""
MAX_RETRIES, RETRY_SECONDS, MAX_RETRY_SECONDS = 5, 1, 30
"""Maximum number of retries of a message, and the seconds before the first and the last retry. They double."""
THREADS_PER_JOB = 2
"""Number of threads for each job of a process. One runs the job, and one holds the next message until the run ends."""


def build_celery(broker_url: str, home: Path, *, prefix: str = PREFIX) -> Celery:
    """Build the Celery application. An empty URL means a folder in `home`, which is polled every 50 ms.

    `prefix` is the first part of the names of the queues. Coordinators that share a broker need different prefixes.
    Raises OperatorError("bad_broker_url") if kombu has no transport for the URL.
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
        task_default_queue=_name_queue(prefix, JobQueue.NOW),
        task_routes={name: {"queue": _name_queue(prefix, route.queue)} for name, route in ROUTES.items()},
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # A thread cannot be canceled.
        broker_connection_retry_on_startup=True,
        beat_schedule={
            name: {
                "task": name,
                "schedule": route.every_s,
                "options": {"expires": route.every_s + CLOCKS_DIFFER_SECONDS},
            }
            for name, route in ROUTES.items()
            if route.every_s is not None
        },
        beat_max_loop_interval=0.5,
    )
    if broker_url:
        # A trigger must not wait long for a broker that is down.
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
            "polling_interval": 0.05,
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
            f"the setting broker_url begins with {scheme}:, for which kombu has no transport: {error.args[0]}",
            fix="Use redis://HOST:6379/0 after pip install 'covey[redis]', or amqp://USER@HOST//",
        ) from error


class JobTrigger:
    """Sends messages to the jobs. If the broker does not answer, work is delayed until a sweep, but not lost."""

    def __init__(self, app: Celery, *, get_commit: Callable[[], int | None] = lambda: None) -> None:
        """Create a trigger. `get_commit` returns the number of this process's last commit, or None if there is none."""
        self._app, self._get_commit = app, get_commit
        self._watch = _QueueWatch(app)

    def trigger(self, job: str, *, receipts: Iterable[str] = (), **ids: int) -> None:
        """Request a run of `job` about some receipts, or about the object with these ids. Call this after the commit.

        Raises OperatorError("unknown_job") if there is no such job.
        """
        _require_job(job)
        commit = self._get_commit()
        self._send_all(job, receipts, dict(ids) if commit is None else ids | {"commit": commit})

    def remind(self, job: str, *, receipts: Iterable[str] = (), **ids: int) -> None:
        """Send a message again, or one that only the clock has made due. It is left out if its queue is full.

        It names no commit, because the job must run even if nothing was committed since its last run.
        """
        _require_job(job)
        try:
            with self._app.producer_pool.acquire(block=True, timeout=BROKER_SECONDS) as producer:
                is_full = self._watch.is_full(self._app.conf.task_routes[job]["queue"], producer)
        except (OSError, OperationalError, ChannelError) as error:
            get_logger().warning("a trigger was lost", job=job, error=str(error))
            return
        if not is_full:
            self._send_all(job, receipts, dict(ids))

    def _send_all(self, job: str, receipts: Iterable[str], arguments: Mapping[str, Any]) -> None:
        hashes = sorted(receipts)
        for start in range(0, len(hashes), MAX_RECEIPTS):
            self._send(job, {**arguments, "receipts": hashes[start : start + MAX_RECEIPTS]})
        if not hashes:
            self._send(job, arguments)

    def _send(self, job: str, arguments: Mapping[str, Any]) -> None:
        try:
            self._app.send_task(
                job,
                kwargs=arguments,
                ignore_result=True,
                retry=False,
                expires=TRIGGER_EXPIRES_SECONDS,
                headers={SENT_AT: time.time()},
            )
        except (OSError, OperationalError, ChannelError) as error:  # kombu's, around whatever a broker's library raises
            get_logger().warning("a trigger was lost", job=job, error=str(error))


class BackgroundJobTrigger:
    """Sends messages from its own thread, so that no request waits for a broker that hangs.

    Triggers about the same object within PAUSE_SECONDS become one message. So do receipts of the same job.
    """

    def __init__(self, jobs: JobTrigger) -> None:
        self._trigger = jobs
        self._waiting: dict[tuple[str, tuple[tuple[str, int], ...]], set[str]] = {}
        """Receipts of triggers that are not sent yet, by job and ids."""
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_over = False

    def trigger(self, job: str, *, receipts: Iterable[str] = (), **ids: int) -> None:
        """Request a run of `job`, as `JobTrigger.trigger` does, but without waiting for the broker."""
        _require_job(job)
        with self._change:
            self._waiting.setdefault((job, tuple(sorted(ids.items()))), set()).update(receipts)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="triggers", daemon=True)
                self._thread.start()
            self._change.notify()

    def remind(self, job: str, *, receipts: Iterable[str] = (), **ids: int) -> None:
        """Send a message as `JobTrigger.remind` does, and wait for the broker."""
        self._trigger.remind(job, receipts=receipts, **ids)

    def close(self) -> None:
        """End the thread once it has sent the waiting triggers, or after one second if the broker hangs."""
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
                waiting, self._waiting = self._waiting, {}
                if not waiting:
                    return
            for (job, ids), receipts in sorted(waiting.items()):
                self._trigger.trigger(job, receipts=receipts, **dict(ids))
            with self._change:
                self._change.wait_for(lambda: self._is_over, PAUSE_SECONDS)


class _QueueWatch:
    """Looks whether queues are full because no worker consumes them."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._full: set[str] = set()
        """Names of the queues that were full at the last check."""

    def is_full(self, name: str, producer: Any) -> bool:
        """Return whether a queue has MAX_WAITING messages, or False if the broker does not answer."""
        queue = self._app.amqp.queues[name]
        errors = (*producer.connection.connection_errors, *producer.connection.channel_errors)
        try:
            declared = producer.channel.queue_declare(
                queue=queue.name,
                durable=queue.durable,
                exclusive=queue.exclusive,
                auto_delete=queue.auto_delete,
                arguments=queue.queue_arguments,
            )
        except errors:
            return False
        is_full = int(declared.message_count) >= MAX_WAITING
        if is_full and name not in self._full:
            get_logger().error("nobody serves a queue", queue=name, messages=declared.message_count)
        (self._full.add if is_full else self._full.discard)(name)
        return is_full


class _LockedScheduler(Scheduler):  # type: ignore[misc]
    """Beat scheduler that sends messages only while its process is the leader, so that each message is sent once."""

    def __init__(self, *arguments: Any, is_leader: Callable[[], bool], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._is_leader, self._watch = is_leader, _QueueWatch(self.app)

    def tick(self, *arguments: Any, **named: Any) -> float:
        """Send the messages that are due, and return the seconds until the next check."""
        if not self._is_leader():
            return float(self.max_interval)
        return float(super().tick(*arguments, **named))

    def apply_async(self, entry: Any, producer: Any = None, **named: Any) -> Any:
        """Send a message, unless its queue is full because no worker consumes it."""
        if producer is not None and self._watch.is_full(self.app.conf.task_routes[entry.task]["queue"], producer):
            return None
        return super().apply_async(entry, producer=producer, **named)


def _as_function(runs: JobRuns) -> Callable[..., None]:
    """Return a plain function, because Celery does not accept a bound method as a task."""

    def run(*, receipts: Sequence[str] = (), commit: int | None = None, **ids: int) -> None:
        runs.meters.note_message(runs.name, sent_at=current_task.request.get(SENT_AT))
        runs.run(receipts=receipts, commit=commit, **ids)

    return run


def _report(runs: Collection[JobRuns], over: threading.Event) -> None:
    """Log the metrics of the jobs every REPORT_SECONDS seconds, and once more at the end."""
    is_over = False
    while not is_over:
        is_over = over.wait(REPORT_SECONDS)
        for each in runs:
            metrics = each.metrics
            get_logger().info(
                "job statistics",
                job=each.name,
                runs=metrics.runs,
                failures=metrics.failures,
                seconds=round(metrics.seconds, 3),
            )


def _name_queue(prefix: str, queue: JobQueue) -> str:
    return f"{prefix}-{queue}"


def _require_job(job: str) -> None:
    if job not in ROUTES:
        raise OperatorError("unknown_job", f"there is no job {job}", fix=f"Use one of {', '.join(ROUTES)}")


def run_jobs(
    app: Celery,
    jobs: Mapping[str, Callable[..., None]],
    *,
    queues: Collection[JobQueue],
    read_commit: Callable[[], int],
    is_leader: Callable[[], bool],
    meters: JobMeters | None = None,
) -> None:
    """Run the jobs of some queues, and beat, until SIGINT or SIGTERM. Runs under way are finished first.

    Each job has its own threads, so a job that hangs stops no other. A process that serves only the queue `bulk` has
    one thread, because its jobs would slow each other down.
    """
    own = [
        JobRuns(name, job, read_commit=read_commit, meters=meters, is_cumulative=ROUTES[name].is_cumulative)
        for name, job in jobs.items()
        if ROUTES[name].queue in queues
    ]
    for runs in own:
        app.task(
            _as_function(runs),
            name=runs.name,
            ignore_result=True,
            throws=(TransientError,),  # JobRuns logs it. Celery would log its traceback.
            autoretry_for=(TransientError,) if ROUTES[runs.name].about else (),
            max_retries=MAX_RETRIES,
            retry_backoff=RETRY_SECONDS,
            retry_backoff_max=MAX_RETRY_SECONDS,
            retry_jitter=False,
        )
    scheduler = partial(_LockedScheduler, is_leader=is_leader)
    beat = EmbeddedService(app, max_interval=0.5, thread=True, scheduler_cls=scheduler)
    warnings.filterwarnings("ignore", category=SecurityWarning)  # About root and pickle. Only JSON is accepted.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    setup_logging.connect(lambda **_: None, weak=False)
    worker_ready.connect(lambda **_: get_logger().info("jobs are served", queues=",".join(queues)), weak=False)
    worker_ready.connect(lambda **_: beat.start(), weak=False)
    worker_shutdown.connect(lambda **_: beat.stop(), weak=False)
    prefix = str(app.conf.task_default_queue).removesuffix(f"-{JobQueue.NOW}")
    worker = app.Worker(
        pool="threads",
        concurrency=1 if set(queues) == {JobQueue.BULK} else THREADS_PER_JOB * len(own),
        queues=[_name_queue(prefix, queue) for queue in queues],
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        beat=False,
    )
    over = threading.Event()
    reporting = threading.Thread(target=_report, args=(own, over), name="job statistics", daemon=True)
    reporting.start()
    worker.start()
    over.set()
    reporting.join(1.0)
    if worker.exitcode:
        raise OperatorError("jobs_failed", "Celery's consumer ended", fix="Read its last lines and check the broker")
