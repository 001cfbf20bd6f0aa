"""The syntax trees of all modules are kept for the tests of one file only, because they take hundreds of MB."""

from collections.abc import Iterator

import pytest

from tests.architecture import tree


@pytest.fixture(autouse=True, scope="module")
def forget_trees() -> Iterator[None]:
    yield
    tree.parse.cache_clear()
    tree.list_imports.cache_clear()
