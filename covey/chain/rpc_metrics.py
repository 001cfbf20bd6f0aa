"""Durations and failures of requests to the chain's node, for Prometheus."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

from covey.errors import CoveyError
from covey.runtime.prometheus import LATENCY_SECONDS


class RpcMetrics:
    """Example: `with metrics.measure("eth_call"): ...`."""

    def __init__(self) -> None:
        self.seconds = Histogram(
            "covey_rpc_seconds",
            "Duration of a request to the chain's node, by method.",
            ["method"],
            buckets=LATENCY_SECONDS,
            registry=None,
        )
        self.errors = Counter(
            "covey_rpc_errors",
            "Requests to the chain's node that failed, by code of the error.",
            ["code"],
            registry=None,
        )

    def __iter__(self) -> Iterator[Collector]:
        """Iterate over all metrics."""
        yield from (self.seconds, self.errors)

    @contextmanager
    def measure(self, method: str) -> Iterator[None]:
        """Measure the request in the block, and count the CoveyError that it raises."""
        begun = time.monotonic()
        try:
            yield
        except CoveyError as error:
            self.errors.labels(error.code).inc()
            raise
        finally:
            self.seconds.labels(method).observe(time.monotonic() - begun)
