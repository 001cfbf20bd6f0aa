"""Verdicts are committed before any is shown, and only what was committed, by whose turn it is, is taken."""

import dataclasses

import pytest

from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import FakePool, code_of, make_hash

pytestmark = pytest.mark.unit
ACCEPT, REJECT, UNKNOWN = Decision.ACCEPT, Decision.REJECT, Decision.UNKNOWN


@pytest.mark.parametrize("changes", [{"units": 21}, {"deadline": 1000 + 3599}])
def test_record_reveal__more_units_than_claimed_or_soon_expired__is_refused(
    submitted: tuple[FakePool, str], changes: dict[str, int]
):
    pool, receipt_hash = submitted
    taken = [pool.claim(i)[1] for i in (0, 1)]
    for i, judgement in enumerate(taken):
        pool.commit(i, judgement, pool.build_verdict(i, receipt_hash, ACCEPT, **changes))
    assert code_of(pool.reveal, taken[0]) == "bad_verdict"


# -- commit, then reveal


def test_record_reveal__before_all_have_committed__is_refused(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    _, first = pool.claim(0)
    pool.commit(0, first, pool.build_verdict(0, receipt_hash, ACCEPT))
    assert pool.claim(0) is None
    assert code_of(pool.reveal, first) == "not_yet"
    _, second = pool.claim(1)
    assert code_of(pool.reveal, first) == "not_yet"
    pool.commit(1, second, pool.build_verdict(1, receipt_hash, ACCEPT))
    assert pool.claim(0) == ("reveal", first)
    pool.reveal(first)


def test_record_reveal__not_what_was_committed__is_refused(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    taken = [pool.claim(i)[1] for i in (0, 1)]
    for i, judgement in enumerate(taken):
        pool.commit(i, judgement, pool.build_verdict(i, receipt_hash, ACCEPT))
    changed = pool.build_verdict(0, receipt_hash, REJECT)
    assert code_of(pool.reveal, taken[0], changed) == "commitment_mismatch"
    stolen = pool.build_verdict(1, receipt_hash, ACCEPT)
    assert code_of(pool.reveal, taken[0], stolen) == "not_your_judgement"


def test_record_commit__another_commitment__is_refused_and_the_same_is_not(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    _, judgement = pool.claim(0)
    verdict = pool.build_verdict(0, receipt_hash, ACCEPT)
    pool.commit(0, judgement, verdict)
    pool.commit(0, judgement, verdict)
    assert code_of(pool.commit, 0, judgement, pool.build_verdict(0, receipt_hash, REJECT)) == "already_committed"


def test_record_commit__turn_of_another_or_nobody__is_refused(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    _, judgement = pool.claim(0)
    verdict = pool.build_verdict(1, receipt_hash, ACCEPT)
    assert code_of(pool.commit, 1, judgement, verdict) == "not_your_judgement"
    assert code_of(pool.commit, 1, judgement + 1, verdict) == "not_your_judgement", "open, but not claimed"
    assert code_of(pool.commit, 1, 999, verdict) == "not_your_judgement"


@pytest.mark.parametrize(
    ("decision", "changes"),
    [
        (ACCEPT, {"receipt_hash": make_hash("other")}),
        (ACCEPT, {"work_key": make_hash("other")}),
        (REJECT, {"severity": 1}),
        (REJECT, {"reason": Reason.NONE, "severity": 0}),
        (ACCEPT, {"reason": Reason.PROOF, "severity": 2}),
        (UNKNOWN, {"reason": Reason.PROOF, "severity": 2}),
        (REJECT, {"units": 1}),
        (UNKNOWN, {"units": 1}),
        (ACCEPT, {"units": 2 * 2 * 8 + 1}),
        (ACCEPT, {"deadline": 1000}),
    ],
)
def test_record_reveal__verdict_that_makes_no_sense__is_refused(submitted: tuple[FakePool, str], decision, changes):
    pool, receipt_hash = submitted
    taken = [pool.claim(i)[1] for i in (0, 1)]
    pool.commit(0, taken[0], pool.build_verdict(0, receipt_hash, decision, **changes))
    pool.commit(1, taken[1], pool.build_verdict(1, receipt_hash, ACCEPT))
    assert code_of(pool.reveal, taken[0]) == "bad_verdict"


def test_record_reveal__reason_that_is_none__is_refused(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    taken = [pool.claim(i)[1] for i in (0, 1)]
    odd = dataclasses.replace(pool.build_verdict(0, receipt_hash, REJECT), reason=31)
    pool.commit(0, taken[0], odd)
    pool.commit(1, taken[1], pool.build_verdict(1, receipt_hash, ACCEPT))
    assert code_of(pool.reveal, taken[0]) == "bad_verdict"


def test_record_reveal__twice__is_the_same(submitted: tuple[FakePool, str]):
    pool, receipt_hash = submitted
    taken = [pool.claim(i)[1] for i in (0, 1)]
    for i, judgement in enumerate(taken):
        pool.commit(i, judgement, pool.build_verdict(i, receipt_hash, ACCEPT))
    pool.reveal(taken[0])
    pool.reveal(taken[0])
    verdicts = [j.verdict for j in pool.submission(receipt_hash).turns]
    assert verdicts == [pool.reveals[taken[0]][0], None]
