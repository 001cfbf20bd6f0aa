"""What a watcher does, by what it sees. Times are seconds of the chain."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from covey.chain.contracts import CASE_GRACE
from covey.chain.structs import Accusation, ChallengeState, OnChainCaseState
from covey.network.equivocations import Equivocation
from covey.network.own_receipts import ReceiptFinding
from covey.network.watch_steps import (
    MAX_CHALLENGES,
    MISSING,
    CheckedEpoch,
    PromisedReceipt,
    WatchedPool,
    is_sound,
    list_reports,
    list_steps,
)
from tests.fakes.account import ALICE, BOB, HASH

pytestmark = pytest.mark.unit


def see(now: int = 1000, **changes: object) -> WatchedPool:
    values: dict[str, object] = {
        "now": now, "epochs": [], "receipts": [], "cases": [], "false_verdicts": [], "claimable": None,
        "claimed": 0, "ether": 0, "attesters": {}, "equivocations": {}, "findings": [], "credits": {},
        "contributor": ALICE, "is_arbiter": False,
    }  # fmt: skip
    return WatchedPool(**values | changes)


def verbs(seen: WatchedPool) -> list[str]:
    return [f"{step.verb} {step.about}" for step in list_steps(seen)]


@pytest.mark.parametrize(("earned", "claimed", "expected"), [(5, 4, ["claim 7"]), (5, 5, []), (5, 6, [])])
def test_list_steps__earned__is_claimed_once(earned: int, claimed: int, expected: list[str]):
    seen = see(claimable=SimpleNamespace(epoch=7, cumulative=earned), claimed=claimed)
    assert verbs(seen) == expected
    assert verbs(see()) == []


@pytest.mark.parametrize(
    ("state", "answer_by", "due_by", "included", "expected"),
    [
        (ChallengeState.NONE, 0, 999, False, f"challenge {HASH}"),
        (ChallengeState.NONE, 0, 1000, False, None),
        (ChallengeState.NONE, 0, 899, False, None),  # too late: 100 s
        (ChallengeState.NONE, 0, 900, False, f"challenge {HASH}"),
        (ChallengeState.NONE, 0, 950, True, None),
        (ChallengeState.OPEN, 1001, 950, False, None),
        (ChallengeState.OPEN, 1000, 950, False, f"resolve {HASH}"),
        (ChallengeState.UPHELD, 0, 950, False, None),
        (ChallengeState.ANSWERED, 0, 950, False, f"challenge {HASH}"),  # the epoch that answered was disabled
    ],
)
def test_list_steps__receipt__is_challenged_and_resolved_in_time(
    state: ChallengeState, answer_by: int, due_by: int, included: bool, expected: str | None
):
    receipt = PromisedReceipt(
        receipt_hash=HASH,
        due_by=due_by,
        challengeable_until=due_by + 100,
        is_included=included,
        challenge=SimpleNamespace(state=state, answer_by=answer_by),
    )
    assert verbs(see(receipts=[receipt])) == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("state", "veto_until", "contributor", "expected"),
    [
        (OnChainCaseState.LOCKED, 1001, BOB, None),
        (OnChainCaseState.LOCKED, 1000, BOB, "execute"),
        (OnChainCaseState.LOCKED, 1001 - CASE_GRACE, BOB, "execute"),
        (OnChainCaseState.LOCKED, 1000 - CASE_GRACE, BOB, None),
        (OnChainCaseState.LOCKED, 1000 - CASE_GRACE, ALICE, "lapse"),
        (OnChainCaseState.VETOED, 900, BOB, None),
        (OnChainCaseState.SLASHED, 900, BOB, None),
    ],
)
def test_list_steps__case__is_executed_until_it_lapses(
    state: OnChainCaseState, veto_until: int, contributor: str, expected: str | None
):
    accusation = Accusation(receipt_hash=HASH, pool=1, node=BOB, contributor=contributor)
    seen = see(cases=[(accusation, SimpleNamespace(state=state, veto_until=veto_until))])
    assert verbs(seen) == ([] if expected is None else [f"{expected} {HASH}"])


@pytest.mark.parametrize(
    ("trouble", "until", "is_arbiter", "expected"),
    [
        ("false_rewards", 1100, True, ["disable 3"]),
        ("false_rewards", 1100, False, []),
        ("false_rewards", 1000, True, []),
        (MISSING, 1051, True, []),  # half of the window of 100 s is left for the file to appear
        (MISSING, 1050, True, ["disable 3"]),
        ("", 1100, True, []),
    ],
)
def test_list_steps__false_epoch__is_disabled_by_its_arbiter_in_the_window(
    trouble: str, until: int, is_arbiter: bool, expected: list[str]
):
    epochs = [
        CheckedEpoch(record=SimpleNamespace(epoch=number), disable_until=until, challenge_window=100, trouble=trouble)
        for number in (3, 4)
    ]
    assert verbs(see(epochs=epochs, is_arbiter=is_arbiter)) == expected


def test_list_steps__ether__is_withdrawn():
    assert verbs(see(ether=1)) == [f"withdraw-ether {ALICE}"]


@pytest.mark.parametrize(("is_accept", "verb"), [(True, "slash-accept"), (False, "slash-signer")])
def test_list_steps__verdict_that_a_case_refuted__is_slashed_for(is_accept: bool, verb: str):
    accusation = SimpleNamespace(receipt_hash=HASH)
    false = SimpleNamespace(accusation=accusation, verdict=SimpleNamespace(validator=BOB), is_accept=is_accept)
    assert verbs(see(false_verdicts=[false])) == [f"{verb} {HASH} {BOB}"]


def test_list_steps__attester_of_a_false_epoch__is_slashed():
    assert verbs(see(attesters={f"{HASH} {BOB}": 3})) == [f"slash-attester {HASH} {BOB}"]


def test_list_steps__bond_was_too_small_and_has_grown__is_resolved_again():
    challenge = SimpleNamespace(state=ChallengeState.UPHELD, answer_by=900)
    receipt = PromisedReceipt(
        receipt_hash=HASH, due_by=800, challengeable_until=2000, is_included=False, challenge=challenge, payable=3
    )
    assert verbs(see(receipts=[receipt])) == [f"resolve {HASH}"]
    assert verbs(see(receipts=[replace(receipt, payable=0)])) == []


def test_list_steps__file_of_an_epoch_is_missing__nothing_is_challenged():
    """The missing file may hold the receipt, and a challenge that is answered loses its bond."""
    receipt = PromisedReceipt(
        receipt_hash=HASH,
        due_by=990,
        challengeable_until=1100,
        is_included=False,
        challenge=SimpleNamespace(state=ChallengeState.NONE, answer_by=0),
    )
    epoch = CheckedEpoch(
        record=SimpleNamespace(epoch=3), disable_until=1010, challenge_window=20, trouble=MISSING, text="gone"
    )
    assert verbs(see(receipts=[receipt], epochs=[epoch])) == []
    assert verbs(see(receipts=[receipt])) == [f"challenge {HASH}"]
    assert len(verbs(see(receipts=[receipt] * 100))) == MAX_CHALLENGES


def test_list_steps__token_refused_to_pay__withdraws_each_credit():
    assert verbs(see(credits={"rewards": 5, "stake": 7})) == ["withdraw-credit rewards", "withdraw-credit stake"]


@pytest.mark.parametrize(
    ("signature", "contributor", "expected", "code"),
    [
        ("0x12", BOB, ["slash-equivocation a b"], "provable"),
        ("0x12", ALICE, [], "provable"),  # its own
        ("", BOB, [], "unproven"),
    ],
)
def test_list_steps__equivocation__is_slashed_if_both_signatures_are_known(
    signature: str, contributor: str, expected: list[str], code: str
):
    receipt = SimpleNamespace(node=BOB, contributor=contributor, task=5, lease=6)
    both = Equivocation(first=receipt, first_signature="0x11", second=receipt, second_signature=signature)
    seen = see(equivocations={"a b": both})
    assert verbs(seen) == expected
    assert [report["code"] for report in list_reports(seen)] == [code]


@pytest.mark.parametrize(
    ("code", "expected"),
    [("units_differ", False), ("leaf_differs", False), ("void", True), ("units_unexplained", True)],
)
def test_is_sound__finding__only_a_leaf_that_no_verdict_explains_is_false(code: str, expected: bool):
    seen = see(findings=[ReceiptFinding(receipt_hash=HASH, code=code, text="5 units")])
    assert is_sound(seen) is expected
    assert list(list_reports(seen)) == [{"event": "receipt", "about": HASH, "code": code, "text": "5 units"}]
