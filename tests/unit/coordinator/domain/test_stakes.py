import pytest

from coordinator.domain import stakes
from coordinator.domain.stakes import Stake
from covey.errors import ProtocolError, TransientError
from tests.fakes.pool import POOL, FakePool, make_address, make_terms

pytestmark = pytest.mark.unit
OWNER = make_address("owner")


def test_record_stake__older_block__does_not_replace_a_newer_one(pool: FakePool):
    with pool.database.write() as rows:
        stakes.record_stake(rows, OWNER, Stake(10**30, 5), block=7)
        stakes.record_stake(rows, OWNER, Stake(1, 0), block=6)
    with pool.database.read() as rows:
        assert stakes.get_stake(rows.get_contributor(OWNER)) == Stake(10**30, 5)
    with pool.database.write() as rows:
        stakes.record_stake(rows, OWNER, Stake(2, 0), block=7)
        assert stakes.get_stake(rows.get_contributor(OWNER)) == Stake(2, 0)


def test_get_stake__not_looked_up__is_not_taken_for_none(pool: FakePool):
    with pool.database.write() as rows:
        for row in (None, rows.require_contributor(OWNER)):
            with pytest.raises(TransientError) as caught:
                stakes.get_stake(row)
            assert caught.value.code == "stake_unknown"


@pytest.mark.parametrize(
    ("stake", "nodes", "missing"),
    [(Stake(100, 0), 1, 0), (Stake(299, 0), 3, 1), (Stake(300, 1), 3, 1), (Stake(0, 60), 1, 160)],
)
def test_require_stake__free_stake__must_back_each_node(stake: Stake, nodes: int, missing: int):
    def require() -> None:
        stakes.require_stake(stake, terms=make_terms(), pool=POOL, contributor=OWNER, nodes=nodes)

    if not missing:
        require()
        return
    with pytest.raises(ProtocolError) as caught:
        require()
    assert caught.value.code == "stake_too_low"
    assert f"Run covey stake add {missing} --raw --pool {POOL}" in caught.value.message
