"""Being caught stays with the node, strikes with the contributor, and work that nobody replayed is judged again."""

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import chain_events
from coordinator.db.models import EpochRow, NodeRow
from coordinator.domain import nodes
from covey.errors import ProtocolError
from covey.protocol.status import SubmissionState, TaskState
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import FakePool, make_address, make_hash, make_params

pytestmark = pytest.mark.unit
ACCEPTED, SUBMITTED = SubmissionState.ACCEPTED, SubmissionState.SUBMITTED
NEVER_DRAWN = {"audit_rate": 0.0, "newcomer_submissions": 0}


def change(pool: FakePool, name: str, **values: Any) -> None:
    with pool.database.write() as rows:
        node = nodes.require_node(rows, make_address(name))
        for column, value in values.items():
            setattr(node, column, value)


def is_waiting(pool: FakePool, name: str) -> bool:
    """Whether a long poll of the node would be answered with a task."""
    pool.wait(name, slots=4096)
    with pool.database.read() as rows:
        candidates = rows.list_candidates(pool.now, version=0, published={0: 10}, limit=100)
    return make_address(name) in [node.address for node in candidates]


def count_slots(node: NodeRow) -> int:
    return nodes.get_most_leases(node)


# -- suspensions


@pytest.mark.parametrize("owner", ["a's owner", "another"])
@pytest.mark.parametrize("why", ["rejected", "case", "strikes", "equivocation"])
def test_register_node__suspended_and_removed_meanwhile__stays_suspended(pool: FakePool, why: str, owner: str):
    pool.register("a")
    change(pool, "a", suspended=why)
    pool.remove("a")
    pool.register("a", owner=owner)
    assert pool.node("a").suspended == why
    assert not is_waiting(pool, "a")


def test_register_node__removed_for_nothing__is_served_again(pool: FakePool):
    pool.register("a")
    pool.remove("a")
    assert not is_waiting(pool, "a")
    pool.register("a")
    assert is_waiting(pool, "a")


@pytest.mark.parametrize(("owner", "accepted", "slots"), [("another", 0, 1), ("a's owner", 200, 101)])
def test_register_node__another_contributor__begins_the_record_again(
    pool: FakePool, owner: str, accepted: int, slots: int
):
    pool.register("a")
    change(pool, "a", accepted=200, dropped=3)
    pool.remove("a")
    pool.register("a", owner=owner)
    node = pool.node("a")
    assert (node.accepted, count_slots(node), node.dropped) == (accepted, slots, 3)


def test_suspend__equivocation__is_lifted_by_no_veto(pool: FakePool):
    """A case of another receipt that opens later and is vetoed clears only what it stands for."""
    pool.register("a")
    change(pool, "a", suspended="equivocation")
    with pool.database.write() as rows:
        node = nodes.require_node(rows, make_address("a"))
        nodes.suspend(rows, node, "case")
    assert pool.node("a").suspended == "equivocation"


