"""Closes epochs as the jobs do, without a chain or a store."""

from dataclasses import dataclass

from coordinator.db.models import EpochRow
from coordinator.domain import epoch_closing, settlement
from coordinator.domain.settlement import Ledger, get_next_number
from tests.fakes.pool import FakePool


@dataclass(frozen=True)
class Closed:
    epoch: EpochRow
    data: bytes


def close_epoch(pool: FakePool, ledger: Ledger) -> Closed:
    """Close the next epoch in one transaction."""
    with pool.database.write() as rows:
        number = rows.require_epoch(get_next_number(rows), closed_at=pool.now).number  # Others may be unposted.
        assert epoch_closing.put_leaves(rows, ledger, number, [each for each, _ in rows.list_unsettled()])
        leaves = epoch_closing.list_leaves(rows, number)
        assert epoch_closing.record_filled(rows, number, leaves, epoch_closing.compute_work_root(leaves))
        closed = epoch_closing.build_epoch(rows, ledger, number)
        assert epoch_closing.record_closed(rows, closed)
        epoch = rows.get_epoch(number)
        assert epoch is not None
        return Closed(epoch, closed.data)


def mark_settled(pool: FakePool) -> None:
    with pool.database.write() as rows:
        for number in rows.list_unmarked():
            settlement.mark_settled(rows, number, limit=1000)
