"""Nothing is judged before its draw, which says whether work is replayed and which cheap checks are confirmed."""

import pytest

from coordinator.domain import audit_draws, nodes
from covey.protocol.seeding import is_audited
from tests.fakes.pool import SECRET, FakePool, make_address, make_hash, make_params

pytestmark = pytest.mark.unit


def set_node(pool: FakePool, **values: int) -> None:
    with pool.database.write() as rows:
        node = nodes.require_node(rows, make_address("a"))
        for name, value in values.items():
            setattr(node, name, value)


def is_replayed(pool: FakePool, receipt_hash: str, block: str = "a block") -> bool:
    with pool.database.read() as rows:
        return audit_draws.is_replayed(
            rows, pool.params, rows.get_submission(receipt_hash), make_hash(block), is_above=False
        )


@pytest.fixture
def undrawn(pool: FakePool) -> tuple[FakePool, str]:
    """A submission that was countersigned at 50."""
    pool.register("a")
    pool.publish(0)
    return pool, pool.work("a")


def test_is_replayed__newcomer__whatever_the_rate(undrawn: tuple[FakePool, str]):
    pool, receipt_hash = undrawn
    pool.params = make_params(verification={"audit_rate": 0.0, "newcomer_submissions": 3})
    set_node(pool, accepted=2)
    assert is_replayed(pool, receipt_hash)
    set_node(pool, accepted=3)
    assert not is_replayed(pool, receipt_hash)


def test_is_replayed__proven_node__by_receipt_and_block(undrawn: tuple[FakePool, str]):
    pool, receipt_hash = undrawn
    pool.params = make_params(verification={"audit_rate": 0.5, "newcomer_submissions": 0})
    blocks = [f"fork {i}" for i in range(40)]
    drawn = [is_replayed(pool, receipt_hash, block) for block in blocks]
    assert drawn == [is_audited(receipt_hash, make_hash(block), 0.5) for block in blocks]
    assert set(drawn) == {True, False}


def test_is_replayed__strikes__raise_the_rate_to_certainty(undrawn: tuple[FakePool, str]):
    pool, receipt_hash = undrawn
    pool.params = make_params(verification={"audit_rate": 0.25, "newcomer_submissions": 0})
    pool.strike("a", 3)
    assert all(is_replayed(pool, receipt_hash, f"fork {i}") for i in range(40))


def test_is_replayed__suspended_node__always(undrawn: tuple[FakePool, str]):
    pool, receipt_hash = undrawn
    pool.params = make_params(verification={"audit_rate": 0.0, "newcomer_submissions": 0})
    assert not is_replayed(pool, receipt_hash)
    with pool.database.write() as rows:
        nodes.suspend(rows, nodes.require_node(rows, make_address("a")), nodes.CASE)
    assert is_replayed(pool, receipt_hash)


@pytest.mark.parametrize("audit_rate", [0.5, 1.0])
def test_dispatch__drawing_block_not_final__opens_no_turn(undrawn: tuple[FakePool, str], audit_rate: float):
    """Not for certain replays either: who judges them is drawn by the same block."""
    pool, receipt_hash = undrawn
    pool.params = make_params(verification={"audit_rate": audit_rate, "newcomer_submissions": 0})
    asked = []
    pool.find_block = asked.append
    pool.dispatch()
    row = pool.submission(receipt_hash)
    assert (row.draw, row.audited, row.turns, asked) == (None, None, [], [50])
    assert pool.claim(0) is None


def test_draw__again__is_the_same_whatever_became_of_the_chain(undrawn: tuple[FakePool, str]):
    pool, receipt_hash = undrawn
    pool.dispatch()
    pool.find_block = lambda _: audit_draws.DrawingBlock(99, make_hash("another fork"))
    pool.dispatch()
    assert pool.submission(receipt_hash).draw == make_hash("block after 50")


def test_draw__replay_ordered_at_intake__stays_ordered(undrawn: tuple[FakePool, str]):
    pool, receipt_hash = undrawn
    pool.params = make_params(verification={"audit_rate": 0.0, "newcomer_submissions": 0})
    with pool.database.write() as rows:
        rows.get_submission(receipt_hash).audited = True
    pool.dispatch()
    assert pool.submission(receipt_hash).audited is True


def test_is_confirmed__3000_receipts__come_at_the_rate_and_only_the_secret_tells():
    hashes = [make_hash(f"receipt {i}") for i in range(3000)]
    confirmed = [audit_draws.is_confirmed(SECRET, each, 0.1) for each in hashes]
    assert 240 < sum(confirmed) < 360, "300 are expected, with a standard deviation of 16"
    guessed = [audit_draws.is_confirmed(b"a guess", each, 0.1) for each in hashes]
    both = sum(a and b for a, b in zip(confirmed, guessed, strict=True))
    assert both < 60, "30 are expected of two draws that know nothing of each other"
    assert not any(audit_draws.is_confirmed(SECRET, each, 0.0) for each in hashes)
    assert all(audit_draws.is_confirmed(SECRET, each, 1.0) for each in hashes)
