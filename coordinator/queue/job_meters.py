"""Durations, failures and lags of the jobs of a process, for Prometheus."""

import time
from collections.abc import Iterator

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from covey.runtime.prometheus import LATENCY_SECONDS

LABEL = "job_name"
"""Label with the name of a job. Prometheus uses the label "job" itself."""


class JobMeters:
    """Example: `meters.note_run("assign_tasks", seconds=0.2, has_failed=False)`."""

    def __init__(self) -> None:
        self.seconds = Histogram(
            "covey_job_seconds", "Duration of a run of a job.", [LABEL], buckets=LATENCY_SECONDS, registry=None
        )
        self.lag_seconds = Histogram(
            "covey_job_lag_seconds",
            "Time from a message about a job until its run may begin, on the clocks of both machines.",
            [LABEL],
            buckets=LATENCY_SECONDS,
            registry=None,
        )
        self.failures = Counter("covey_job_failures", "Runs of a job that raised an error.", [LABEL], registry=None)
        self.succeeded = Gauge(
            "covey_job_success_timestamp_seconds",
            "Unix time at which the job has last succeeded.",
            [LABEL],
            multiprocess_mode="max",
            registry=None,
        )

    def __iter__(self) -> Iterator[Collector]:
        """Iterate over all metrics."""
        yield from (self.seconds, self.lag_seconds, self.failures, self.succeeded)

    def note_message(self, job: str, *, sent_at: float | None) -> None:
        """Note that a message has come. `sent_at` is its Unix time, or None if it does not say so."""
        if sent_at is not None:
            self.lag_seconds.labels(job).observe(max(0.0, time.time() - sent_at))

    def note_run(self, job: str, *, seconds: float, has_failed: bool) -> None:
        """Note the end of a run."""
        self.seconds.labels(job).observe(seconds)
        if has_failed:
            self.failures.labels(job).inc()
        else:
            self.succeeded.labels(job).set_to_current_time()
