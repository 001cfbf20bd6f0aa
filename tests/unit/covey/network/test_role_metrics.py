from collections import Counter

import pytest

from covey.network.role_metrics import read_cycles
from covey.runtime.cycle import CycleMetrics
from covey.runtime.prometheus import ReadOnRequest, build_registry

pytestmark = pytest.mark.unit


def test_read_cycles__outcomes_and_codes__are_apart():
    counts = Counter({"done": 3, "retry": 2})
    cycles = CycleMetrics(counts=counts, errors=Counter({"no_task": 2}), seconds=8.0, busy_seconds=2.0)
    registry = build_registry(ReadOnRequest(lambda: read_cycles(cycles)))
    outcomes = {name: registry.get_sample_value("covey_cycles_total", {"outcome": name}) for name in ("done", "idle")}
    assert outcomes == {"done": 3, "idle": 0}
    assert registry.get_sample_value("covey_cycle_errors_total", {"code": "no_task"}) == 2
    assert registry.get_sample_value("covey_idle_ratio") == 0.75
    assert counts["done"] == 3, "what is read is a copy"
