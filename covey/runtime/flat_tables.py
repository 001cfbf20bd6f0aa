"""Nested tables of settings and results as one table with dotted names."""

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(values: Mapping[str, Any], *, splits_lists: bool = False) -> dict[str, Any]:
    """Return the values of all tables by dotted name. An empty table has none.

    With `splits_lists`, items of lists have their number as name. Example: `flatten({"optim": {"betas": [0.9, 0.99]}})`
    is {"optim.betas": [0.9, 0.99]}, or with split lists {"optim.betas.0": 0.9, "optim.betas.1": 0.99}.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        table = dict(enumerate(value)) if splits_lists and isinstance(value, list) else value
        if isinstance(table, Mapping):
            inner = flatten({str(key): each for key, each in table.items()}, splits_lists=splits_lists)
            flat |= {f"{name}.{key}": each for key, each in inner.items()}
        else:
            flat[name] = value
    return flat


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name and both values where two flat tables differ, by name. A missing value is None."""
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield name, before.get(name), now.get(name)
