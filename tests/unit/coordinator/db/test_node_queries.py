"""Queries over the nodes of contributors."""

import pytest

from tests.fakes.pool import FakePool, make_address

pytestmark = pytest.mark.unit


def test_count_others__itself_a_removed_one_and_those_of_others__are_not_counted(pool: FakePool):
    pool.register("a", "b", "c", "d", owner="o")
    pool.register("e", owner="p")
    pool.remove("d")
    with pool.database.read() as rows:
        assert rows.count_others(make_address("o"), make_address("a")) == 2
        assert rows.count_others(make_address("o"), make_address("new")) == 3
        assert rows.count_others(make_address("p"), make_address("e")) == 0
