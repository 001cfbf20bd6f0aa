"""The table of running sums: one row per node, with floats that come back bit for bit."""

import pytest

from coordinator.db.database import Database
from covey.protocol.running_sums import ItemSum
from tests.fakes.pool import FakePool, make_address

pytestmark = pytest.mark.unit
SUMS = {"validator": {"logprob": ItemSum(total=0.1 + 0.2, items=2**53 + 1), "lost": ItemSum(total=5e-324, items=0)}}


def test_require_running_sums__first_and_again__is_one_row(pool: FakePool):
    (node,) = pool.register("a")
    with pool.database.write() as rows:
        assert rows.get_running_sums(node) is None
        row = rows.require_running_sums(node)
        assert (row.submissions, row.by_validator, row.above) == (0, {}, "")
        row.by_validator, row.above = SUMS, "logprob"
    with pool.database.write() as rows:
        row = rows.require_running_sums(node)
        assert (row.by_validator, row.above) == (SUMS, "logprob")


def test_reset_running_sums__some_nodes__keeps_those_of_others(pool: FakePool, database: Database):
    pool.register("a", "b", "c")
    with database.write() as rows:
        for name in ("a", "b"):
            row = rows.require_running_sums(make_address(name))
            row.submissions, row.by_validator, row.above = 3, SUMS, "logprob"
        rows.reset_running_sums([make_address("a"), make_address("c")])
        rows.reset_running_sums([])
    with database.read() as rows:
        reset = rows.get_running_sums(make_address("a"))
        assert reset is not None
        assert (reset.submissions, reset.by_validator, reset.above) == (0, {}, "")
        assert rows.get_running_sums(make_address("c")) is None
        kept = rows.get_running_sums(make_address("b"))
        assert kept is not None
        assert kept.submissions == 3
