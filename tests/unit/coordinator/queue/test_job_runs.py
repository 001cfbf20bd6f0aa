"""Runs of one job: which messages they cover, and what a failure leaves."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator.queue import job_runs
from coordinator.queue.job_runs import JobRuns
from covey.errors import ProtocolError, TransientError

pytestmark = pytest.mark.unit
HANG_S = 60
"""Deadline against hanging, in seconds. Only a wrong implementation reaches it."""


class Work:
    """A job that notes its runs and can be held up, and the number of the newest commit."""

    def __init__(self) -> None:
        self.commit, self.ids = 0, list[dict[str, Any]]()
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self.is_held = False
        self.error: Exception | None = None
        self.runs = JobRuns("assign_tasks", self.run, read_commit=lambda: self.commit)

    def run(self, **ids: Any) -> None:
        self.ids.append(ids)
        self.begun.release()
        if self.is_held:
            assert self.may_end.acquire(timeout=HANG_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def work() -> Work:
    return Work()


def start(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_run__triggers_about_commits_that_a_run_has_seen__are_skipped(work: Work):
    work.commit = 7
    for commit in (5, 6, 7):
        work.runs.run(commit=commit)
    assert len(work.ids) == 1
    work.runs.run(commit=8)
    assert len(work.ids) == 2, "the run has begun before that commit"
    work.runs.run()
    assert len(work.ids) == 3, "beat names no commit"


def test_run__messages_during_a_run__are_covered_by_one_that_follows(work: Work):
    work.is_held = True
    first = start(work.runs.run)
    assert work.begun.acquire(timeout=HANG_S)
    second = start(lambda: work.runs.run(commit=9))
    wait_for_waiter(work, second)
    for _ in range(5):
        work.runs.run(commit=9)  # They return at once.
    assert len(work.ids) == 1
    work.may_end.release(2)
    for thread in (first, second):
        thread.join(HANG_S)
        assert not thread.is_alive()
    assert len(work.ids) == 2


def test_run__run_under_way_hangs__gives_the_message_up(work: Work, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_runs, "WAIT_SECONDS", 0.01)
    work.is_held = True
    first = start(work.runs.run)
    assert work.begun.acquire(timeout=HANG_S)
    with capture_logs() as logs:
        work.runs.run()
    assert [line["event"] for line in logs] == ["a job waited too long for its current run"]
    work.may_end.release()
    first.join(HANG_S)
    work.is_held = False
    work.runs.run()
    assert len(work.ids) == 2


def test_run__messages_about_different_objects__run_at_the_same_time(work: Work):
    work.is_held = True
    threads = [start(lambda number=number: work.runs.run(epoch=number)) for number in (1, 2)]
    for _ in threads:
        assert work.begun.acquire(timeout=HANG_S)
    work.may_end.release(2)
    for thread in threads:
        thread.join(HANG_S)
    assert sorted(each["epoch"] for each in work.ids) == [1, 2]
    assert work.runs._turns == {}, "nothing is kept about objects that are done"


def test_run__failure__is_raised_and_covers_nothing(work: Work):
    work.commit, work.error = 7, TransientError("chain_unreachable", "gone")
    with capture_logs() as logs, pytest.raises(TransientError):
        work.runs.run(commit=3)
    assert [(line["event"], line["code"]) for line in logs] == [("a job will be tried again", "chain_unreachable")]
    work.error = ProtocolError("x", "y")
    with pytest.raises(ProtocolError):
        work.runs.run(commit=3)
    work.error = None
    work.runs.run(commit=3)
    work.runs.run(commit=3)
    assert len(work.ids) == 3


def test_run__receipts_of_messages_during_a_run__are_handled_together_by_the_next_one(work: Work):
    work.is_held = True
    first = start(lambda: work.runs.run(receipts=["a"]))
    assert work.begun.acquire(timeout=HANG_S)
    second = start(lambda: work.runs.run(receipts=["b"]))
    wait_for_waiter(work, second)
    work.runs.run(receipts=["d", "c"])
    work.may_end.release(2)
    for thread in (first, second):
        thread.join(HANG_S)
        assert not thread.is_alive()
    assert work.ids == [{"receipts": ["a"]}, {"receipts": ["b", "c", "d"]}]


def test_run__cumulative_job__runs_one_at_a_time_and_for_the_highest_object(work: Work):
    work.runs = JobRuns("draw_submissions", work.run, read_commit=lambda: 99, is_cumulative=True)
    work.is_held = True
    first = start(lambda: work.runs.run(block=5, commit=1))
    assert work.begun.acquire(timeout=HANG_S)
    second = start(lambda: work.runs.run(block=7, commit=2))
    wait_for_waiter(work, second)
    work.runs.run(block=6, commit=3)
    work.may_end.release(2)
    for thread in (first, second):
        thread.join(HANG_S)
        assert not thread.is_alive()
    assert work.ids == [{"block": 5}, {"block": 7}], "commits that a run has seen say nothing about its block"


def test_run__receipts_of_a_run_that_failed__are_in_the_next_one(work: Work):
    """One message stands for those that came during the run before it, and Celery retries that message alone."""
    work.error = TransientError("database_unavailable", "gone")
    with pytest.raises(TransientError):
        work.runs.run(receipts=["a", "b"])
    work.error = None
    work.runs.run(receipts=["a"])
    assert work.ids[-1] == {"receipts": ["a", "b"]}


def wait_for_waiter(work: Work, second: threading.Thread) -> None:
    """Wait until a message waits for the run under way."""
    deadline = time.monotonic() + HANG_S
    while not work.runs._turns[()].is_awaited:
        assert time.monotonic() < deadline
        second.join(0.001)


@pytest.mark.parametrize("later", [12, None])
def test_run__message_about_a_later_commit_than_the_one_that_waits__is_not_lost(work: Work, later: int | None):
    """The run under way covers the message that waits, but not the one that has returned because of it."""
    work.commit, work.is_held = 10, True
    first = start(work.runs.run)
    assert work.begun.acquire(timeout=HANG_S)
    second = start(lambda: work.runs.run(commit=9))
    wait_for_waiter(work, second)
    work.commit = 12
    work.runs.run(commit=later)
    work.may_end.release(2)
    for thread in (first, second):
        thread.join(HANG_S)
        assert not thread.is_alive()
    assert len(work.ids) == 2


def test_run__end_of_a_run__frees_the_object_and_forgets_it_at_once(work: Work):
    """Between the two, a message would run the object with the old turn, and a third one with a new turn."""
    lock = work.runs._lock
    seen = list[bool]()

    class Watched:
        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            seen.extend(turn.running.locked() for turn in work.runs._turns.values())
            lock.release()

    turns = work.runs._turns
    work.runs._lock = Watched()  # type: ignore[assignment]
    work.runs.run(epoch=1)
    assert turns == {}
    assert seen == [False, True, True], "begun, running, run; freed and forgotten in one"


def test_metrics__runs_and_failures__are_counted_and_few_failures_are_logged(work: Work):
    work.error = TransientError("chain_unreachable", "gone")
    with capture_logs() as logs:
        for _ in range(6):
            with pytest.raises(TransientError):
                work.runs.run()
        work.error = None
        work.runs.run()
        work.error = TransientError("chain_unreachable", "gone")
        with pytest.raises(TransientError):
            work.runs.run()
    assert len(logs) == 3, "the first, the fourth, and the first after a success"
    assert (work.runs.metrics.runs, work.runs.metrics.failures) == (8, 7)
    assert work.runs.metrics.seconds > 0
