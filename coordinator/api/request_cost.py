"""What a request for a list costs: a viewer that asks for many rows uses up its rate sooner."""

from starlette.datastructures import QueryParams
from starlette.types import Scope

ROWS_PER_REQUEST = 50
"""Number of rows that cost as much as one request."""


def compute_cost(scope: Scope, *, usual: int) -> float:
    """Return the number of requests that a request counts as. `usual` is the number of rows if it names none."""
    limit = QueryParams(scope["query_string"]).get("limit", "").lstrip("0")
    rows = int(limit) if limit.isascii() and limit.isdecimal() and len(limit) < 6 else usual
    return max(1.0, min(rows, 200) / ROWS_PER_REQUEST)
