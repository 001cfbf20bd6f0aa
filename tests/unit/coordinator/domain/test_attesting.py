"""Signatures of validators over the oldest unposted epoch: kept while its header stands, and enough of active ones."""

import pytest

from coordinator.db.attestation_queries import AttestationRow
from coordinator.db.repository import Repository
from coordinator.domain import attesting, settlement
from covey.errors import ProtocolError
from covey.protocol.epochs import EpochHeader
from tests.fakes.pool import FakePool, make_address, make_hash, make_ledger

pytestmark = pytest.mark.unit
LEDGER = make_ledger(header_quorum=2)
A, B, C = sorted((make_address(name) for name in "abc"), key=lambda each: int(each, 16))


def close(rows: Repository, number: int, *, name: str = "data") -> EpochHeader:
    """Return the header of an epoch that is closed at 1000."""
    row = rows.require_epoch(number, closed_at=1000.0)
    row.work_root, row.reward_root, row.previous_hash = make_hash("w"), make_hash("r"), make_hash("p")
    row.data_hash = make_hash(name)
    rows.flush()
    return settlement.build_header(row, LEDGER.pool)


def sign(rows: Repository, header: EpochHeader, *validators: str) -> None:
    for each in validators:
        attesting.record_attestation(
            rows, LEDGER, signed=header, header_hash=header.compute_hash(), validator=each, signature=f"by {each}"
        )


def test_find_awaiting__oldest_unposted_epoch_once_it_is_closed(pool: FakePool):
    with pool.database.write() as rows:
        assert attesting.find_awaiting(rows, LEDGER) is None
        first = close(rows, 0)
        close(rows, 1)
        assert attesting.find_awaiting(rows, LEDGER) == first
        assert attesting.find_awaiting(rows, make_ledger()) is None, "the pool requires no signatures"
        rows.get_epoch(0).posted_block = 5
        rows.get_epoch(1).data_hash = ""
        rows.flush()
        assert attesting.find_awaiting(rows, LEDGER) is None, "the oldest one is closing"


def test_record_attestation__another_header_than_the_one_that_waits__is_refused(pool: FakePool):
    with pool.database.write() as rows:
        old = close(rows, 0)
        sign(rows, old, A)
        new = close(rows, 0, name="computed again")
        with pytest.raises(ProtocolError) as caught:
            sign(rows, old, B)
        assert caught.value.code == "not_awaited"
        sign(rows, new, B, C)
        found = attesting.find_quorum(rows, LEDGER, rows.get_epoch(0), {A, B, C}, with_spares=False)
        assert found == {B: f"by {B}", C: f"by {C}"}, "a signature over the old header does not count"
        sign(rows, new, A)
        assert len(rows.session.query(AttestationRow).all()) == 3, "one for each validator"


def test_choose_quorum__lowest_addresses_of_active_signers__or_none():
    signed = {C: "3", A: "1", B: "2"}
    assert attesting.choose_quorum(signed, {A, B, C}, quorum=2) == {A: "1", B: "2"}
    assert attesting.choose_quorum(signed, {A, B, C}, quorum=2, with_spares=True) == signed
    assert list(attesting.choose_quorum(signed, {B, C}, quorum=2)) == [B, C]
    assert attesting.choose_quorum(signed, {C, make_address("d")}, quorum=2) is None
    assert attesting.choose_quorum({}, {A}, quorum=0) == {}


def test_find_signers__active_validators__by_whether_they_have_signed(pool: FakePool):
    with pool.database.write() as rows:
        header = close(rows, 0)
        sign(rows, header, B, C)
        row = rows.get_epoch(0)
        assert attesting.find_signers(rows, LEDGER.pool, row, {A, B}) == ([B], [A]), "C has no bond now"
        row.data_hash = make_hash("computed again")
        assert attesting.find_signers(rows, LEDGER.pool, row, {A, B}) == ([], sorted((A, B)))


def test_is_late__after_a_minute__once_for_each_epoch(pool: FakePool):
    with pool.database.write() as rows:
        close(rows, 0)
        row = rows.get_epoch(0)
        assert [attesting.is_late(rows, row, now=now) for now in (1060.0, 1061.0)] == [False, True]
        attesting.record_warned(rows, 0)
        assert not attesting.is_late(rows, row, now=2000.0)
        close(rows, 1)
        assert attesting.is_late(rows, rows.get_epoch(1), now=1061.0)


def test_clear_attestations__posted_epoch__forgets_its_signatures(pool: FakePool):
    with pool.database.write() as rows:
        sign(rows, close(rows, 0), A, B)
        rows.clear_attestations(0)
        assert attesting.find_quorum(rows, LEDGER, rows.get_epoch(0), {A, B}, with_spares=False) is None
