"""What the readiness benchmark extrapolates, by hand."""

import pytest

from benchmarks.measurement import Measurement
from benchmarks.network.time_to_ready import build_paper

pytestmark = pytest.mark.unit


def test_build_paper__measured_times__transfer_and_work():
    values = {"seconds_to_ready.delta.590mbit": 1.5, "bound.delta.590mbit": 0.5, "bound.full.590mbit": 2.0}
    measured = [Measurement(name=name, value=value, unit="s", n=1) for name, value in values.items()]
    found = {each.name: each.value for each in build_paper(measured)}
    assert found["paper_transfer_seconds"] == pytest.approx(62e9 / 159 / 73.75e6)
    assert found["paper_speedup"] == pytest.approx(840 / (62e9 / 159 / 73.75e6))
    assert found["work_seconds_per_gb"] == pytest.approx(1.0 / (2 * 73.75e6) * 1e9)
