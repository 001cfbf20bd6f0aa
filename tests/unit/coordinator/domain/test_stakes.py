from dataclasses import replace

import pytest

from coordinator.domain import stakes
from coordinator.domain.stakes import Stake
from covey.chain.amounts import SMALLEST
from covey.errors import ProtocolError, TransientError
from tests.fakes.pool import POOL, STAKE_RULE, FakePool, make_address

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
    [
        (Stake(100, 0), 1, ""),
        (Stake(299, 0), 3, "0.01 CVT"),
        (Stake(300, 1), 3, "0.01 CVT"),
        (Stake(0, 60), 1, "1.6 CVT"),
    ],
)
def test_require_stake__free_stake__must_back_each_node(stake: Stake, nodes: int, missing: int):
    def require() -> None:
        stakes.require_stake(stake, rule=STAKE_RULE, contributor=OWNER, nodes=nodes)

    if not missing:
        require()
        return
    with pytest.raises(ProtocolError) as caught:
        require()
    assert caught.value.code == "stake_too_low"
    assert f'Run covey stake add "{missing}" --kind contributor --pool {POOL} with the key' in caught.value.message


def test_require_stake__message__has_tokens_and_no_smallest_units():
    with pytest.raises(ProtocolError) as caught:
        stakes.require_stake(Stake(150, 60), rule=STAKE_RULE, contributor=OWNER, nodes=2)
    assert caught.value.message.startswith(
        f"{OWNER} has staked 1.5 CVT, of which cases lock 0.6 CVT; its 2 node(s) require 2 CVT of free stake. Run "
    )


def test_require_stake__token_without_decimals_of_its_own__is_raw():
    rule = replace(STAKE_RULE, unit=SMALLEST)
    with pytest.raises(ProtocolError, match='Run covey stake add "50" --raw --kind contributor'):
        stakes.require_stake(Stake(50, 0), rule=rule, contributor=OWNER, nodes=1)
