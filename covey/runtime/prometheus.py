"""Metrics of one application in the text format of Prometheus, for its path /metrics.

Each application has a registry of its own, so that several in one process do not mix. Values that it has anyway are
read when they are requested (`ReadOnRequest`). Others are a `Counter`, `Gauge` or `Histogram` of prometheus_client,
made without a registry and given to `build_registry`. Label values must be bounded and must not come from peers.

Processes that serve together share a folder for the values of the latter (`share_values`), and one of them serves their
sums.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler
from threading import Lock
from typing import cast

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest, start_http_server, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from covey.errors import CoveyError, OperatorError
from covey.runtime.settings import MetricsSettings

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable in which prometheus_client looks for the folder of shared values. Subprocesses inherit it."""
REST = 20
"""Metrics that are expensive to read are kept for this many times what that took."""
REQUEST_SECONDS = 10.0
"""Maximum time in seconds to wait for the request of a client of the server for metrics."""
LATENCY_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 20.0, 60.0)
"""Upper bounds in seconds of the buckets of histograms of durations."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of what `render` returns."""


class ReadOnRequest(Collector):
    """Metrics that are read with each request. Example: `registry.register(ReadOnRequest(server.read_metrics))`.

    Metrics whose source does not answer are absent: a database or a node that is away must not hide all others.
    """

    def __init__(self, read: Callable[[], Iterable[Metric]], *, hold_s: float = 0.0) -> None:
        """`read` raises CoveyError if its source does not answer. Its metrics are kept for `hold_s` seconds. If that is
        above 0, they are kept for at least REST times what reading them took.
        """
        self._read, self._hold_s = read, hold_s
        self._metrics: Sequence[Metric] = ()
        self._expires_at = 0.0
        self._reading = Lock()

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics."""
        with self._reading:
            begun = time.monotonic()
            if begun >= self._expires_at:
                try:
                    self._metrics = tuple(self._read())
                except CoveyError:
                    self._metrics = ()
                else:
                    now = time.monotonic()
                    self._expires_at = now + max(self._hold_s, REST * (now - begun)) if self._hold_s else 0.0
            metrics = self._metrics
        yield from metrics


def build_registry(*metrics: Collector) -> CollectorRegistry:
    """Return a registry with these metrics, and with the memory, CPU time and open files of this process.

    Where processes share their values, counters, gauges and histograms are those of all these processes.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    folder = os.environ.get(FOLDER_VARIABLE)
    for metric in metrics:
        if not (folder and isinstance(metric, MetricWrapperBase)):
            registry.register(metric)
    if folder:
        MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]
    return registry


def empty_shared_folder(folder: Path) -> Path:
    """Make the folder of shared values, without those of an earlier start, and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def share_values(folder: Path, name: str) -> None:
    """Keep the values of counters, gauges and histograms that are made from now on in a folder.

    `name` is that of this process among those that share the folder, without an underscore. A process that is started
    again continues the counts of its name. Call it before any such metric is made.
    """
    os.environ[FOLDER_VARIABLE] = str(folder)
    values.ValueClass = values.MultiProcessValue(lambda: name)  # type: ignore[no-untyped-call]


@contextmanager
def serve_metrics(settings: MetricsSettings, *metrics: Collector) -> Iterator[None]:
    """Answer `GET /metrics` by a thread within the block, with the registry of these metrics.

    Nothing is served if `metrics_port` is 0. Raises OperatorError("address_in_use").
    """
    host, port = settings.metrics_host, settings.metrics_port
    if port == 0:
        yield
        return
    try:
        server, thread = start_http_server(port, host, build_registry(*metrics))
    except OSError as error:
        raise OperatorError(
            "address_in_use",
            f"cannot listen on {host}:{port}: {error.strerror}",
            fix="Choose a different metrics_host or metrics_port",
        ) from error
    handler = cast("type[StreamRequestHandler]", server.RequestHandlerClass)
    server.RequestHandlerClass = type("MetricsHandler", (handler,), {"timeout": REQUEST_SECONDS})
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
