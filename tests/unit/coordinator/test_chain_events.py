"""Events of the chain become rows, whatever is told twice; a stranger's pool is none of ours."""

from types import SimpleNamespace

import pytest

from coordinator import chain_events
from coordinator.domain.audit_draws import DrawingBlock
from covey.chain import events
from covey.chain.follower import ChainProgress, SeenBlock
from covey.protocol.status import CaseState, StepState, SubmissionState, TaskState
from covey.protocol.verdict import Decision
from tests.fakes.pool import POOL, FakePool, code_of, make_address, make_hash, make_params
from tests.fakes.triggers import Triggers

pytestmark = pytest.mark.unit


@pytest.fixture
def ctx(pool: FakePool) -> SimpleNamespace:
    return SimpleNamespace(
        database=pool.database,
        params=pool.params,
        config=SimpleNamespace(pool=POOL),
        jobs=Triggers(),
        clock=lambda: pool.now,
    )


def make(kind: type, **values: object):
    place = {"block_number": 20, "block_hash": make_hash("20"), "transaction_hash": make_hash("t"), "log_index": 0}
    return kind(**({"pool": POOL} | {k: v for k, v in place.items() if k in kind.__dataclass_fields__} | values))


def tell(
    ctx: SimpleNamespace, *told: object, block: int = 20, rolled_back_to: int | None = None, read_until: int = 0
) -> None:
    progress = ChainProgress(
        rolled_back_to=rolled_back_to,
        events=told,
        cursor=(SeenBlock(number=block, hash=make_hash(f"{block}")),),
        read_until=read_until,
        is_caught_up=True,
    )
    chain_events.apply_progress(ctx, progress)


def publish(step: int, **values: object):
    return make(events.PolicyPublished, step=step, record_hash=make_hash(f"policy {step}"), **values)


def open_case(number: int, **changes: object):
    values = {"receipt_hash": make_hash(f"receipt {number}"), "node": make_address("a"), "reason": 5, "veto_until": 99}
    return make(events.CaseOpened, **(values | {"contributor": make_address("a's owner"), "amount": 60} | changes))


def close_case(kind: type, number: int, **changes: object):
    values = {"receipt_hash": make_hash(f"receipt {number}"), "node": make_address("a")}
    if kind is events.CaseExecuted:
        values |= {"contributor": make_address("a's owner"), "amount": 60}
    return make(kind, **(values | changes))


def test_policy_published__of_the_pool__opens_the_step_and_triggers(ctx: SimpleNamespace, pool: FakePool):
    tell(ctx, publish(0))
    with pool.database.read() as rows:
        step = rows.get_step(0)
        assert (step.record_hash, step.block_number, step.state) == (make_hash("policy 0"), 20, StepState.OPEN)
        assert rows.list_blocks() == [(20, make_hash("20"))]
    assert len(pool.tasks(TaskState.PENDING)) == 2
    assert ctx.jobs == ["assign_tasks", "begin_epoch"]


def test_progress__with_the_drawing_block__has_the_submission_looked_at_at_once(ctx: SimpleNamespace, pool: FakePool):
    pool.register("a")
    pool.publish(0)
    receipt_hash = pool.work("a")
    row = pool.submission(receipt_hash)
    drawn_at = row.signed_at + pool.params.verification.draw_seconds
    tell(ctx, block=21, read_until=drawn_at - 1)
    assert ctx.jobs == []
    tell(ctx, block=22, read_until=drawn_at)
    assert ctx.jobs == ["draw_submissions 22"]
    pool.dispatch()
    ctx.jobs.clear()
    tell(ctx, block=23, read_until=drawn_at + 1)
    assert ctx.jobs == [], "it is drawn"


def test_events__of_another_pool__change_nothing(ctx: SimpleNamespace, pool: FakePool):
    pool.register("a")
    tell(ctx, publish(0, pool=2), make(events.PoolEnded, pool=2, closes_at=99), open_case(1, pool=2))
    with pool.database.read() as rows:
        assert (rows.get_step(0), rows.get_fact("ended"), rows.list_cases()) == (None, 0, [])
    assert pool.node("a").suspended == ""


