"""Votes on a page: hidden before the verdict, and afterwards with their numbers against the limits."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.db.page_queries import TurnItem
from coordinator.pages.evidence_views import ShownNumber, describe_votes, list_evidence
from covey.protocol.messages import Verdict
from covey.protocol.running_sums import ItemSum
from covey.protocol.thresholds import Pooled, Thresholds
from tests.fakes.pool import SIGNATURE, make_address, make_hash

pytestmark = pytest.mark.unit
VERDICT = Verdict(
    pool=cast(Any, 1),
    receipt_hash=make_hash("receipt"),
    work_key=make_hash("file"),
    validator=make_address("v"),
    outcome=2,
    reason=5,
    severity=2,
    units=0,
    evidence_hash=make_hash("evidence"),
    deadline=9,
)
LIMITS = Thresholds(exponent_max=3, logprob=Pooled(mean=0.5))
BUNDLE = SimpleNamespace(
    details={"window": 2, "exponent": 40},
    sums={"logprob": ItemSum(total=12.5, items=20)},
    engine=SimpleNamespace(name="hf", dtype="float32", hardware="cpu"),
)


def make_turn(**changes: Any) -> TurnItem:
    values = {"validator": make_address("v"), "full": True, "opened_at": 1.0, "commitment": make_hash("c")}
    return TurnItem(**(values | {"verdict": VERDICT, "signature": SIGNATURE, "lapsed": False} | changes))


def test_describe_votes__decided__shows_numbers_with_their_limits():
    (vote,) = describe_votes([make_turn()], {make_hash("evidence"): cast(Any, BUNDLE)}, LIMITS, is_decided=True)
    assert (vote.stage, vote.outcome, vote.reason, vote.hardware) == ("revealed", "reject", "proof", "hf float32, cpu")
    assert vote.numbers == (
        ShownNumber("window", "2", ""),
        ShownNumber("exponent", "40", "3"),
        ShownNumber("logprob_sum", "12.5", "10"),
    )


def test_describe_votes__stages__are_named_and_nothing_is_shown_before_the_decision():
    turns = [
        make_turn(),
        make_turn(verdict=None),
        make_turn(verdict=None, commitment=None),
        make_turn(verdict=None, commitment=None, validator=None),
        make_turn(lapsed=True),
    ]
    bundles = {make_hash("evidence"): cast(Any, BUNDLE)}
    votes = describe_votes(turns, bundles, LIMITS, is_decided=True)
    assert [vote.stage for vote in votes] == ["revealed", "committed", "taken", "open", "lapsed"]
    assert describe_votes(turns, bundles, LIMITS, is_decided=False) == ()
    assert list_evidence(turns, is_decided=False) == []
    assert list_evidence(turns, is_decided=True) == [make_hash("evidence")] * 2
