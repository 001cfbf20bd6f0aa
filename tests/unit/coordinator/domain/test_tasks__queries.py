"""The number of statements of each job and batch is the same for few nodes and for many."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event

from coordinator.domain import submissions, tasks
from coordinator.domain.submissions import Countersigned, VerifiedReceipt
from coordinator.domain.tasks import LeaseRequest
from covey.protocol import eip712
from covey.protocol.messages import Countersignature
from covey.protocol.status import TaskState
from tests.fakes.pool import INSTANCE, SIGNATURE, FakePool, make_address, make_params

pytestmark = pytest.mark.unit
FEW, MANY = 3, 40


@pytest.fixture
def large(pool: FakePool) -> FakePool:
    """Tasks for many nodes."""
    pool.params = make_params(groups_per_step=4 * MANY, groups_per_task=1, lease_seconds=30)
    pool.register(*(f"n{number}" for number in range(MANY)))
    pool.publish(0)
    return pool


@contextmanager
def count_statements(pool: FakePool) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(*arguments: object) -> None:
        statements.append(str(arguments[2]))

    event.listen(pool.database._engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(pool.database._engine, "before_cursor_execute", note)


def compare(pool: FakePool, prepare: Callable[[int], None], act: Callable[[int], int]) -> None:
    """Require that `act` does as much as it should, with equally many statements for few nodes and for many."""
    counts = []
    for nodes in (FEW, MANY):
        prepare(nodes)
        with count_statements(pool) as statements:
            assert act(nodes) == nodes
        counts.append(len(statements))
    assert counts[0] == counts[1], "\n".join(s[:90] for s in statements)


def let_wait(pool: FakePool, nodes: int) -> None:
    for number in range(nodes):
        pool.wait(f"n{number}", slots=9, seconds=60)


def collect(pool: FakePool, nodes: int) -> int:
    asks = [LeaseRequest(node=make_address(f"n{number}"), instance=INSTANCE) for number in range(nodes)]
    with pool.database.write() as rows:
        found = tasks.collect_tasks(rows, pool.params, asks, now=pool.now)
    return sum(getattr(each, "collected_at", None) is not None for each in found)


def test_assign_tasks__more_nodes__need_no_more_statements(large: FakePool):
    def prepare(nodes: int) -> None:
        large.now += 100
        large.expire()
        large.now += 1000
        let_wait(large, nodes)

    compare(large, prepare, lambda _: large.assign())


def test_collect_tasks__more_nodes__need_no_more_statements(large: FakePool):
    def prepare(nodes: int) -> None:
        large.now += 100
        large.expire()
        large.now += 1000
        let_wait(large, nodes)
        assert large.assign() == nodes

    compare(large, prepare, lambda nodes: collect(large, nodes))


def test_expire_leases__more_nodes__need_no_more_statements(large: FakePool):
    def prepare(nodes: int) -> None:
        large.now += 1000
        let_wait(large, nodes)
        assert large.assign() == nodes
        collect(large, nodes)
        large.now += 31

    compare(large, prepare, lambda _: large.expire())
    assert {task.state for task in large.tasks()} == {TaskState.PENDING, TaskState.EXPIRED}


def test_record_receipts__more_nodes__need_no_more_statements(large: FakePool):
    handed_in: list[VerifiedReceipt] = []

    def prepare(nodes: int) -> None:
        handed_in.clear()
        large.now += 600  # Both are the first in their minutes, which are counted.
        let_wait(large, nodes)
        assert large.assign() == nodes
        collect(large, nodes)
        for task in large.tasks(TaskState.ASSIGNED):
            receipt = large.build_receipt(task, units=8)
            message = Countersignature(receipt_hash=eip712.compute_struct_hash(receipt), signed_at=50, due_by=64)
            promise = Countersigned(message=message, signature=SIGNATURE)
            handed_in.append(VerifiedReceipt(receipt=receipt, signature=SIGNATURE, promise=promise, undrawn_limit=0))

    def record(_: int) -> int:
        with large.database.write() as rows:
            found = submissions.record_receipts(rows, large.params, handed_in, price=0, now=large.now)
        assert [each for each in found if not isinstance(each, Countersigned)] == []
        return len(found)

    compare(large, prepare, record)