def test_progress__told_twice__is_the_same(ctx: SimpleNamespace, pool: FakePool):
    """A crash after the events were applied elsewhere, or a node that repeats itself."""
    pool.register("a")
    told = (publish(0), publish(1), open_case(1), close_case(events.CaseExecuted, 1))
    tell(ctx, *told)
    before = [(t.id, t.state) for t in pool.tasks()]
    tell(ctx, *told)
    with pool.database.read() as rows:
        assert [(t.id, t.state) for t in pool.tasks()] == before
        assert [(c.receipt_hash, c.state) for c in rows.list_cases()] == [(make_hash("receipt 1"), CaseState.SLASHED)]


def test_pool_ended__unbegun_tasks__end(ctx: SimpleNamespace, pool: FakePool):
    tell(ctx, publish(0), make(events.PoolEnded, closes_at=99))
    assert [t.state for t in pool.tasks()] == [TaskState.EXPIRED] * 2
    with pool.database.read() as rows:
        assert (rows.get_fact("ended"), rows.get_fact("closes_at")) == (20, 99)


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (events.CaseVetoed, CaseState.VETOED),
        (events.CaseLapsed, CaseState.LAPSED),
        (events.CaseExecuted, CaseState.SLASHED),
    ],
)
def test_case__opened_then_closed__follows_the_chain(ctx: SimpleNamespace, pool: FakePool, kind, state: CaseState):
    pool.register("a")
    tell(ctx, open_case(1))
    assert pool.node("a").suspended == "case"
    tell(ctx, close_case(kind, 1), block=21)
    with pool.database.read() as rows:
        assert rows.get_case(make_hash("receipt 1")).state is state


def test_case__of_a_node_that_is_not_known__is_kept(ctx: SimpleNamespace, pool: FakePool):
    tell(ctx, open_case(1))
    tell(ctx, close_case(events.CaseExecuted, 7), block=21)
    with pool.database.read() as rows:
        assert [c.receipt_hash for c in rows.list_cases()] == [make_hash("receipt 1")]


def test_node_removed_or_equivocating__node__holds_nothing_any_more(ctx: SimpleNamespace, pool: FakePool):
    pool.register("a", "b")
    tell(ctx, publish(0))
    pool.lease("a")
    pool.lease("b")
    tell(
        ctx,
        make(events.NodeRemoved, node=make_address("a"), contributor=make_address("a's owner")),
        make(
            events.EquivocationSlashed,
            node=make_address("b"),
            contributor=make_address("b's owner"),
            task=2,
            lease=2,
            amount=60,
        ),
        block=21,
    )
    assert (pool.node("a").barred, pool.node("b").barred) == ("removed", "equivocation")
    assert [t.state for t in pool.tasks(TaskState.ASSIGNED)] == []


def test_reorganisation__blocks_with_a_case__drop_it_and_take_the_new_one(ctx: SimpleNamespace, pool: FakePool):
    pool.register("a")
    tell(ctx, publish(0, block_number=18), block=18)
    tell(ctx, open_case(1), block=20)
    tell(ctx, open_case(2), block=21, rolled_back_to=18)
    with pool.database.read() as rows:
        (case,) = rows.list_cases()
        assert case.receipt_hash == make_hash("receipt 2")
        assert rows.list_blocks() == [(21, make_hash("21"))]


def test_reorganisation__block_that_closed_a_case__lets_it_end_otherwise(ctx: SimpleNamespace, pool: FakePool):
    """Executed on the branch that lost, vetoed on the one that stayed: the chain is right both times."""
    pool.register("a")
    tell(ctx, open_case(1, block_number=18), block=18)
    tell(ctx, close_case(events.CaseExecuted, 1), block=20)
    tell(ctx, close_case(events.CaseVetoed, 1, block_number=21), block=21, rolled_back_to=19)
    with pool.database.read() as rows:
        (case,) = rows.list_cases()
        assert (case.state, case.block_number) == (CaseState.VETOED, 21)


def test_reorganisation__block_that_opened_and_closed_a_case__tells_another_story(ctx: SimpleNamespace, pool: FakePool):
    pool.register("a")
    tell(ctx, open_case(1), close_case(events.CaseLapsed, 1), block=20)
    tell(ctx, open_case(1, contributor=make_address("another"), block_number=21), block=21, rolled_back_to=17)
    with pool.database.read() as rows:
        (case,) = rows.list_cases()
        assert (case.state, case.contributor, case.block_number) == (CaseState.LOCKED, make_address("another"), 21)


