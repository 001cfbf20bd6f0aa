"""The text that Prometheus reads, parsed by its own library."""

import pytest
from prometheus_client import Counter

from covey.runtime.prometheus import ReadOnRequest, build_counter, build_gauge, build_registry, render
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
