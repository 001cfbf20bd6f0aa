"""Rules for all tests: how they are distributed over processes, which ones only `make nightly` runs, what a run says at
its end, and no deadlines for hypothesis.
"""

import ctypes
import gc
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from covey.engines.cpu_tuning import make_products_repeatable
from tests.run_report import RunReporter

settings.register_profile("covey", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("covey")

HEAVY = ("slow", "e2e", "integration")
IS_FULL = os.environ.get("COVEY_FULL") == "1"
"""Whether all versions run, as in `make nightly`."""


def pytest_configure(config: pytest.Config) -> None:
    make_products_repeatable()  # Before any test computes: it is too late once a test builds an engine.
    config.pluginmanager.register(RunReporter(config), "run report")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip full versions unless all run, and start long tests first, so that all processes end at about the same time.

    Otherwise the order is random, of files and of the tests in each (pytest-randomly).
    """
    weights = {}
    for item in items:
        if item.get_closest_marker("full") is not None and not IS_FULL:
            item.add_marker(pytest.mark.skip(reason="this is the full version, which make nightly runs"))
        marks = [place for place, name in enumerate(HEAVY) if item.get_closest_marker(name)]
        weights[item.path] = min(weights.get(item.path, len(HEAVY)), *marks, len(HEAVY))
    items.sort(key=lambda item: weights[item.path])


def pytest_collection_finish() -> None:
    """Freeze what the collection imported, so that the garbage collector does not scan it after every few tests."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def state_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all state folders."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(autouse=True)
def own_state_folder(state_folders: Path) -> Iterator[None]:
    """Keep locks and outboxes of commands out of the user's home, and out of other tests.

    A chain under test goes back to where it was, and an outbox would send the transactions that are gone then again.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state_folders / secrets.token_hex(8)))
        yield


@pytest.fixture(autouse=True, scope="module")
def return_memory() -> Iterator[None]:
    """Return freed memory to the system after each file, because glibc and Arrow keep it for their next use."""
    yield
    gc.collect()
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # Another C library does not have this function.
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True)
def keep_log_settings() -> Iterator[None]:
    """Undo what a command under test has configured, because another test captures logs of all levels."""
    settings = structlog.get_config()
    yield
    structlog.configure(**settings)
