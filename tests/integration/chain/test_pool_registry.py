"""Price, roles and heir of a pool on a chain: the pure rule of prices agrees with the contract, and events are read."""

import pytest

from covey.chain import events
from covey.chain.structs import BondKind, PoolRole
from covey.errors import ProtocolError
from covey.protocol.ids import ZERO_ADDRESS
from covey.protocol.prices import compute_start, find_price
from tests.integration.chain.making import read_events, without_place

pytestmark = pytest.mark.integration


def test_set_price__raised_and_lowered__holds_as_the_rule_says(chain):
    pool, pools = chain.open_pool(), chain.contracts.pools
    for price in (4_000_000, 1, 9_000_000):
        present = pools.get_terms(pool).reward_per_million
        chain.send("operator", pools.set_price(pool, price))
        newest, now = pools.get_prices(pool)[-1], chain.now()
        start = compute_start(present=present, price=price, now=now, challenge_window=10, unbond_window=20)
        assert (newest.reward_per_million, newest.start) == (price, start)
        assert without_place(read_events(chain)[-1]) == (events.PriceSet, pool, price, start)
        chain.advance(25)
    prices = pools.get_prices(pool)
    assert [each.reward_per_million for each in prices] == [3_000_000, 4_000_000, 1, 9_000_000]
    for each in prices:
        for time in (each.start, max(0, each.start - 1)):
            assert pools._read("priceAt", pool, time) == find_price(prices, time)


def test_propose_role__signer_and_operator__pass_on_and_keep_bond_and_promises(chain):
    pool, pools = chain.open_pool(), chain.contracts.pools
    chain.bond("operator", pool, BondKind.OPERATOR, 500)
    before, heir = chain.now(), chain.address("deployer")
    chain.send("operator", pools.propose_role(pool, PoolRole.SIGNER, chain.address("node")))
    assert without_place(read_events(chain)[-1])[:4] == (events.RoleProposed, pool, 1, chain.address("node"))
    chain.send("operator", pools.propose_role(pool, PoolRole.OPERATOR, chain.address("contributor")))
    holder = pools.get_role(pool, PoolRole.SIGNER)
    assert (holder.account, holder.next) == (chain.address("operator"), chain.address("node"))
    assert pools.signer_of(pool) == chain.address("operator")
    chain.advance(25)
    assert pools.signer_of(pool) == pools.get_terms(pool).signer == chain.address("node")
    assert pools.signer_at(pool, before) == chain.address("operator")
    assert pools.get_role(pool, PoolRole.SIGNER).next == ZERO_ADDRESS
    with pytest.raises(ProtocolError, match="NotOperator"):
        chain.send("operator", pools.set_heir(pool, heir))
    chain.send("contributor", pools.set_heir(pool, heir))
    assert without_place(read_events(chain)[-1]) == (events.HeirSet, pool, heir)
    chain.send("arbiter", pools.end_pool(pool))
    chain.advance(100)
    token, count = chain.contracts.token, chain.contracts.token.balance_of(heir)
    chain.send("node", chain.contracts.ledger.refund_pool(pool))
    chain.send("node", chain.contracts.stakes.withdraw(pool, BondKind.OPERATOR))
    assert token.balance_of(heir) - count == 1_000_000 + 500
