"""End-to-end tests need Anvil."""

import pytest

from covey.devnet import find_anvil
from covey.errors import OperatorError


@pytest.fixture(scope="session", autouse=True)
def _anvil_is_there() -> None:
    try:
        find_anvil()
    except OperatorError as error:
        pytest.skip(reason=str(error))
