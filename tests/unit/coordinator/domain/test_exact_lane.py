"""Work under an execution contract goes only to validators with the same one, and needs a quorum of them."""

import pytest

from coordinator.db.database import Database
from coordinator.domain import exact_lane, idleness, nodes
from covey.errors import ProtocolError
from covey.protocol.execution_contract import ExecutionContract
from covey.protocol.status import SubmissionState, TaskState
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import STAKE_RULE, FakePool, make_address, make_contract, make_exact, make_params

pytestmark = pytest.mark.unit
HOPPER, BLACKWELL = make_contract(), make_contract(architecture="NVIDIA B200, sm_100")
AUDITED = {"audit_rate": 1.0, "confirm_rate": 0.0, "draw_seconds": 1}


def build(database: Database, *, mode: str = "exact", quorum: int = 1, **verification: object) -> FakePool:
    """Return a pool with both contracts. Validators 0 and 1 have the first one, validator 2 has the second one."""
    rules = make_exact(HOPPER, BLACKWELL, mode=mode) | AUDITED | verification
    pool = FakePool(database, make_params(quorum=quorum, verification=rules))
    pool.contracts = {0: HOPPER.digest, 1: HOPPER.digest, 2: BLACKWELL.digest}
    pool.ask(0, 1, 2)
    return pool


def require(pool: FakePool, contract: str) -> None:
    with pool.database.read() as rows:
        exact_lane.require_served(rows, pool.params, contract, now=pool.now)


def judge(pool: FakePool, receipt_hash: str, *, quorum: int = 1) -> list[int]:
    """Have all validators ask until the submission is decided. Return those that judged it."""
    pool.dispatch()
    judged = []
    for _ in range(3):
        pool.now += pool.params.turn_seconds
        for validator in range(3):
            taken = pool.claim(validator)
            if taken is not None and taken[0] == "judge":
                pool.commit(validator, taken[1], pool.build_verdict(validator, receipt_hash, Decision.ACCEPT))
                judged.append(validator)
                if len(judged) == quorum:
                    for turn in [each.id for each in pool.submission(receipt_hash).turns if each.commitment]:
                        pool.reveal(turn)
                    pool.dispatch()
                    return judged
    return judged


@pytest.mark.parametrize(("contract", "able"), [(HOPPER, {0, 1}), (BLACKWELL, {2})])
def test_find_order__two_contracts_and_three_validators__each_gets_its_own_kind(
    database: Database, contract: ExecutionContract, able: set[int]
) -> None:
    pool = build(database)
    pool.publish(0)
    for i in range(2):
        pool.register(f"node-{i}", contract=contract.digest)
        receipt_hash = pool.work(f"node-{i}")
        assert pool.submission(receipt_hash).contract == contract.digest
        assert set(judge(pool, receipt_hash)) <= able
        assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED


def test_find_order__quorum_of_two__both_have_the_contract(database: Database) -> None:
    pool = build(database, quorum=2)
    pool.publish(0)
    pool.register("a", contract=HOPPER.digest)
    assert sorted(judge(pool, pool.work("a"), quorum=2)) == [0, 1]


def test_find_order__calibrated_work__goes_to_all(database: Database) -> None:
    pool = build(database, mode="calibrated", quorum=3)
    pool.publish(0)
    pool.register("a")
    assert sorted(judge(pool, pool.work("a"), quorum=3)) == [0, 1, 2]


def test_dispatch__validators_of_the_contract_are_gone__nobody_else_is_asked(database: Database) -> None:
    pool = build(database)
    pool.publish(0)
    pool.register("a", contract=BLACKWELL.digest)
    receipt_hash = pool.work("a")
    pool.contracts[2] = HOPPER.digest
    pool.ask(2)
    assert judge(pool, receipt_hash) == []
    pool.dispatch()
    assert (pool.submission(receipt_hash).reason, pool.strikes("a")) == (Reason.UNDECIDED, 0)