def test_suspend__node_with_a_lease__takes_it_back(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    task = pool.lease("a")
    with pool.database.write() as rows:
        nodes.suspend(rows, nodes.require_node(rows, make_address("a")), "case")
    assert {t.id: t.state for t in pool.tasks()}[task.id] is TaskState.EXPIRED
    with pytest.raises(ProtocolError) as caught:
        pool.submit(task)
    assert caught.value.code == "lease_expired"


def test_require_node__stranger__is_refused(pool: FakePool):
    with pytest.raises(ProtocolError) as caught:
        pool.wait("nobody")
    assert (caught.value.code, caught.value.status) == ("unknown_node", 403)


# -- strikes


def test_add_strike__suspended_for_more__keeps_the_graver_reason(pool: FakePool):
    pool.register("a")
    change(pool, "a", suspended="rejected")
    pool.strike("a", pool.params.strikes_to_suspend)
    assert (pool.node("a").suspended, pool.strikes("a")) == ("rejected", 8)


@pytest.fixture
def owner(pool: FakePool) -> FakePool:
    """Nodes a and b of one contributor; nobody is a newcomer, nothing is drawn, two strikes suspend."""
    pool.params = make_params(verification=NEVER_DRAWN, strikes_to_suspend=2, groups_per_step=40)
    pool.register("a", "b", owner="owner")
    pool.register("other")
    pool.publish(0)
    return pool


def test_strike__of_each_of_two_nodes__suspends_all_of_their_contributor(owner: FakePool):
    for name in ("a", "b"):
        catch(owner, owner.work(name), Reason.REWARD)
    owner.register("c", owner="owner")
    assert [owner.node(name).suspended for name in ("a", "b", "c", "other")] == ["strikes"] * 3 + [""]


def test_draw_audit__strikes_of_another_node_of_the_contributor__raise_the_rate(owner: FakePool):
    owner.params = make_params(verification={"audit_rate": 0.5, "newcomer_submissions": 0}, groups_per_step=40)
    catch(owner, owner.work("a"), Reason.REWARD)
    receipts = [owner.work("b") for _ in range(4)]
    owner.dispatch()
    assert [owner.submission(each).audited for each in receipts] == [True] * 4, "the rate is 0.5 x 2"


def test_strike__node_that_moved_to_another_contributor__is_its_work_s(owner: FakePool):
    receipt = owner.work("a")
    owner.register("a", owner="fresh")
    catch(owner, receipt, Reason.REWARD)
    catch(owner, owner.work("b"), Reason.REWARD)
    assert [owner.node(name).suspended for name in ("a", "b")] == ["", "strikes"]


def test_case_vetoed__contributor_with_too_many_strikes__stays_suspended(owner: FakePool):
    owner.strike("b", 2)
    change(owner, "a", suspended="case")
    with owner.database.write() as rows:
        nodes.reinstate(rows, owner.params, make_address("owner"))
    assert owner.node("a").suspended == "strikes"


# -- what a cheat has under way


def test_hard_rejection__work_that_nobody_replayed__is_judged_again_with_a_replay(owner: FakePool):
    """One validator's cheap checks had accepted it; their word does not count any more, and a quorum has to replay."""
    change(owner, "b", accepted=9)
    accepted, undecided, foreign = owner.work("b"), owner.work("b"), owner.work("other")
    owner.decide(accepted)
    owner.decide(foreign)
    owner.dispatch()
    assert [owner.submission(each).audited for each in (accepted, undecided, foreign)] == [False] * 3
    caught = owner.work("a")
    catch(owner, caught)
    assert owner.node("a").suspended == "rejected"
    assert [owner.submission(each).state for each in (accepted, undecided, foreign)] == [SUBMITTED, SUBMITTED, ACCEPTED]
    assert [owner.submission(each).audited for each in (accepted, undecided, foreign)] == [True, True, False]
    assert (owner.submission(accepted).units, owner.submission(accepted).decided_at) == (20, None)
    owner.dispatch()
    assert owner.find_ruling(accepted) is None
    assert owner.submission(accepted).state is SUBMITTED
    replay(owner, accepted, Decision.REJECT)
    replay(owner, undecided, Decision.ACCEPT)
    assert [owner.states()[each] for each in (accepted, undecided)] == [SubmissionState.REJECTED, ACCEPTED]


def test_hard_rejection__validator_that_judged_without_a_replay__is_asked_again(owner: FakePool):
    """With as many validators as the quorum the work would be void otherwise."""
    owner.validators = owner.validators[:2]
    accepted = owner.work("b")
    owner.decide(accepted)
    catch(owner, owner.work("a"))
    owner.accept(accepted)
    assert owner.submission(accepted).state is ACCEPTED


def test_hard_rejection__turn_that_was_claimed_without_a_replay__ends_without_blame(owner: FakePool):
    undecided = owner.work("b")
    owner.dispatch()
    kind, judgement = owner.claim(0)
    assert kind == "judge"
    catch(owner, owner.work("a"))
    with pytest.raises(ProtocolError, match="judgement_lapsed"):
        owner.commit(0, judgement, owner.build_verdict(0, undecided, Decision.ACCEPT))
    replay(owner, undecided, Decision.ACCEPT)
    assert owner.submission(undecided).state is ACCEPTED


def test_hard_rejection__record__begins_again_for_all_nodes_of_the_contributor(owner: FakePool):
    for name in ("a", "b", "other"):
        change(owner, name, accepted=200)
    catch(owner, owner.work("a"))
    assert [(owner.node(n).accepted, count_slots(owner.node(n))) for n in ("a", "b", "other")] == [
        (0, 1),
        (0, 1),
        (200, 101),
    ]


def test_hard_rejection__work_in_an_epoch_or_replayed__stands(owner: FakePool):
    settled, replayed = owner.work("b"), owner.work("b")
    owner.decide(settled)
    with owner.database.write() as rows:
        rows.get_submission(replayed).audited = True
    owner.decide(replayed)
    settle(owner, settled)
    catch(owner, owner.work("a"))
    assert [owner.submission(each).state for each in (settled, replayed)] == [SubmissionState.SETTLED, ACCEPTED]


def test_hard_rejection__work_in_a_batch__keeps_its_step_and_is_counted_once(pool: FakePool):
    pool.params = make_params(verification=NEVER_DRAWN, max_staleness=1)
    pool.register("a", "b", owner="owner")
    pool.publish(0)
    packed = [pool.work("b"), pool.work("b")]
    for each in packed:
        pool.decide(each)
    assert [pool.submission(each).step for each in packed] == [0, 0]
    caught = pool.work("a")
    with pool.database.read() as rows:
        before = rows.count_groups_in_flight(oldest_version=0)
    catch(pool, caught)
    with pool.database.read() as rows:
        assert [row.receipt_hash for row in rows.list_batch(0)] == packed
        assert (before, rows.count_groups_in_flight(oldest_version=0)) == (4, 4)
    assert [(row.state, row.is_replayed) for row in map(pool.submission, packed)] == [(SUBMITTED, False)] * 2
    replay(pool, packed[0], Decision.ACCEPT)
    replay(pool, packed[1], Decision.REJECT)
    assert [(pool.submission(each).step, pool.submission(each).is_replayed) for each in packed] == [
        (0, True),
        (0, False),
    ]


def test_equivocation_slashed__work_that_nobody_replayed__is_judged_again(owner: FakePool):
    accepted = owner.work("b")
    owner.decide(accepted)
    event = SimpleNamespace(node=make_address("a"), contributor=make_address("owner"))
    ctx = SimpleNamespace(params=owner.params, clock=lambda: owner.now)
    with owner.database.write() as rows:
        chain_events.on_equivocation_slashed(ctx, rows, event)
    assert (owner.node("a").suspended, owner.submission(accepted).state) == ("equivocation", SUBMITTED)


@pytest.mark.parametrize("is_caught_first", [True, False])
def test_epoch_disabled__contributor_caught__what_it_held_is_judged_again(owner: FakePool, is_caught_first: bool):
    """It would be paid by the next epoch, unseen."""
    held, foreign = owner.work("b"), owner.work("other")
    owner.decide(held)
    owner.decide(foreign)
    settle(owner, held, foreign)
    caught = owner.work("a")
    if is_caught_first:
        catch(owner, caught)
    disable(owner, 0)
    if not is_caught_first:
        catch(owner, caught)
    assert [owner.submission(each).state for each in (held, foreign)] == [SUBMITTED, ACCEPTED]
    with owner.database.read() as rows:
        assert [receipt_hash for receipt_hash, _ in rows.list_unsettled()] == [foreign, caught]
    replay(owner, held, Decision.REJECT)
    assert owner.submission(held).state is SubmissionState.REJECTED


def test_epoch_disabled__equivocation_slashed_before__what_it_held_is_judged_again(owner: FakePool):
    held = owner.work("a")
    owner.decide(held)
    settle(owner, held)
    event = SimpleNamespace(node=make_address("a"), contributor=make_address("owner"))
    with owner.database.write() as rows:
        chain_events.on_equivocation_slashed(None, rows, event)  # type: ignore[arg-type]
    assert owner.submission(held).state is SubmissionState.SETTLED
    disable(owner, 0)
    assert owner.submission(held).state is SUBMITTED


def disable(pool: FakePool, epoch: int) -> None:
    with pool.database.write() as rows:
        chain_events.on_epoch_disabled(None, rows, SimpleNamespace(epoch=epoch))  # type: ignore[arg-type]


def test_draw_audit__suspended_node__is_always_replayed(owner: FakePool):
    receipt = owner.work("a")
    change(owner, "a", suspended="case", accepted=99)
    owner.dispatch()
    assert owner.submission(receipt).audited is True


def catch(pool: FakePool, receipt_hash: str, reason: Reason = Reason.PROOF) -> None:
    """A validator finds a fault, without a replay where none was drawn, and the quorum confirms it."""
    pool.decide(receipt_hash, Decision.REJECT, reason=reason)
    if pool.submission(receipt_hash).state is SUBMITTED:
        replay(pool, receipt_hash, Decision.REJECT, reason=reason)


def replay(pool: FakePool, receipt_hash: str, decision: Decision, **changes: Any) -> None:
    assert pool.submission(receipt_hash).audited
    pool.decide(receipt_hash, decision, **changes)


def settle(pool: FakePool, *receipts: str, epoch: int = 0) -> None:
    """An epoch that was posted holds these submissions."""
    with pool.database.write() as rows:
        hashes = {name: make_hash(name) for name in ("work_root", "reward_root", "data_hash", "previous_hash")}
        rows.add(EpochRow(number=epoch, leaf_count=1, units=20, closed_at=pool.now, **hashes))
        rows.put_into_epoch(epoch, receipts)
        rows.get_epoch(epoch).posted_block = 1
        rows.flush()
        rows.mark_settled(epoch, limit=99)


# -- undrawn pay in flight


def test_record_submission__undrawn_pay_beyond_the_limit__is_replayed_for_certain(owner: FakePool):
    """At a price of 3,000,000 a submission of 20 units earns 60: two are within a limit of 120, the third is not."""
    owner.price, owner.undrawn_limit = 3_000_000, 120
    receipts = [owner.work(name) for name in ("a", "b", "a")]
    assert [owner.submission(each).audited for each in receipts] == [None, None, True]
    assert owner.submission(owner.work("other")).audited is None, "others' work is not counted"
    owner.dispatch()
    assert [owner.submission(each).audited for each in receipts] == [False, False, True]


def test_record_submission__earlier_work_replayed_or_in_an_epoch__leaves_room_again(owner: FakePool):
    owner.price, owner.undrawn_limit = 3_000_000, 120
    settled, replayed = owner.work("a"), owner.work("b")
    owner.decide(settled)
    settle(owner, settled)
    with owner.database.write() as rows:
        rows.get_submission(replayed).audited = True
    owner.decide(replayed)
    receipts = [owner.work("a") for _ in range(3)]
    assert [owner.submission(each).audited for each in receipts] == [None, None, True]


def test_record_submission__earlier_work_is_being_replayed__epochs_leave_no_room(owner: FakePool):
    """A cheat that is drawn had until the verdict to settle as much undrawn work as epochs came."""
    owner.price, owner.undrawn_limit = 3_000_000, 120
    before = owner.work("b")
    owner.decide(before)
    owner.now += 1
    drawn = owner.record(owner.build_receipt(owner.lease("a")), signed_at=51).message.receipt_hash
    with owner.database.write() as rows:
        rows.get_submission(drawn).audited = True
    for name in ("a", "b"):
        later = owner.record(owner.build_receipt(owner.lease(name)), signed_at=52).message.receipt_hash
        owner.decide(later)
        settle(owner, *([before, later] if name == "a" else [later]), epoch="ab".index(name))
    beyond = owner.work("a")
    assert owner.submission(beyond).audited is True, "two of 60 since the first was drawn"
    owner.decide(drawn)
    owner.decide(beyond)
    assert owner.submission(owner.work("b")).audited is None
