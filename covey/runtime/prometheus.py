"""Metrics of one application in the text format of Prometheus, for its path /metrics.

Each application has a registry of its own, so that several in one process do not mix. Values that it has anyway are
read when they are requested (`ReadOnRequest`). Others are a `Counter` or `Gauge` of prometheus_client in the registry.
Label values must be bounded and must not come from peers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of what `render` returns."""


class ReadOnRequest(Collector):
    """Metrics that are read with each request. Example: `registry.register(ReadOnRequest(server.read_metrics))`."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics."""
        yield from self._read()


def build_registry() -> CollectorRegistry:
    """Return a registry with the memory, CPU time and open files of this process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """Return all metrics of a registry in the text format of Prometheus."""
    return generate_latest(registry)


def build_counter(name: str, text: str, values: Mapping[str, float] | float, *, label: str = "") -> Metric:
    """Return a counter. `values` are by the value of `label`. A single value has no label.

    Example: `build_counter("covey_requests", "Requests.", {"ok": 3, "failed": 0}, label="outcome")`.
    """
    return _fill(CounterMetricFamily(name, text, labels=[label] if label else []), values)


def build_gauge(name: str, text: str, values: Mapping[str, float] | float, *, label: str = "") -> Metric:
    """Return a gauge. `values` are those of `build_counter`."""
    return _fill(GaugeMetricFamily(name, text, labels=[label] if label else []), values)


def _fill(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float] | float
) -> CounterMetricFamily | GaugeMetricFamily:
    if isinstance(values, Mapping):
        for value_of_label, value in values.items():
            family.add_metric([value_of_label], value)
    else:
        family.add_metric([], values)
    return family