def test_require_served__contract__is_listed_and_has_a_quorum_of_present_validators(database: Database) -> None:
    pool = build(database, quorum=2)
    require(pool, HOPPER.digest)
    with pytest.raises(ProtocolError, match=f"no_validators: 1 validators have the .* {BLACKWELL.digest}"):
        require(pool, BLACKWELL.digest)
    for contract in ("", make_contract(torch="1.0").digest):
        with pytest.raises(ProtocolError, match=r"wrong_contract: the pool does not accept .*"):
            require(pool, contract)
    with pool.database.read() as rows:
        assert exact_lane.count_validators(rows, pool.params, now=pool.now) == {HOPPER.digest: 2, BLACKWELL.digest: 1}
        assert exact_lane.list_served(rows, pool.params, now=pool.now) == [HOPPER.digest]
    pool.now += exact_lane.ABSENT_SECONDS + 1
    with pytest.raises(ProtocolError, match="no_validators: 0 validators"):
        require(pool, HOPPER.digest)


def test_require_served__pool_with_both_lanes__accepts_work_without_a_contract(database: Database) -> None:
    pool = build(database, mode="calibrated", quorum=2)
    require(pool, "")
    require(pool, HOPPER.digest)
    with pool.database.read() as rows:
        assert exact_lane.list_served(rows, pool.params, now=pool.now) == ["", HOPPER.digest]


def test_assign_tasks__too_few_validators__only_served_nodes_get_tasks(database: Database) -> None:
    pool = build(database, quorum=2)
    pool.publish(0)
    pool.register("a", contract=BLACKWELL.digest)
    pool.wait("a")
    assert pool.tasks(TaskState.ASSIGNED) == []
    pool.assign()
    assert pool.tasks(TaskState.ASSIGNED) == []
    with pool.database.write() as rows:
        rows.require_contributor(make_address("a's owner")).staked = "1000"
        rows.require_contributor(make_address("a's owner")).locked = "0"
    with pool.database.read() as rows:
        node = nodes.require_node(rows, make_address("a"))
        why = idleness.explain(rows, pool.params, node, rule=STAKE_RULE, now=pool.now)
    assert why.code == "no_validators"
    pool.register("b", contract=HOPPER.digest)
    assert pool.lease("b").node == make_address("b")


def test_record_receipts__node_has_changed_its_lane__file_has_the_contract_of_its_lease(database: Database) -> None:
    pool = build(database, mode="calibrated")
    pool.publish(0)
    for i, (before, after) in enumerate([(HOPPER.digest, BLACKWELL.digest), ("", HOPPER.digest)]):
        pool.register(f"node-{i}", contract=before)
        task = pool.lease(f"node-{i}")
        pool.register(f"node-{i}", contract=after)
        assert pool.submission(pool.submit(task)).contract == before


def test_collect_tasks__lost_lease_after_a_change_of_the_lane__is_made_under_the_new_contract(
    database: Database,
) -> None:
    pool = build(database)
    pool.publish(0)
    pool.register("a", contract=HOPPER.digest)
    lost = pool.lease("a")
    pool.register("a", contract=BLACKWELL.digest)
    again = pool.collect("a")
    assert again is not None
    assert again.lease == lost.lease
    assert pool.submission(pool.submit(again)).contract == BLACKWELL.digest


def count(pool: FakePool) -> int:
    """Return how many validators serve the first contract."""
    with pool.database.read() as rows:
        return exact_lane.count_validators(rows, pool.params, now=pool.now)[HOPPER.digest]


def answer(pool: FakePool, *validators: int, seconds: float, step: float = 30.0) -> None:
    """Let some time pass, in which the other validators of the first contract ask, but take no turn."""
    end = pool.now + seconds
    while pool.now < end:
        pool.now += step
        for validator in (0, 1):
            taken = pool.claim(validator, free_turns=int(validator in validators))
            if taken is None:
                continue
            if taken[0] == "reveal":
                pool.reveal(taken[1])
                continue
            with pool.database.read() as rows:
                turn = rows.get_judgement(taken[1])
                assert turn is not None
                about = turn.receipt_hash
            pool.commit(validator, taken[1], pool.build_verdict(validator, about, Decision.ACCEPT))
        pool.dispatch()


