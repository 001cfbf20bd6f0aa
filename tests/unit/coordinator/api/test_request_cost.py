"""What a request for a list costs."""

import pytest

from coordinator.api.request_cost import compute_cost

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("query", "cost"),
    [("limit=200", 4.0), ("limit=99999", 4.0), ("limit=1", 1.0), ("limit=-5", 2.0), ("limit=\u0665", 2.0), ("", 2.0)],
)
def test_compute_cost__rows_that_are_asked_for__count(query: str, cost: float):
    assert compute_cost({"query_string": query.encode("utf-8")}, usual=100) == cost
