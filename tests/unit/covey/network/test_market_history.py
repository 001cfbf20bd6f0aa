"""Facts about an account, counted by hand."""

from itertools import count
from types import SimpleNamespace

import pytest

from covey.chain import events
from covey.chain.structs import BondKind
from covey.network.market_history import (
    AccountHistory,
    ContributorFacts,
    OperatorFacts,
    ValidatorFacts,
    summarize_history,
)
from tests.fakes.account import ALICE, BOB, HASH

pytestmark = pytest.mark.unit
OTHER = "0x" + "cd" * 32
NUMBERS = count()


def make(kind: type, /, **values: object) -> events.Event:
    place = {"block_number": next(NUMBERS), "block_hash": HASH, "transaction_hash": HASH, "log_index": 0}
    return kind(**place, **values)


def open_case(receipt_hash: str, contributor: str) -> events.Event:
    return make(
        events.CaseOpened, receipt_hash=receipt_hash, pool=1, node=BOB, contributor=contributor, reason=1, amount=1,
        veto_until=1,
    )  # fmt: skip


def post(pool: int, epoch: int, units: int) -> events.Event:
    header = SimpleNamespace(units=units)
    return make(events.EpochPosted, pool=pool, epoch=epoch, header=header, final_at=0, reward=0, cumulative=0)


SEEN = [
    make(events.PoolCreated, pool=1, operator=ALICE, params_hash=HASH, params=""),
    make(events.PoolCreated, pool=2, operator=BOB, params_hash=HASH, params=""),
    make(events.NodeRegistered, pool=2, node=BOB, contributor=ALICE),
    make(events.NodeRegistered, pool=1, node=BOB, contributor=BOB),
    make(events.Staked, pool=2, account=ALICE, kind=BondKind.VALIDATOR, amount=5),
    make(events.Staked, pool=1, account=ALICE, kind=BondKind.CONTRIBUTOR, amount=5),
    post(1, 0, 100),
    post(2, 0, 1000),
    post(1, 1, 10),
    make(events.EpochDisabled, pool=1, epoch=1),
    post(1, 2, 5),
    make(events.EpochDisabled, pool=2, epoch=0),
    make(events.OmissionChallenged, pool=1, receipt_hash=HASH, contributor=BOB),
    make(events.OmissionUpheld, pool=1, receipt_hash=HASH, contributor=BOB, amount=3),
    make(events.OmissionUpheld, pool=2, receipt_hash=OTHER, contributor=ALICE, amount=3),
    make(events.RewardClaimed, pool=2, epoch=0, contributor=ALICE, amount=3),
    open_case(HASH, ALICE),
    open_case(OTHER, BOB),
    make(events.CaseVetoed, receipt_hash=HASH, pool=1, node=BOB),
    make(events.CaseLapsed, receipt_hash=OTHER, pool=1, node=BOB),
    make(events.CaseExecuted, receipt_hash=OTHER, pool=1, node=BOB, contributor=BOB, amount=1),
    make(events.SignerSlashed, receipt_hash=HASH, pool=1, validator=BOB, amount=1),
    make(events.PoolEnded, pool=1, closes_at=9),
]


def test_summarize_history__events_of_two_pools__are_counted_for_the_account_alone():
    assert summarize_history(SEEN, ALICE) == AccountHistory(
        operator=OperatorFacts(
            pools=1, ended=1, epochs=3, disabled_epochs=1, accepted_units=105, omissions_challenged=1,
            omissions_upheld=1,
        ),
        contributor=ContributorFacts(pools=1, nodes=1, claims=1, cases=1, vetoed_cases=1, omissions_upheld=1),
        validator=ValidatorFacts(pools=1),
    )  # fmt: skip
    assert summarize_history(SEEN, BOB) == AccountHistory(
        operator=OperatorFacts(pools=1, epochs=1, disabled_epochs=1, omissions_upheld=1),
        contributor=ContributorFacts(pools=1, nodes=1, cases=1, slashes=1, lapsed_cases=1, omissions_upheld=1),
        validator=ValidatorFacts(slashes=1),
    )


def test_summarize_history__nothing__is_all_zero():
    assert summarize_history([], ALICE) == AccountHistory(
        operator=OperatorFacts(), contributor=ContributorFacts(), validator=ValidatorFacts()
    )
