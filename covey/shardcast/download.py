"""A download: its jobs, the threads that process them, and a supervisor that aborts slow requests.

Each thread requests one resource from one source at a time. When no job waits, a thread requests a late piece from a
second source. A piece is late after twice the median time, and the first correct answer counts. Deadlines follow from
measured rates.
"""

import itertools
import math
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from covey.errors import ProtocolError, TransientError
from covey.protocol.pieces import PIECE_BYTES
from covey.runtime.log import get_logger
from covey.runtime.urls import hide_secrets
from covey.shardcast.source import Source, choose
from covey.shardcast.source_connection import BusyError, Connection, DeliveryError, LackingError, SilentError

ATTEMPTS = 3
"""Number of failed requests for a resource after which a source is not asked for it again."""
MAX_DELAYS = 50
"""Number of busy answers that only delay a job. Each further busy answer counts as a failed request."""
LIES = 2
"""Number of wrong bodies after which a source is not asked for a resource again. After the first, it must verify its
copy.
"""
HEDGE_AFTER = 2.0
"""Age of a request for a piece at which a second source is asked, as a multiple of the median time."""
SLOWER = 8
"""Factor by which the fastest source must be faster than a request before the request is aborted."""
_GRACE_SECONDS = 0.5
"""Minimum age in seconds at which a slow request is aborted or a second source is asked."""
_SILENCE_SECONDS, _LONE_SILENCE_SECONDS = 1.0, 5.0
"""Seconds without a byte after which the first request to a source is aborted. The first value applies if there are
other sources, and the second if there are none. They double with each attempt, because a relay may have to fetch the
piece itself.
"""
_DOCUMENT_SECONDS, _LONGEST_DOCUMENT_SECONDS = 3.0, 20.0
"""Time limit in seconds of the first request for a small document, and the maximum for a large one. They only apply if
there are several sources. A false head names documents that only its own relay has, and that relay could send them
forever.
"""
_DOCUMENT_RATE = 1e6
"""Minimum rate of a larger document in bytes/s while the rate of every source is unknown."""
_PATIENCE = 4.0
"""Factor by which the time limit of a document grows after each late request, because the link may be slow."""
_LEAST_BYTES = 8192
"""Number of bytes that count as progress if there are other sources. Without other sources, one byte counts."""
_CONSIDERED = 8
"""Number of waiting jobs for which a thread looks for a source. The source of the first one may be resting."""
_LOOK_SECONDS = 0.05
"""Seconds between two checks of the requests."""
_MEASURED = 64
_LOG_EVERY_SECONDS = 60.0

Keep = Callable[[], None]


@dataclass(slots=True, eq=False)
class Job:
    """Resource to download."""

    path: str
    size: int | None
    """Size in bytes. None if only the maximum, `limit`, is known."""
    limit: int
    check: Callable[[memoryview], Keep]
    """Function that checks a body, in any thread, and returns the function that keeps it. The latter is called
    immediately, and at most once per job. Raises ProtocolError if the body is wrong, or LackingError if it shows
    that the source lacks the resource.
    """
    is_done: bool = False
    winner: Source | None = None
    """Source that sent the correct body. None while the job is not done."""
    requests: list["Request"] = field(default_factory=list)
    """Requests in flight."""
    attempts: dict[Source, int] = field(default_factory=dict)
    """Number of failed requests by source."""
    failures: dict[Source, DeliveryError] = field(default_factory=dict)
    """Last failure by source."""
    delays: int = 0
    """Number of busy answers from all sources."""
    lies: dict[Source, int] = field(default_factory=dict)
    """Number of wrong bodies by source. A source that has sent one must verify its copy."""
    late: dict[Source, int] = field(default_factory=dict)
    """Number of requests by source that exceeded the time limit of a document."""
    siblings: Sequence["Job"] = ()
    """Jobs for the same resource that must be done by other sources. See `build_siblings`."""

    @property
    def taken(self) -> set[Source]:
        """Sources that are being asked for the resource or have delivered it."""
        return {each.source for each in self.requests} | ({self.winner} if self.winner else set())

    @property
    def given_up(self) -> set[Source]:
        """Sources that must not be asked for the resource, or not again."""
        lacking = {source for source, failure in self.failures.items() if isinstance(failure, LackingError)}
        liars = {source for source, count in self.lies.items() if count >= LIES}
        tired = {source for source, count in self.attempts.items() if count >= ATTEMPTS}
        late = set(self.late) if lacking else set()  # The document may be made up if another source lacks it.
        return lacking | liars | tired | late | set().union(*(each.taken for each in self.siblings))


