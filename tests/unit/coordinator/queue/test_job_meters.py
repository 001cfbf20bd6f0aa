import time

import pytest

from coordinator.queue.job_meters import JobMeters
from coordinator.queue.job_runs import JobRuns
from covey.runtime.prometheus import build_registry

pytestmark = pytest.mark.unit


def test_runs__success_and_failure__are_counted_by_job():
    meters, fails = JobMeters(), [False, True]

    def job() -> None:
        if fails.pop(0):
            raise ValueError("gone")

    runs = JobRuns("assign_tasks", job, read_commit=lambda: 1, meters=meters)
    before = time.time()
    runs.run()
    with pytest.raises(ValueError, match="gone"):
        runs.run()
    registry = build_registry(*meters)
    label = {"job_name": "assign_tasks"}
    assert registry.get_sample_value("covey_job_seconds_count", label) == 2
    assert registry.get_sample_value("covey_job_failures_total", label) == 1
    at = registry.get_sample_value("covey_job_success_timestamp_seconds", label)
    assert at is not None
    assert before <= at <= time.time()


def test_note_message__times__are_lags_of_at_least_0_and_absent_without_one():
    meters = JobMeters()
    for sent_at in (None, time.time() - 3.0, time.time() + 5.0):  # The clock of the last sender is ahead.
        meters.note_message("settle", sent_at=sent_at)
    registry = build_registry(*meters)

    def count(bound: str) -> float | None:
        return registry.get_sample_value("covey_job_lag_seconds_bucket", {"job_name": "settle", "le": bound})

    assert [count("0.001"), count("2.5"), count("5.0"), count("+Inf")] == [1, 1, 2, 2]
