"""What a process knows of the chain: validators, and which of them have enough stake for the court."""

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from coordinator import chain_state
from coordinator.chain_state import ChainState, is_about_state
from covey.chain import events
from covey.chain.structs import BondKind
from covey.protocol.ids import Address, PoolId
from covey.protocol.prices import ScheduledPrice
from tests.fakes.pool import make_address, make_hash

pytestmark = pytest.mark.unit
RICH, POOR, LATER = (make_address(name) for name in ("rich", "poor", "later"))
PRICES = (ScheduledPrice(reward_per_million=3, start=0),)


@pytest.mark.parametrize(("bond", "bonded"), [(0, {RICH, POOR}), (50, {RICH}), (51, set[Address]())])
def test_refresh__validators__active_ones_with_enough_stake_are_bonded(bond: int, bonded: set[Address]) -> None:
    staked = {RICH: 50, POOR: 49, LATER: 99}
    pools = SimpleNamespace(
        get_validators=lambda pool: [RICH, POOR, LATER],
        is_validator=lambda pool, account: account != LATER,
        get_prices=lambda pool: PRICES,
    )
    stakes = SimpleNamespace(stake_of=lambda pool, kind, account: staked[account] if kind is BondKind.VALIDATOR else 0)
    chain = ChainState(
        SimpleNamespace(pools=pools, stakes=stakes),  # type: ignore[arg-type]
        PoolId(1),
        validator_bond=bond,
    )
    chain.refresh()
    assert chain.active_validators == bonded
    assert chain.prices == PRICES
    assert chain.bonds == {each: staked[each] for each in (RICH, POOR, LATER)}


def test_is_about_state__events__prices_and_bonds_of_validators() -> None:
    def stake(kind: BondKind) -> events.Staked:
        return events.Staked(
            pool=PoolId(1), account=RICH, kind=int(kind), amount=1,
            block_number=1, block_hash=make_hash("1"), transaction_hash=make_hash("t"), log_index=0,
        )  # fmt: skip

    price = events.PriceSet(
        pool=PoolId(1), reward_per_million=5, start=9,
        block_number=1, block_hash=make_hash("1"), transaction_hash=make_hash("t"), log_index=0,
    )  # fmt: skip
    assert is_about_state(price, 1)
    assert not is_about_state(price, 2)
    assert is_about_state(stake(BondKind.VALIDATOR), 1)
    assert not is_about_state(stake(BondKind.CONTRIBUTOR), 1)


def test_report_outdated__validators_of_more_than_a_minute__are_logged_once_until_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=1000.0)
    monkeypatch.setattr(chain_state, "time", clock)
    pools = SimpleNamespace(get_validators=lambda _: [RICH], is_validator=lambda *_: True, get_prices=lambda _: PRICES)
    contracts = SimpleNamespace(pools=pools, stakes=SimpleNamespace(stake_of=lambda *_: 1))
    chain = ChainState(contracts, PoolId(1))  # type: ignore[arg-type]
    counts = []
    for wait in (60.0, 1.0, 1.0):
        chain.refresh(max_age_s=500.0)
        clock.now += wait
        with capture_logs() as logs:
            chain.report_outdated()
        counts.append(len(logs))
    assert counts == [0, 1, 0]
    chain.refresh()
    clock.now += 61.0
    with capture_logs() as logs:
        chain.report_outdated()
    assert [line["seconds"] for line in logs] == [61]
