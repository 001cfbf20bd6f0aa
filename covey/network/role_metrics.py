"""Metrics that worker, validator and trainer have in common, for Prometheus."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from covey.network.entry import Network
from covey.runtime.cycle import CycleMetrics, CycleResult
from covey.runtime.prometheus import ReadOnRequest, build_counter, build_gauge


def list_role_metrics(network: Network, cycles: CycleMetrics) -> list[Collector]:
    """Return the metrics of requests to the chain's node and of the cycles of a role."""
    return [*network.chain.metrics, ReadOnRequest(lambda: read_cycles(cycles))]


def read_cycles(cycles: CycleMetrics) -> Iterator[Metric]:
    """Yield the metrics of cycles."""
    outcomes: Iterable[str] = CycleResult
    counts = {name: cycles.counts[name] for name in outcomes}
    yield build_counter("covey_cycles", "Cycles by outcome.", counts, label="outcome")
    yield build_counter(
        "covey_cycle_errors", "Cycles that failed, by code of the error.", dict(cycles.errors), label="code"
    )
    yield build_counter("covey_cycle_seconds", "Time of all cycles and of the waits between them.", cycles.seconds)
    yield build_counter(
        "covey_busy_cycle_seconds", "Time of the cycles that have achieved something.", cycles.busy_seconds
    )
    yield build_gauge("covey_idle_ratio", "Share of the time in which nothing was achieved.", cycles.idle_ratio)
