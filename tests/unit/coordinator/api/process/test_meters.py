import pytest

from coordinator.api.process.meters import Meters
from covey.runtime.prometheus import build_registry

pytestmark = pytest.mark.unit


def test_note_answer__routes_and_statuses__are_counted_apart():
    meters = Meters()
    registry = build_registry(*meters)
    for status, seconds in ((200, 0.004), (204, 0.3), (500, 70.0)):
        meters.note_answer("GET /v1/pool", status=status, seconds=seconds)
    meters.note_answer("none", status=404, seconds=0.0)
    answers = [registry.get_sample_value("covey_answers_total", {"status": kind}) for kind in ("2xx", "4xx", "5xx")]
    assert answers == [2, 1, 1]

    def count(bound: str) -> float | None:
        return registry.get_sample_value("covey_request_seconds_bucket", {"route": "GET /v1/pool", "le": bound})

    assert [count(bound) for bound in ("0.0025", "0.005", "0.25", "0.5", "60.0", "+Inf")] == [0, 1, 1, 2, 2, 3]