def build_siblings(path: str, *, limit: int, checks: Sequence[Callable[[memoryview], Keep]]) -> list[Job]:
    """Return jobs that request one document from different sources. A job for which no source is left is dropped."""
    first = Job(path, None, limit, checks[0])
    jobs = [first, *(replace(first, check=check, requests=[]) for check in checks[1:])]
    for job in jobs:  # They share what is known about the sources.
        job.siblings = [each for each in jobs if each is not job]
    return jobs


@dataclass(slots=True, eq=False)
class Request:
    """Request in flight. Times are those of the clock of `Sources`."""

    job: Job
    source: Source
    connection: Connection
    started: float
    moved_at: float
    """Time of the last progress."""
    seen: int = 0
    """Number of bytes received at the last progress."""
    is_late: bool = False
    """Whether the request has exceeded the time limit of a document."""


class Sources:
    """Sources of a client, with their idle connections and the time that recent pieces took."""

    def __init__(
        self, urls: Sequence[str], *, clock: Callable[[], float] = time.monotonic, seed: int | None = None
    ) -> None:
        self.all, self.clock = [Source(url) for url in urls], clock
        self._rng = random.Random(seed)
        self._idle: dict[Source, list[Connection]] = {source: [] for source in self.all}
        self.durations: deque[float] = deque(maxlen=_MEASURED)
        """Time in seconds that each recent piece took, scaled to a full piece."""

    @property
    def patience(self) -> float:
        """Age in seconds at which a request counts as slow."""
        return max(_GRACE_SECONDS, HEDGE_AFTER * statistics.median(self.durations or [0.0]))

    def choose(self, job: Job) -> Source | None:
        """Draw a source for a job among those that are not being asked for it. Returns None if all others are given up.

        A source that has sent a wrong body for the job is asked again only if there is no other.
        """
        asked = {each.source for each in job.requests}
        sound = choose(self.all, job.given_up | asked | job.lies.keys(), self.clock(), rng=self._rng)
        return sound if sound or asked else choose(self.all, job.given_up, self.clock(), rng=self._rng)

    def take_connection(self, source: Source) -> Connection:
        """Return an idle connection to a source, or a new one."""
        try:
            return self._idle[source].pop()
        except IndexError:
            return Connection(source.url)

    def return_connection(self, source: Source, connection: Connection) -> None:
        """Keep a connection for later requests."""
        self._idle[source].append(connection)

    def distrust(self, source: Source) -> None:
        """Record that a statement of a source could not be confirmed. The source is asked less often from now on."""
        source.record_failure(self.clock())

    def blame(self, source: Source, why: str) -> None:
        """Record that something that a source sent has turned out to be wrong."""
        get_logger().warning("relay sends wrong information", relay=hide_secrets(source.url), why=why)
        source.record_lie(self.clock())

    def close(self) -> None:
        """Close the idle connections."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()


class Download:
    """Processes a list of jobs. Call `run` once."""

    def __init__(self, sources: Sources, jobs: Sequence[Job], *, threads: int, thing: str) -> None:
        """`threads` is the maximum number of requests in flight. `thing` names the download in errors and logs."""
        self._sources, self._thing, self._threads = sources, thing, min(threads, len(jobs) + 1)
        self._waiting, self._remaining = deque(jobs), len(jobs)
        self._running: list[Request] = []
        self._change = threading.Condition()
        self._is_over = False

    def run(self, stop: threading.Event | None = None, on_look: Callable[[], None] = lambda: None) -> None:
        """Return when all jobs are done or dropped.

        `on_look` is called several times per second and may raise an error, which ends the download. Raises
        TransientError "stopped" if `stop` is set, "not_at_relays" if all sources lack a resource, or "no_relay" if none
        delivers it. Also raises the first error of a job's `Keep`.
        """
        with ThreadPoolExecutor(self._threads, "download") as executor:
            workers = [executor.submit(self._work) for _ in range(self._threads)]
            try:
                self._supervise(workers, stop or threading.Event(), on_look)
            finally:
                self._end(workers)

    def _supervise(self, workers: Sequence[Future[None]], stop: threading.Event, on_look: Callable[[], None]) -> None:
        """Return when all worker threads have ended. Raises the first error of a worker."""
        started = logged = self._sources.clock()
        while wait(workers, _LOOK_SECONDS, FIRST_EXCEPTION).not_done:
            for worker in workers:
                if worker.done():
                    worker.result()
            if stop.is_set():
                raise TransientError("stopped", f"the download of {self._thing} was stopped")
            on_look()
            now = self._sources.clock()
            if now - logged >= _LOG_EVERY_SECONDS:
                logged = now
                get_logger().info("downloading", thing=self._thing, seconds=round(now - started), left=self._remaining)
            with self._change:
                self._end_slow_requests(now)
        for worker in workers:
            worker.result()

    def _end(self, workers: Sequence[Future[None]]) -> None:
        """Abort the requests in flight and wait for the worker threads."""
        with self._change:
            self._is_over = True
            self._change.notify_all()
        is_ended = False
        while not is_ended:  # A request may begin after the others were aborted, so they are aborted repeatedly.
            with self._change:
                for request in self._running:
                    request.connection.abort()
            is_ended = not wait(workers, _LOOK_SECONDS).not_done

    def _end_slow_requests(self, now: float) -> None:
        """Abort requests that are not needed any more, and requests so slow that another source is faster."""
        patience = self._sources.patience
        fastest = max((source.bandwidth or 0.0 for source in self._sources.all), default=0.0)
        for request in self._running:
            received, age, job = request.connection.received, now - request.started, request.job
            has_others = len(job.given_up | {request.source}) < len(self._sources.all)
            if received >= request.seen + (_LEAST_BYTES if has_others else 1):
                request.seen, request.moved_at = received, now
            is_slow = age > patience and received < age * fastest / SLOWER and job.size == PIECE_BYTES
            factor = 2 ** job.attempts.get(request.source, 0)
            silence = factor * (_SILENCE_SECONDS if has_others else _LONE_SILENCE_SECONDS)
            request.is_late |= age > self._compute_deadline(request, fastest)
            if job.is_done or request.is_late or now - request.moved_at > silence or (is_slow and has_others):
                request.connection.abort()

    def _compute_deadline(self, request: Request, fastest: float) -> float:
        """Return the time limit of a request in seconds. It is infinite for pieces, and if there is only one source."""
        job, connection = request.job, request.connection
        if job.size is not None or len(self._sources.all) == 1:
            return math.inf
        rate = fastest / SLOWER or _DOCUMENT_RATE
        size = connection.received if connection.expected is None else connection.expected
        seconds = min(_DOCUMENT_SECONDS + size / rate, _LONGEST_DOCUMENT_SECONDS)
        return seconds * _PATIENCE ** job.late.get(request.source, 0)

    def _work(self) -> None:
        buffer = memoryview(bytearray(PIECE_BYTES))
        while (request := self._start_request()) is not None:
            self._do(request, buffer)

    def _start_request(self) -> Request | None:
        """Wait for an open job that has a source, and begin a request. Returns None if no job remains. Raises
        TransientError.
        """
        with self._change:
            while not self._is_over and self._remaining > 0:
                now = self._sources.clock()
                for job in self._list_open_jobs(now):
                    source = self._sources.choose(job)
                    if source is None and not job.requests:
                        self._drop(job)
                    if source is not None and source.rests_until <= now:
                        return self._begin(job, source, now)
                self._change.wait(_LOOK_SECONDS)
            return None

    def _drop(self, job: Job) -> None:
        """Drop a job for which no source is left. Raises TransientError unless a sibling may still succeed."""
        if not any(each.taken for each in job.siblings):
            raise self._explain(job)
        self._waiting.remove(job)
        self._remaining -= 1
        self._change.notify_all()

    def _list_open_jobs(self, now: float) -> list[Job]:
        """Return the waiting jobs, and jobs whose only request is slow, for which a second source should be asked."""
        patience, jobs = self._sources.patience, list(itertools.islice(self._waiting, _CONSIDERED))
        for request in self._running:
            job = request.job
            if not job.is_done and len(job.requests) == 1 and now - request.started > patience:
                jobs.append(job)
        return jobs

    def _begin(self, job: Job, source: Source, now: float) -> Request:
        if not job.requests:
            self._waiting.remove(job)
        connection = self._sources.take_connection(source)
        connection.received, connection.expected = 0, None
        request = Request(job, source, connection, started=now, moved_at=now)
        job.requests.append(request)
        self._running.append(request)
        return request

    def _do(self, request: Request, buffer: memoryview) -> None:
        job, failure, keep = request.job, None, None
        path = job.path + ("?verify=1" if request.source in job.lies else "")
        try:
            if job.size is None:
                body = request.connection.get(path, job.limit)
            else:
                body = buffer[: job.size]
                request.connection.get_into(path, body)
            keep = job.check(body)
        except (DeliveryError, ProtocolError) as error:
            failure = error
        if not self._settle(request, failure):
            return
        assert keep is not None
        keep()
        with self._change:
            self._remaining -= 1
            self._change.notify_all()

    def _settle(self, request: Request, failure: DeliveryError | ProtocolError | None) -> bool:
        """Record the outcome of a request. Returns whether its body must be kept."""
        with self._change:
            job, source, now = request.job, request.source, self._sources.clock()
            seconds = now - request.started
            job.requests.remove(request)
            self._running.remove(request)
            self._sources.return_connection(source, request.connection)
            self._change.notify_all()
            if failure is None:
                source.record_delivery(request.connection.received, seconds)
                if job.size is not None and job.size > PIECE_BYTES // 2:
                    self._sources.durations.append(seconds * PIECE_BYTES / job.size)
                if job.is_done:
                    return False
                job.is_done, job.winner = True, source
                return True
            if self._is_over:
                return False  # The whole download was ended.
            if job.is_done and not isinstance(failure, ProtocolError):
                source.record_defeat(request.connection.received, seconds, now)
                return False
            if request.is_late:
                job.late[source] = job.late.get(source, 0) + 1
            self._record_failure(job, source, failure)
            if not job.requests and not job.is_done and job not in self._waiting:
                self._waiting.appendleft(job)
            return False

    def _record_failure(self, job: Job, source: Source, failure: DeliveryError | ProtocolError) -> None:
        now, log = self._sources.clock(), get_logger()
        if isinstance(failure, BusyError) and job.delays < MAX_DELAYS:
            job.delays += 1
            source.rests_until = max(source.rests_until, now + failure.wait_s)
            return
        job.attempts[source] = job.attempts.get(source, 0) + 1
        if isinstance(failure, ProtocolError):
            source.record_lie(now)
            job.lies[source] = job.lies.get(source, 0) + 1
            log.warning("relay sends wrong bytes", relay=hide_secrets(source.url), path=job.path, why=failure.message)
            failure = DeliveryError(f"sent wrong bytes: {failure.message}")
        elif not isinstance(failure, LackingError):
            source.record_failure(now)
            log.info("relay does not deliver", relay=hide_secrets(source.url), path=job.path, why=str(failure))
        job.failures[source] = failure

    def _explain(self, job: Job) -> TransientError:
        """Return the error for a job at which every source has failed."""
        reasons = "; ".join(f"{hide_secrets(source.url)} {failure}" for source, failure in job.failures.items())
        if all(isinstance(failure, SilentError) for failure in job.failures.values()):
            fix = "Start a relay, or correct the setting relays"
            return TransientError("no_relay", f"no relay delivers {self._thing}: {reasons}. {fix}")
        is_nowhere = all(isinstance(failure, LackingError) for failure in job.failures.values())
        code = "not_at_relays" if is_nowhere else "no_relay"
        return TransientError(code, f"no relay has {self._thing}: {reasons}")