@pytest.mark.parametrize("is_accepted", [False, True])
def test_reorganisation__block_that_drew_a_submission__is_replaced_by_the_new_one_s_draw(
    ctx: SimpleNamespace, pool: FakePool, is_accepted: bool
):
    """A public audit computes the draw of the block that stayed."""
    pool.params = make_params(verification={"audit_rate": 0.0, "newcomer_submissions": 0})
    pool.register("a")
    pool.publish(0)
    pool.find_block = lambda _: DrawingBlock(20, make_hash("removed"))
    receipt, early = pool.work("a"), pool.work("a")
    pool.dispatch()
    with pool.database.write() as rows:
        rows.get_submission(early).draw_block = 19
    if is_accepted:
        pool.judge(receipt, [(0, Decision.ACCEPT, {})])
        assert pool.submission(receipt).state is SubmissionState.ACCEPTED
    tell(ctx, block=21, rolled_back_to=19)
    pool.find_block = lambda _: DrawingBlock(21, make_hash("stayed"))
    pool.dispatch()
    row = pool.submission(receipt)
    assert (row.draw, row.draw_block, row.state) == (make_hash("stayed"), 21, SubmissionState.SUBMITTED)
    assert bool(row.audited) is is_accepted
    assert pool.submission(early).draw == make_hash("removed")


@pytest.mark.parametrize("is_committed", [False, True])
def test_reorganisation__rows_of_the_removed_block_are_being_judged__do_not_count(
    ctx: SimpleNamespace, pool: FakePool, is_committed: bool
):
    """The block that replaces it draws other rows, so a turn begins again, or the work is replayed whole."""
    pool.params = make_params(verification={"audit_rate": 0.0, "newcomer_submissions": 0, "confirm_rate": 0.0})
    pool.register("a")
    pool.publish(0)
    pool.find_block = lambda _: DrawingBlock(20, make_hash("removed"))
    receipt = pool.work("a")
    pool.dispatch()
    _, taken = pool.claim(0)
    verdict = pool.build_verdict(0, receipt, Decision.ACCEPT)
    if is_committed:
        pool.commit(0, taken, verdict)
    tell(ctx, block=21, rolled_back_to=19)
    assert code_of(pool.commit, 0, taken, verdict) == "judgement_lapsed"
    pool.dispatch()
    row = pool.submission(receipt)
    assert bool(row.audited) is is_committed
    assert [turn.full for turn in row.turns if not turn.lapsed] == ([True, True] if is_committed else [False])


def test_case_vetoed__no_other_case__node_is_served_again(ctx: SimpleNamespace, pool: FakePool):
    pool.register("a")
    tell(ctx, open_case(1), open_case(2))
    tell(ctx, close_case(events.CaseVetoed, 1), block=21)
    with pool.database.read() as rows:
        assert rows.get_node(make_address("a")).suspended == "case", "the other case is still open"
    tell(ctx, close_case(events.CaseVetoed, 2), block=22)
    with pool.database.read() as rows:
        assert rows.get_node(make_address("a")).suspended == ""


def test_node_removed_and_registered__told_after_the_worker_registered__leaves_it_served(
    ctx: SimpleNamespace, pool: FakePool
):
    """Events come late where only safe blocks are read; the worker asked the newest block."""
    pool.register("a")
    values = {"node": make_address("a"), "contributor": make_address("a's owner")}
    tell(ctx, make(events.NodeRemoved, **values))
    assert pool.node("a").removed
    tell(ctx, make(events.NodeRegistered, **(values | {"contributor": make_address("another")})), block=21)
    assert pool.node("a").removed, "an older registration, or one that the worker has not brought yet"
    tell(
        ctx,
        make(events.NodeRegistered, **values),
        make(events.NodeRegistered, node=make_address("b"), contributor=make_address("b's owner")),
        block=22,
    )
    assert not pool.node("a").removed


def test_register_node__slashed__stays_suspended(ctx: SimpleNamespace, pool: FakePool):
    pool.register("a")
    tell(ctx, open_case(1), close_case(events.CaseExecuted, 1))
    pool.register("a")
    with pool.database.read() as rows:
        assert rows.get_node(make_address("a")).suspended == "case"