def find_patience(pool: FakePool) -> float:
    return exact_lane.compute_patience(pool.params)


def test_count_validators__one_takes_no_turn__counts_no_more_and_no_tasks_are_assigned(database: Database) -> None:
    pool = build(database, quorum=2)
    pool.publish(0)
    pool.register("a", contract=HOPPER.digest)
    pool.work("a")
    assert count(pool) == 2
    answer(pool, 0, seconds=find_patience(pool) + 120)
    assert count(pool) == 1
    with pytest.raises(ProtocolError, match="no_validators: 1 validators have the execution contract"):
        require(pool, HOPPER.digest)
    with pool.database.read() as rows:
        assert exact_lane.list_served(rows, pool.params, now=pool.now) == []
        standing = rows.list_validators()
    assert [standing[pool.validators[i]].passes for i in (0, 1, 2)] == [0, 1, 0]


def test_count_validators__both_answer__both_count(database: Database) -> None:
    pool = build(database, quorum=2)
    pool.publish(0)
    pool.register("a", contract=HOPPER.digest)
    receipt_hash = pool.work("a")
    answer(pool, 0, 1, seconds=find_patience(pool) + 120)
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED
    assert count(pool) == 2


def test_count_validators__phantom__is_tried_again_later_and_then_for_twice_as_long(database: Database) -> None:
    pool = build(database, quorum=2)
    pool.publish(0)
    pool.register("a", contract=HOPPER.digest)
    pool.work("a")
    for passes, seconds in ((1, find_patience(pool) + 60), (2, 60)):
        answer(pool, 0, seconds=seconds, step=60.0)
        assert (count(pool), pool.find_validator(1).passes) == (1, passes)
        pool.now = pool.find_validator(1).passed_at + exact_lane.compute_exclusion(passes) - 1
        pool.ask(0, 1)
        assert count(pool) == 1
        pool.now += 2
        assert count(pool) == 2
    assert exact_lane.compute_exclusion(2) == 2 * exact_lane.compute_exclusion(1)


def test_count_validators__phantom_answers_a_replay__counts_at_once(database: Database) -> None:
    pool = build(database, quorum=2)
    pool.publish(0)
    pool.register("a", contract=HOPPER.digest)
    receipt_hash = pool.work("a")
    answer(pool, 0, seconds=find_patience(pool) + 120)
    assert count(pool) == 1
    answer(pool, 0, 1, seconds=120)
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED
    assert count(pool) == 2


def test_count_validators__phantom_takes_turns_and_lets_them_lapse__counts_no_more(database: Database) -> None:
    pool = build(database)
    pool.publish(0)
    pool.register("a", contract=HOPPER.digest)
    pool.work("a")
    pool.dispatch()
    taken = next(i for i in (0, 1) if pool.claim(i) is not None)
    pool.now += pool.params.judgement_seconds + 1
    pool.dispatch()
    assert pool.find_validator(taken).passes == 1
    assert count(pool) == 1


def test_count_validators__phantom_says_unknown_where_others_decide__counts_no_more(database: Database) -> None:
    pool = build(database)
    pool.publish(0)
    pool.register("a", contract=HOPPER.digest)
    receipt_hash = pool.work("a")
    pool.dispatch()
    silent = next(i for i in (0, 1) if pool.claim(i) is not None)
    turn = pool.submission(receipt_hash).turns[0].id
    pool.commit(silent, turn, pool.build_verdict(silent, receipt_hash, Decision.UNKNOWN))
    pool.reveal(turn)
    pool.dispatch()
    assert pool.find_validator(silent).passes == 0  # nobody has decided: the work may be to blame
    pool.judge(receipt_hash, [(1 - silent, Decision.ACCEPT, {})])
    assert (pool.find_validator(silent).passes, count(pool)) == (1, 1)


