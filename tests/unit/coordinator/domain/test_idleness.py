"""`explain` names the first reason for which a node gets no task, with its number."""

from collections.abc import Callable

import pytest

from coordinator.domain import idleness, nodes, pausing, tasks
from coordinator.domain.idleness import Health
from coordinator.domain.pausing import PausedBy
from covey.protocol.status import TaskState
from tests.fakes.pool import STAKE_RULE, FakePool, make_address

pytestmark = pytest.mark.unit


def change(**values: object) -> Callable[[FakePool], None]:
    def apply(pool: FakePool) -> None:
        with pool.database.write() as rows:
            row = nodes.require_node(rows, make_address("a"))
            for name, value in values.items():
                setattr(row, name, value)

    return apply


def end(pool: FakePool) -> None:
    with pool.database.write() as rows:
        rows.set_fact("ended", 9)
        tasks.end_tasks(rows)


def lower_stake(pool: FakePool) -> None:
    with pool.database.write() as rows:
        rows.require_contributor(make_address("a's owner")).staked = "1"


def take_all(pool: FakePool) -> None:
    change(waiting_until=0.0)(pool)
    while pool.tasks(TaskState.PENDING):
        pool.register(name := f"other {len(pool.tasks(TaskState.PENDING))}")
        pool.lease(name)
    pool.wait("a")


def pause(pool: FakePool) -> None:
    with pool.database.write() as rows:
        pausing.set_paused(rows, by=PausedBy.OPERATOR, is_paused=True, now=pool.now)


REASONS: list[tuple[str, Callable[[FakePool], None], str]] = [
    ("next", lambda pool: None, "It gets the next task."),
    ("suspended", change(suspended="rejected"), "It is suspended: rejected."),
    ("removed", change(removed=True), "Its contributor has removed it."),
    ("stake_too_low", lower_stake, "has staked 0.01 CVT, of which cases lock 0 CVT"),
    ("ended", end, "The pool ended in block 9."),
    ("paused", pause, "The pool is paused: its operator has paused it."),
    ("cooldown", change(cooldown_until=1023.0), "It pauses for 23 s"),
    ("not_asking", change(waiting_until=0.0, seen_at=993.0), "was last heard 7 s ago"),
    ("full", change(free_slots=0), "It holds 0 leases and has room for 0."),
    ("old_policy", change(cached_version=-1), "It has policy -1, and tasks need policy 0 or newer."),
    ("no_task", take_all, "All tasks of policy 0 are leased or done."),
]


def explain(pool: FakePool) -> idleness.Idleness:
    with pool.database.read() as rows:
        row = nodes.require_node(rows, make_address("a"))
        return idleness.explain(rows, pool.params, row, rule=STAKE_RULE, now=pool.now)


@pytest.fixture
def waiting(pool: FakePool) -> FakePool:
    """Node a asks for a task, and its contributor has staked enough."""
    pool.register("a")
    pool.publish(0)
    with pool.database.write() as rows:
        row = rows.require_contributor(make_address("a's owner"))
        row.staked, row.locked, row.stake_block = str(10**30), "0", 1
    pool.wait("a")
    return pool


@pytest.mark.parametrize(("code", "prepare", "sentence"), REASONS, ids=[code for code, _, _ in REASONS])
def test_explain__one_thing_is_wrong__names_it_with_its_number(waiting: FakePool, code, prepare, sentence):
    prepare(waiting)
    found = explain(waiting)
    assert found.code == code
    assert sentence in found.sentence
    if code != "stake_too_low":  # That is refused when the node asks.
        assert (waiting.assign() == 1) is (code == "next"), "the assignment decides the same"


def test_explain__holds_what_a_newcomer_may__says_how_many(waiting: FakePool):
    waiting.assign()
    waiting.collect("a")
    waiting.wait("a", slots=9)
    assert explain(waiting) == ("newcomer", explain(waiting).sentence)
    assert explain(waiting).sentence.startswith("It holds 1 of 1 leases")


def test_explain__has_not_collected_its_lease__says_so(waiting: FakePool):
    waiting.assign()
    waiting.wait("a", slots=9)
    assert explain(waiting) == ("offered", "A lease is offered to it, and its next claim collects it.")


def test_explain__no_policy_yet__says_so(pool: FakePool):
    pool.register("a")
    with pool.database.write() as rows:
        row = rows.require_contributor(make_address("a's owner"))
        row.staked, row.locked, row.stake_block = str(10**30), "0", 1
    assert explain(pool).code == "no_policy"


@pytest.mark.parametrize(
    ("silence", "health"),
    [(0, Health.HEALTHY), (59, Health.HEALTHY), (60, Health.UNHEALTHY), (119, Health.UNHEALTHY), (120, Health.DEAD)],
)
def test_compute_health__silence__decides(waiting: FakePool, silence: int, health: Health):
    change(seen_at=waiting.now - silence)(waiting)
    assert idleness.compute_health(waiting.node("a"), waiting.now) is health
