"""End-to-end tests require Anvil.

They kill processes that are connected to them. What such connections leave is collected here, so that no later test is
blamed for it.
"""

import gc
from collections.abc import Iterator

import pytest

from covey.devnet.anvil import find_anvil
from covey.errors import OperatorError
from tests.fakes.transaction_watch import calls_while_writing

__all__ = ["calls_while_writing"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "e2e" in item.keywords:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session", autouse=True)
def _anvil_is_there() -> None:
    try:
        find_anvil()
    except OperatorError as error:
        pytest.skip(reason=str(error))


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()