def test_note_asking__absent_or_with_another_contract__its_patience_begins(database: Database) -> None:
    pool = build(database, quorum=2)
    pool.publish(0)
    pool.register("a", contract=HOPPER.digest)
    pool.work("a")
    pool.contracts[1] = BLACKWELL.digest
    answer(pool, 0, seconds=find_patience(pool) + 120)
    assert pool.find_validator(1).passes == 0
    pool.contracts[1] = HOPPER.digest
    answer(pool, 0, seconds=120)
    assert (count(pool), pool.find_validator(1).passes) == (2, 0)


def test_dispatch__many_phantoms__honest_validators_are_asked_first(database: Database) -> None:
    rules = make_exact(HOPPER) | AUDITED
    pool = FakePool(database, make_params(quorum=1, verification=rules), validators=8)
    pool.contracts = dict.fromkeys(range(8), HOPPER.digest)
    pool.ask(*range(8))
    pool.publish(0)
    pool.register("a", contract=HOPPER.digest)
    pool.work("a")
    pool.dispatch()
    end = pool.now + find_patience(pool) + 8 * pool.params.turn_seconds + 60
    while pool.now < end:
        pool.now += 30
        pool.ask(*range(8))
        pool.dispatch()
    assert [pool.find_validator(i).passes for i in range(8)] == [1] * 8
    answer(pool, 0, seconds=60)
    pool.register("b", contract=HOPPER.digest)
    pool.work("b")
    pool.dispatch()
    assert pool.claim(0) is not None  # at once, before anybody else's turn is over


def fault(pool: FakePool, name: str) -> None:
    """Have validator 2 find one fault in a submission."""
    receipt_hash = pool.work(name)
    pool.dispatch()
    pool.judge(receipt_hash, [(2, Decision.REJECT, {"reason": Reason.INEXACT})])
    row = pool.submission(receipt_hash)
    assert (row.state, row.reason) == (SubmissionState.VOID, Reason.INEXACT)


def test_note_fault__second_one_within_100000_windows__suspends_until_a_pardon(database: Database) -> None:
    pool = build(database)
    pool.publish(0)
    pool.register("a", contract=BLACKWELL.digest)
    fault(pool, "a")
    assert (pool.node("a").suspended, pool.strikes("a")) == ("", 1)
    fault(pool, "a")
    assert (pool.node("a").suspended, pool.strikes("a")) == (nodes.FAULTS, 2)
    with pool.database.write() as rows:
        assert nodes.pardon(rows, make_address("a")).nodes == [make_address("a")]
    assert (pool.node("a").suspended, pool.strikes("a")) == ("", 0)


def test_note_fault__each_of_another_node__all_nodes_of_the_contributor_are_suspended(database: Database) -> None:
    pool = build(database)
    pool.publish(0)
    pool.register("a", "b", "c", owner="o", contract=BLACKWELL.digest)
    pool.register("other", contract=BLACKWELL.digest)
    fault(pool, "a")
    fault(pool, "other")
    assert [pool.node(name).suspended for name in ("a", "b", "c", "other")] == ["", "", "", ""]
    fault(pool, "b")
    pool.register("d", owner="o", contract=BLACKWELL.digest)
    assert [pool.node(name).suspended for name in ("a", "b", "c", "d")] == [nodes.FAULTS] * 4
    assert pool.node("other").suspended == ""
    with pool.database.write() as rows:
        assert len(nodes.pardon(rows, make_address("a")).nodes) == 4


def test_note_fault__rare_ones__are_void_alone(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "WINDOWS_PER_FAULT", 10)
    pool = build(database, proof_window=2)
    pool.publish(0)
    pool.register("a", contract=BLACKWELL.digest)
    fault(pool, "a")  # 20 units are 10 windows
    fault(pool, "a")  # 20 windows and 2 faults
    assert pool.node("a").suspended == ""
    monkeypatch.setattr(nodes, "WINDOWS_PER_FAULT", 11)
    fault(pool, "a")
    assert pool.node("a").suspended == nodes.FAULTS
