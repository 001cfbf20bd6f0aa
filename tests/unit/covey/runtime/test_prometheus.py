"""The text that Prometheus reads, parsed by its own library."""

import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import Counter, Gauge, values

from covey.errors import OperatorError, TransientError
from covey.runtime import prometheus
from covey.runtime.http import find_free_ports
from covey.runtime.prometheus import (
    FOLDER_VARIABLE,
    ReadOnRequest,
    build_counter,
    build_gauge,
    build_registry,
    empty_shared_folder,
    render,
    serve_metrics,
    share_values,
)
from covey.runtime.settings import MetricsSettings
from tests.fakes.exposition import read_metrics

pytestmark = pytest.mark.unit


def test_render__values_are_those_of_the_request():
    registry, steps = build_registry(), {"1": 7, "2": 2**40}
    registry.register(
        ReadOnRequest(lambda: [build_gauge("covey_step", "Step.", steps, label="pool"), build_counter("n", "N.", 3)])
    )
    expected = {("covey_step", "1"): 7, ("covey_step", "2"): 2.0**40, ("n_total", None): 3}
    assert expected.items() <= read_metrics(render(registry)).items()
    steps["1"] = 8
    assert read_metrics(render(registry))["covey_step", "1"] == 8
    assert b"# TYPE n_total counter\n" in render(registry)


def test_label_value__any_text__is_escaped():
    registry, text = build_registry(), 'a"b\\c\nd'
    registry.register(ReadOnRequest(lambda: [build_gauge("x", "X.", {text: 1}, label="name")]))
    assert read_metrics(render(registry))["x", text] == 1


def test_registries__do_not_mix__and_know_the_process():
    first, second = build_registry(), build_registry()
    Counter("covey_events", "Events.", registry=first).inc(2)
    assert read_metrics(render(first))["covey_events_total", None] == 2
    values = read_metrics(render(second))
    assert ("covey_events_total", None) not in values
    assert ("process_resident_memory_bytes", None) in values or not values


def test_read_on_request__source_is_away__hides_only_its_own():
    def refuse():
        yield build_gauge("half", "Half.", 1)
        raise TransientError("gone", "gone")

    registry = build_registry(ReadOnRequest(refuse), ReadOnRequest(lambda: [build_gauge("whole", "Whole.", 1)]))
    assert [registry.get_sample_value(name) for name in ("half", "whole")] == [None, 1]


def test_read_on_request__held__is_read_again_after_that_time_and_after_a_failure(monkeypatch: pytest.MonkeyPatch):
    now, reads, is_away = [100.0], [0], [False]
    monkeypatch.setattr(prometheus.time, "monotonic", lambda: now[0])

    def read():
        if is_away[0]:
            raise TransientError("gone", "gone")
        reads[0] += 1
        now[0] += 1.0  # That is what a look takes, so it is held for REST seconds.
        return [build_gauge("reads", "Reads.", reads[0])]

    registry = build_registry(ReadOnRequest(read, hold_s=5.0))

    def look() -> float | None:
        return registry.get_sample_value("reads")

    assert [look(), look()] == [1, 1]
    now[0] += prometheus.REST - 0.1
    assert look() == 1
    now[0] += 0.2
    assert look() == 2
    now[0] += 2 * prometheus.REST
    is_away[0] = True
    assert look() is None
    is_away[0] = False
    assert look() == 3


def test_share_values__two_names_and_a_restart__are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    folder = tmp_path / "metrics"
    folder.mkdir()
    (folder / "counter_old.db").write_bytes(b"of an earlier start")
    empty_shared_folder(folder)
    for name, count, waiting in (("a", 2, 5), ("b", 3, 1), ("a", 4, 0)):  # The second "a" is started again.
        share_values(folder, name)
        counter = Counter("covey_events", "Events.", ["kind"], registry=None)
        gauge = Gauge("covey_waiting", "Waiting.", multiprocess_mode="sum", registry=None)
        counter.labels("x").inc(count)
        gauge.set(waiting)
    found = read_metrics(render(build_registry(counter, gauge)))
    assert (found["covey_events_total", "x"], found["covey_waiting", None]) == (9, 1)
    values.ValueClass.close_all_files()


def test_serve_metrics__port__answers_until_the_block_ends_and_is_refused_twice():
    (port,) = find_free_ports(1)
    settings = MetricsSettings(metrics_port=port)
    with serve_metrics(settings, ReadOnRequest(lambda: [build_gauge("covey_step", "Step.", 3)])):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert read_metrics(answer.read())["covey_step", None] == 3
        with pytest.raises(OperatorError, match="address_in_use"), serve_metrics(settings):
            pass
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=10)


def test_serve_metrics__no_port__listens_nowhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prometheus, "start_http_server", None)
    with serve_metrics(MetricsSettings()):
        pass
