"""Leases under any order of events: one holder a task, growing fencing tokens, never more out than the pace allows."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from coordinator.db.database import Database
from coordinator.db.models import TaskRow
from covey.errors import ProtocolError
from covey.protocol.status import StepState, TaskState
from covey.protocol.verdict import Decision, Reason
from tests.conftest import IS_FULL
from tests.fakes.databases import empty
from tests.fakes.pool import FakePool, make_address, make_params

pytestmark = pytest.mark.unit
NODES = ("a", "b", "c")


class LeaseMachine(RuleBasedStateMachine):
    """Nodes ask, collect, submit or drop while time passes; validators accept or void; the trainer takes batches, and
    the chain its policies some time later."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        empty(database)
        self.pool = FakePool(database, make_params(max_staleness=1, strikes_to_suspend=1000, cooldown_seconds=2))
        self.pool.register(*NODES)
        self.pool.publish(0)
        self.published = self.trained = 0
        """The newest policy on chain, and that of the trainer."""
        self.collected: dict[int, TaskRow] = {}
        self.slots = dict.fromkeys(NODES, 0)
        self.last_lease = 0
        self.undecided: list[str] = []

    @rule(name=st.sampled_from(NODES), slots=st.integers(1, 3))
    def ask(self, name: str, slots: int) -> None:
        self.pool.wait(name, slots=slots)
        self.slots[name] = max(self.slots[name], slots)

    @rule()
    def assign(self) -> None:
        before = {task.lease for task in self.pool.tasks() if task.lease}
        made = self.pool.assign()
        new = sorted({task.lease for task in self.pool.tasks() if task.lease} - before)
        assert new == list(range(self.last_lease + 1, self.last_lease + 1 + made)), "tokens grow without a gap"
        self.last_lease += made

    @rule(name=st.sampled_from(NODES))
    def collect(self, name: str) -> None:
        mine = [task.lease for task in self.collected.values() if task.node == make_address(name)]
        task = self.pool.collect(name, mine)
        if task is not None:
            assert task.id not in self.collected, "a task is leased to one node, once"
            self.collected[task.id] = task

    @precondition(lambda self: self.collected)
    @rule(data=st.data())
    def forget_and_collect(self, data: st.DataObject) -> None:
        """A node that lost a lease is given it again, on the old clock, or one that it has not collected."""
        held = self.collected[data.draw(st.sampled_from(sorted(self.collected)))]
        name = next(name for name in NODES if make_address(name) == held.node)
        others = [t.lease for t in self.pool.tasks() if t.lease is not None and t.id != held.id]
        again = self.pool.collect(name, others)
        if again is not None and again.id not in self.collected:
            assert (again.node, again.collected_at) == (held.node, self.pool.now)
            self.collected[again.id] = again
        elif again is not None:
            assert (again.id, again.lease, again.ends_at) == (held.id, held.lease, held.ends_at)

    @precondition(lambda self: self.collected)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        """Whoever ever held a task tries: only the living lease passes, the same receipt gets the same answer."""
        held = self.collected[data.draw(st.sampled_from(sorted(self.collected)))]
        row = next(task for task in self.pool.tasks() if task.id == held.id)
        is_live = (
            row.state is TaskState.ASSIGNED and row.expires_at > self.pool.now and row.policy_version >= self.oldest
        )
        if not is_live and row.state is not TaskState.SUBMITTED:
            with pytest.raises(ProtocolError, match=r"lease_expired|stale"):
                self.pool.submit(held, deadline=10**9)
            return
        receipt_hash = self.pool.submit(held, deadline=10**9)
        if is_live:
            self.undecided.append(receipt_hash)

    @rule(seconds=st.sampled_from([1.0, 4.0, 31.0]))
    def pass_time(self, seconds: float) -> None:
        self.pool.now += seconds

    @rule()
    def expire(self) -> None:
        self.pool.expire()
        assert not [t for t in self.pool.tasks(TaskState.ASSIGNED) if t.expires_at <= self.pool.now]

    @precondition(lambda self: self.undecided)
    @rule(is_good=st.sampled_from([True, True, False]))
    def decide(self, is_good: bool) -> None:
        receipt_hash = self.undecided.pop(0)
        if is_good:
            self.pool.decide(receipt_hash)
        else:
            self.pool.decide(receipt_hash, Decision.REJECT, reason=Reason.REWARD)

    @rule()
    def train(self) -> None:
        self.pool.open_ahead(self.trained)
        with self.pool.database.read() as rows:
            step = rows.get_step(self.trained)
        self.trained += step is not None and step.state is StepState.READY

    @precondition(lambda self: self.published < self.trained)
    @rule()
    def publish(self) -> None:
        self.published += 1
        self.pool.publish(self.published)

    @property
    def oldest(self) -> int:
        return max(0, self.published - self.pool.params.max_staleness)

    @invariant()
    def keeps_pace(self) -> None:
        with self.pool.database.read() as rows:
            closed = [step.number for step in rows.list_steps() if step.state is not StepState.OPEN]
            oldest = max(0, len(closed) - self.pool.params.max_staleness)
            held = (
                rows.count_packed_groups()
                + rows.count_groups_in_flight(oldest_version=oldest)
                + rows.sum_unpacked(oldest_version=oldest)[0]
            )
        assert closed == list(range(len(closed)))
        assert held <= (self.published + 2) * self.pool.params.groups_per_step

    @invariant()
    def batches_are_fresh_and_whole(self) -> None:
        with self.pool.database.read() as rows:
            for step in rows.list_steps():
                batch = rows.list_batch(step.number)
                assert sum(s.groups for s in batch) == (0 if step.state is StepState.OPEN else 4)
                assert all(step.number - s.policy_version <= 1 for s in batch)
                assert all(s.policy_version <= self.published for s in batch)
                assert bool(step.record_hash) == (step.number <= self.published)
                assert (step.state is StepState.TRAINED) == (step.number < self.published)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_leases__any_order_of_events__keep_their_promises(database: Database):
    run_state_machine_as_test(
        lambda: LeaseMachine(database),
        settings=settings(
            max_examples=340 if IS_FULL else 12,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
