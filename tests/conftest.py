"""What holds for all tests: how they share processes, what waits for the full run, and no deadlines of hypothesis."""

import gc
import os

import pytest
from hypothesis import settings

settings.register_profile("covey", deadline=None)
settings.load_profile("covey")

HEAVY = ("slow", "e2e", "integration")
IS_FULL = os.environ.get("COVEY_FULL") == "1"
"""Whether this is the run of `make nightly`, with every full version."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests begin first, so that all processes end together.

    Tests of a file share its fixtures, so they stay in one process and in their order; walks, which share nothing and
    take long, are dealt out one by one.  Networks of many processes come one after another: two at once would take
    longer than that, as most of what they do is to look again.
    """
    if not IS_FULL:
        for item in items:
            if item.get_closest_marker("full") is not None:
                item.add_marker(pytest.mark.skip(reason="the full version: make nightly"))
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            is_walk = item.get_closest_marker("e2e") is not None
            is_network = is_walk and item.get_closest_marker("slow") is not None
            group = "networks" if is_network else item.nodeid if is_walk else str(item.path)
            item.add_marker(pytest.mark.xdist_group(group))
    weights = {}
    for item in items:
        marks = [place for place, name in enumerate(HEAVY) if item.get_closest_marker(name)]
        weights[item.path] = min(weights.get(item.path, len(HEAVY)), *marks, len(HEAVY))
    items.sort(key=lambda item: weights[item.path])


def pytest_collection_finish() -> None:
    """What collection has imported stays: the collection of garbage need not look through it after every few tests."""
    gc.freeze()
