import pytest

from covey.protocol.verdict import Decision, Judgement, Reason, Severity, compute_severity

pytestmark = pytest.mark.unit

HARD = {
    "WRONG_POLICY_VERSION": 1,
    "WRONG_PROMPT": 2,
    "WRONG_SEED": 3,
    "TOKEN_MARGIN": 4,
    "PROOF": 5,
    "LOGPROB": 6,
    "FALSE_TERMINATION": 7,
    "REPLAYED_PROOF": 8,
    "EQUIVOCATION": 9,
}
SOFT = {
    "MALFORMED": 32,
    "SCHEMA": 33,
    "LATE": 34,
    "OVERSIZED": 35,
    "MISSING": 36,
    "STALE": 37,
    "NOT_YOUR_TASK": 38,
    "REWARD": 39,
    "DUPLICATE": 40,
    "UNDECIDED": 41,
    "INEXACT": 42,
    "CANARY": 43,
}


def test_reason__numbers__never_change():
    assert {reason.name: reason.value for reason in Reason} == {"NONE": 0} | HARD | SOFT


@pytest.mark.parametrize("reason", Reason)
def test_severity__every_reason__hard_soft_or_none(reason):
    expected = Severity.HARD if reason.name in HARD else Severity.SOFT if reason.name in SOFT else Severity.NONE
    assert reason.severity is expected


@pytest.mark.parametrize("is_whole", [False, True])
def test_compute_severity__only_an_accept_after_a_whole_replay__is_hard_without_a_reason(is_whole):
    assert (compute_severity(Decision.ACCEPT, Reason.NONE, is_whole=is_whole) is Severity.HARD) == is_whole
    assert compute_severity(Decision.UNKNOWN, Reason.NONE, is_whole=is_whole) is Severity.NONE
    assert compute_severity(Decision.REJECT, Reason.PROOF, is_whole=is_whole) is Severity.HARD
    assert compute_severity(Decision.REJECT, Reason.REWARD, is_whole=is_whole) is Severity.SOFT


def test_numbers__of_decision_and_severity__equal_those_of_the_contracts():
    assert {each.name: each.value for each in Decision} == {"ACCEPT": 1, "REJECT": 2, "UNKNOWN": 3}
    assert {each.name: each.value for each in Severity} == {"NONE": 0, "SOFT": 1, "HARD": 2}


def test_judgement__constructors__set_only_the_fields_of_their_decision():
    assert Judgement.accept(12, rows=3) == Judgement(decision=Decision.ACCEPT, units=12, details={"rows": 3})
    rejected = Judgement.reject(Reason.PROOF, window=3)
    assert (rejected.decision, rejected.reason, rejected.units) == (Decision.REJECT, Reason.PROOF, 0)
    unknown = Judgement.unknown(why="no policy")
    assert (unknown.decision, unknown.reason, unknown.units) == (Decision.UNKNOWN, Reason.NONE, 0)


def test_meaning__every_reason_but_none__is_one_sentence():
    assert {reason for reason in Reason if not reason.meaning} == {Reason.NONE}
    assert all(reason.meaning.endswith(".") and len(reason.meaning) < 100 for reason in Reason if reason.meaning)
