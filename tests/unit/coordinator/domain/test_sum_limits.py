"""Running sums of nodes: whose numbers count, who is replayed whole, suspended and pardoned.

In every submission 4 rows have 20 tokens in 4 windows. The mean of honest work is 0.2 per submission. For two
validators the limit is 0.21 per submission + 0.79, and the limit for a suspension is 0.24 per submission + 0.79.
"""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator.db.database import Database
from coordinator.domain import nodes, sum_limits
from covey.protocol.canaries import CanaryKind
from covey.protocol.running_sums import STATISTICS, ItemSum, Sums, SumStanding
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision, Reason
from tests.fakes.pool import FakePool, make_address, make_contract, make_exact, make_params
from tests.unit.coordinator.domain.test_tasks__queries import count_statements

pytestmark = pytest.mark.unit
LIMITS = {"logprob": {"mean": 0.01, "largest": 0.05}}
RULES = {
    "audit_rate": 0.0,
    "confirm_rate": 0.0,
    "draw_seconds": 1,
    "newcomer_submissions": 0,
    "audit_rows": 2,
    "thresholds": LIMITS,
}
HONEST, HIGH, HIGHER = 0.2, 0.3, 0.6
"""Totals of one submission. The last one is just within the limit of a submission, 0.66."""


def build(database: Database, **changes: object) -> FakePool:
    pool = FakePool(database, make_params(verification=RULES | changes, groups_per_step=400, max_staleness=9))
    pool.register("a")
    pool.publish(0)
    return pool


@pytest.fixture
def summing(database: Database) -> FakePool:
    """A pool in which every submission is replayed whole."""
    return build(database, audit_rate=1.0)


@pytest.fixture
def rowing(database: Database) -> FakePool:
    """A pool in which two rows of every submission are replayed, by one validator."""
    return build(database)


def make_sums(total: float, *, tokens: int = 20, windows: int = 4) -> Sums:
    return {
        name: ItemSum(total=total, items=windows if name in ("exponent", "mantissa") else tokens) for name in STATISTICS
    }


def work(pool: FakePool, *totals: float | None, name: str = "a", decision: Decision = Decision.ACCEPT) -> str:
    """Have validators 0, 1 and so on decide about a submission, and state these totals. None: no sums."""
    pool.stated = {i: make_sums(total) for i, total in enumerate(totals) if total is not None}
    receipt_hash = pool.work(name)
    pool.decide(receipt_hash, decision)
    return receipt_hash


def judge(pool: FakePool, *totals: float) -> None:
    """Have the drawn validator judge two rows of a submission. Validator i would state the total i."""
    pool.stated = {i: make_sums(total, tokens=10, windows=2) for i, total in enumerate(totals)}
    receipt_hash = pool.work("a")
    pool.dispatch()
    pool.ask(*range(len(totals)))  # none of them is away
    order, validator = next((order, i) for i in range(len(totals)) if (order := pool.claim(i)) is not None)
    pool.commit(validator, order[1], pool.build_verdict(validator, receipt_hash, Decision.ACCEPT))
    pool.reveal(order[1])
    pool.dispatch()


def find(pool: FakePool, name: str = "a") -> tuple[int, dict[str, tuple[float, int]], str] | None:
    """Return the number of submissions, total and items of log-probabilities by validator, and what is above."""
    with pool.database.read() as rows:
        found = rows.get_running_sums(make_address(name))
        if found is None:
            return None
        names = {address: f"v{i}" for i, address in enumerate(pool.validators)}
        stated = {names[v]: (round(s["logprob"].total, 9), s["logprob"].items) for v, s in found.by_validator.items()}
        return found.submissions, stated, found.above


def add_peers(pool: FakePool, *totals: float, owner: str = "", submissions: int = 20) -> None:
    """Register nodes for which two validators have stated these totals, in each of their submissions."""
    for number, total in enumerate(totals):
        pool.register(f"peer {number}", owner=owner)
        stated = {"logprob": ItemSum(total=total * submissions, items=20 * submissions)}
        with pool.database.write() as rows:
            row = rows.require_running_sums(make_address(f"peer {number}"))
            row.submissions, row.by_validator = submissions, dict.fromkeys(pool.validators[:2], stated)


def pardon(pool: FakePool, name: str) -> tuple[int, set[str]]:
    """Return the strikes and the nodes that a pardon took back."""
    with pool.database.write() as rows:
        given = nodes.pardon(rows, make_address(name))
    return given.strikes, set(given.nodes)


def list_logged(logs: Sequence[MutableMapping[str, Any]], part: str) -> list[MutableMapping[str, Any]]:
    return [log for log in logs if part in log["event"]]


def is_drawn_whole(pool: FakePool, name: str = "a") -> bool:
    receipt_hash = pool.work(name)
    pool.dispatch()
    return bool(pool.submission(receipt_hash).audited)


def repeat(act: Callable[[], object], until: Callable[[], bool], most: int = 60) -> int:
    """Return how often `act` was called until a condition held."""
    for count in range(1, most + 1):
        act()
        if until():
            return count
    pytest.fail("the condition never held")


def test_add_accepted__two_validators__adds_to_both_and_to_statistics_with_a_limit_alone(summing: FakePool):
    work(summing, HONEST, HIGH)
    work(summing, HONEST, HONEST)
    assert find(summing) == (2, {"v0": (0.4, 40), "v1": (0.5, 40)}, "")
    with summing.database.read() as rows:
        sums = rows.get_running_sums(make_address("a"))
        assert {name for each in sums.by_validator.values() for name in each} == {"logprob"}


def test_add_accepted__rejected_unknown_canary_or_without_sums__adds_nothing(summing: FakePool):
    work(summing, None, None)
    work(summing, HONEST, HONEST, decision=Decision.UNKNOWN)
    summing.canaries = {"a": CanaryKind.REJECT}
    work(summing, HONEST, HONEST)
    summing.canaries = {}
    work(summing, HONEST, HONEST, decision=Decision.REJECT)
    assert summing.node("a").suspended == nodes.REJECTED
    assert find(summing) is None


def test_reveal__impossible_or_of_the_exact_lane__states_nothing(database: Database):
    pool = build(database, audit_rate=1.0)
    for sums in (make_sums(0.7), make_sums(HONEST, tokens=19), make_sums(HONEST, windows=5)):
        pool.stated = {0: sums, 1: make_sums(HONEST)}
        receipt_hash = pool.work("a")
        pool.accept(receipt_hash)
        assert [turn.sums is None for turn in pool.submission(receipt_hash).turns] == [True, False]
    assert find(pool) == (3, {"v1": (0.6, 60)}, "")
    pool.params = make_params(verification=make_exact(**RULES | {"audit_rate": 1.0}))
    pool.register("exact", contract=make_contract().digest)
    pool.contracts = {0: make_contract().digest, 1: make_contract().digest}
    pool.ask(0, 1)
    pool.stated = dict.fromkeys((0, 1), make_sums(HONEST))
    receipt_hash = pool.work("exact")
    pool.accept(receipt_hash)
    assert pool.submission(receipt_hash).state is SubmissionState.ACCEPTED
    assert find(pool, "exact") is None


def test_above__both_validators__replays_whole_until_below_and_says_so_once(rowing: FakePool):
    rowing.params = make_params(verification=RULES | {"audit_rate": 1.0}, groups_per_step=400, max_staleness=9)
    with capture_logs() as logs:
        assert repeat(lambda: work(rowing, HIGH, HIGH), lambda: find(rowing)[2] == "logprob") == 9
        rowing.params = make_params(verification=RULES, groups_per_step=400, max_staleness=9)
        assert is_drawn_whole(rowing)
        repeat(lambda: work(rowing, HONEST, HONEST), lambda: find(rowing)[2] == "")
        assert not is_drawn_whole(rowing)
    said = [log["event"] for log in logs if "running sums" in log["event"]]
    assert said == [
        "all work of a node is replayed because of its running sums",
        "the running sums of a node are below their limits again",
    ]
    (warning,) = [log for log in logs if log["event"] == said[0]]
    assert (warning["statistic"], warning["items"], warning["submissions"]) == ("logprob", 180, 9)
    assert warning["total"] == pytest.approx(2.7)
    assert 2.67 < warning["limit"] < 2.7
    assert rowing.node("a").suspended == ""


def test_above__other_nodes_of_the_contributor__are_not_replayed_whole(rowing: FakePool):
    rowing.register("b", owner="a's owner")
    with rowing.database.write() as rows:
        rows.require_running_sums(make_address("a")).above = "logprob"
    assert is_drawn_whole(rowing)
    assert not is_drawn_whole(rowing, "b")


def test_window__below_after_1000_submissions__begins_at_zero_and_above_goes_on(
    summing: FakePool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("coordinator.domain.sum_limits.WINDOW", 10)
    for _ in range(10):
        work(summing, HONEST, HONEST)
    assert find(summing) == (0, {}, "")
    for _ in range(12):
        work(summing, HIGH, HIGH)
    assert find(summing) == (12, {"v0": (3.6, 240), "v1": (3.6, 240)}, "logprob")


def test_suspension__far_above__is_pardoned_and_begins_at_zero(summing: FakePool):
    add_peers(summing, HONEST, HONEST, HONEST)
    waiting = summing.work("a")
    assert repeat(lambda: work(summing, HIGHER, HIGHER), lambda: bool(summing.node("a").suspended)) == 3
    assert summing.node("a").suspended == nodes.SUMS
    summing.decide(waiting)  # it has no sums
    with summing.database.read() as rows:
        assert rows.get_contributor(make_address("a's owner")).suspended == ""
        assert rows.list_cases() == []
    with summing.database.write() as rows:
        assert nodes.pardon(rows, make_address("a")).nodes == [make_address("a")]
    assert (summing.node("a").suspended, find(summing)) == ("", (0, {}, ""))
    work(summing, HONEST, HONEST)
    assert find(summing) == (1, {"v0": (0.2, 20), "v1": (0.2, 20)}, "")


def test_suspension__whole_pool_far_above__is_an_alarm_once(summing: FakePool):
    """A trained policy or a driver moved the mean of all nodes. By the calibration each would be suspended."""
    summing.register("b")
    add_peers(summing, HIGHER, HIGHER, 0.5, HONEST)
    with capture_logs() as logs:
        for name in ("a", "b"):
            for _ in range(4):
                work(summing, HIGHER, HIGHER, name=name)
            assert (summing.node(name).suspended, find(summing, name)[2]) == ("", "logprob")
    (alarm,) = list_logged(logs, "the calibration may no longer fit")
    assert (alarm["log_level"], alarm["node"], alarm["nodes"]) == ("error", make_address("a"), 4)


def test_unfit__no_node_above_any_more__is_taken_back_and_can_come_again(summing: FakePool):
    def find_unfit() -> tuple[str, SumStanding] | None:
        with summing.database.read() as rows:
            return sum_limits.find_highest_sum(rows, summing.params, summing.validators)

    assert find_unfit() is None
    for _ in range(4):
        work(summing, HIGHER, HIGHER)
    found = find_unfit()
    assert found is not None
    node, standing = found
    assert (node, standing.statistic, standing.items) == (make_address("a"), "logprob", 80)
    assert (standing.total, standing.is_above) == (pytest.approx(2.4), True)
    with capture_logs() as logs:
        repeat(lambda: work(summing, 0.0, 0.0), lambda: find_unfit() is None)
        assert len(list_logged(logs, "the calibration fits again")) == 1
        repeat(lambda: work(summing, HIGHER, HIGHER), lambda: find_unfit() is not None)
    assert len(list_logged(logs, "the calibration may no longer fit")) == 1


@pytest.mark.parametrize("peers", ["two", "own", "new", "suspended"])
def test_suspension__too_few_other_nodes__is_an_alarm(summing: FakePool, peers: str):
    owner, submissions = "a's owner" if peers == "own" else "", 19 if peers == "new" else 20
    add_peers(summing, *[HONEST] * (2 if peers == "two" else 3), owner=owner, submissions=submissions)
    if peers == "suspended":
        summing.strike("peer 0", summing.params.strikes_to_suspend)
    with capture_logs() as logs:
        for _ in range(4):
            work(summing, HIGHER, HIGHER)
    assert summing.node("a").suspended == ""
    assert len(list_logged(logs, "the calibration may no longer fit")) == 1


def test_suspension__new_key_after_the_first__suspends_the_contributor(summing: FakePool):
    add_peers(summing, HONEST, HONEST, HONEST)
    for name, suspended in (("a", ["sums", "", ""]), ("b", ["sums"] * 3)):
        summing.register("a", "b", "c", owner="owner")
        for _ in range(3):
            work(summing, HIGHER, HIGHER, name=name)
        assert [summing.node(each).suspended for each in ("a", "b", "c")] == suspended
    summing.register("later", owner="owner")
    assert summing.node("later").suspended == nodes.SUMS
    with summing.database.write() as rows:
        assert len(nodes.pardon(rows, make_address("owner")).nodes) == 4
    assert summing.node("later").suspended == ""


@pytest.mark.parametrize("named", ["a", "a's owner"])
def test_pardon__node_suspended_for_sums_alone__keeps_the_strikes(summing: FakePool, named: str):
    summing.register("b", owner="a's owner")
    summing.strike("a", 1)
    with summing.database.write() as rows:
        nodes.suspend(rows, nodes.require_node(rows, make_address("a")), nodes.SUMS)
    assert pardon(summing, named) == (0, {make_address("a")})
    assert (summing.node("a").suspended, summing.strikes("a")) == ("", 1)
    with summing.database.read() as rows:
        assert nodes.count_pardons(rows, make_address("a's owner")) == 0


def test_pardon__by_what_the_named_one_is_suspended_for__leaves_other_reasons(summing: FakePool):
    summing.register("b", owner="a's owner")
    with summing.database.write() as rows:
        nodes.suspend(rows, nodes.require_node(rows, make_address("a")), nodes.SUMS)
    summing.strike("b", summing.params.strikes_to_suspend)
    assert [summing.node(name).suspended for name in ("a", "b")] == ["sums", "strikes"]
    assert pardon(summing, "a") == (0, {make_address("a")})
    assert [summing.node(name).suspended for name in ("a", "b")] == ["strikes", "strikes"]
    with summing.database.write() as rows:
        nodes.require_node(rows, make_address("a")).suspended = nodes.SUMS
    assert pardon(summing, "b") == (summing.params.strikes_to_suspend, {make_address("b")})
    assert [summing.node(name).suspended for name in ("a", "b")] == ["sums", ""]


def test_rotation__key_retired_below_the_limit__the_next_one_is_above_at_once(summing: FakePool):
    """An honest node that was heard later does not help, and neither do keys that were registered before."""
    summing.register("key 0", "key 1", "key 2", "honest", owner="rotator")
    for _ in range(8):
        work(summing, HIGH, HIGH, name="key 0")
    assert find(summing, "key 0")[2] == ""
    work(summing, HONEST, HONEST, name="honest")
    assert find(summing, "honest") == (9, {"v0": (2.6, 180), "v1": (2.6, 180)}, ""), "it begins with those of key 0"
    summing.remove("key 0")
    assert repeat(lambda: work(summing, HIGH, HIGH, name="key 1"), lambda: bool(find(summing, "key 1")[2])) == 1
    summing.remove("key 1")
    work(summing, HIGH, HIGH, name="key 2")
    assert find(summing, "key 2") == (10, {"v0": (3.0, 200), "v1": (3.0, 200)}, "logprob")


def test_rotation__honest_contributor__begins_at_zero(summing: FakePool):
    """A copy of an honest history would be room for a cheat."""
    summing.register("first", "second", owner="owner")
    for _ in range(6):
        work(summing, HONEST, HONEST, name="first")
    work(summing, HONEST, HONEST, name="second")
    assert find(summing, "second") == (1, {"v0": (0.2, 20), "v1": (0.2, 20)}, "")


def test_validators__removed_from_the_pool__do_not_count(summing: FakePool):
    for _ in range(9):
        work(summing, HIGH, HIGH)
    assert find(summing)[2] == "logprob"
    summing.validators = [make_address("another validator"), *summing.validators[1:]]
    work(summing, HONEST, HONEST)
    with summing.database.read() as rows:
        row = rows.get_running_sums(make_address("a"))
        assert (len(row.by_validator), row.above) == (3, ""), "the lower one of the two that are left"


def judge_all(pool: FakePool) -> None:
    """Have validators judge two rows of everything that is drawn, up to the revealed verdicts."""
    pool.ask(0, 1, 2)
    while True:
        found = next(((order, i) for i in range(3) if (order := pool.claim(i)) is not None), None)
        if found is None:
            return
        (_, turn), validator = found
        with pool.database.read() as rows:
            about = rows.get_judgement(turn).receipt_hash
        pool.commit(validator, turn, pool.build_verdict(validator, about, Decision.ACCEPT))
        pool.reveal(turn)


def test_dispatch__many_submissions__reads_the_sums_of_all_nodes_at_once(rowing: FakePool):
    names = [f"node {number}" for number in range(10)]
    rowing.register(*names)
    rowing.stated = dict.fromkeys(range(3), make_sums(HONEST / 2, tokens=10, windows=2))
    for name in names:
        rowing.work(name)
    rowing.dispatch()
    judge_all(rowing)
    rowing.dispatch()
    counts = []
    for few in (names[:2], names):
        decided = [rowing.work(name) for name in few]
        rowing.dispatch()
        judge_all(rowing)
        for name in few:
            rowing.work(name)
        with count_statements(rowing) as statements:
            rowing.dispatch()
        assert {rowing.submission(each).state for each in decided} == {SubmissionState.ACCEPTED}
        counts.append(sum(each.startswith("SELECT") and "running_sums" in each for each in statements))
    assert counts == [2, 2], "those of accepted work, and those of work that is drawn"


def test_suspension__node_with_a_graver_reason__keeps_it(summing: FakePool):
    waiting = [summing.work("a") for _ in range(3)]
    with summing.database.write() as rows:
        nodes.suspend(rows, rows.get_node(make_address("a")), nodes.CASE)
    summing.stated = dict.fromkeys(range(2), make_sums(HIGHER))
    for receipt_hash in waiting:
        summing.decide(receipt_hash)
    assert (summing.node("a").suspended, find(summing)[2]) == (nodes.CASE, "logprob")


def test_hostile_validator__of_two__does_not_raise_an_honest_node(summing: FakePool):
    for _ in range(20):
        work(summing, HIGHER, HONEST)
    assert (find(summing)[2], summing.node("a").suspended) == ("", "")


def test_hostile_validator__of_three_with_rows__neither_raises_nor_hides(rowing: FakePool):
    """Validator 0 states what a cheat has of honest work, and nothing of a cheat."""
    for _ in range(24):
        judge(rowing, 0.5, HONEST / 2, HONEST / 2)
    count, stated, above = find(rowing)
    assert (count, len(stated), above) == (24, 3, "")
    total, items = stated["v0"]
    assert total == pytest.approx(items / 20)
    assert total > 0.21 * items / 20 + 0.8, "it would be above the limit by the sums of validator 0"
    for _ in range(40):
        judge(rowing, 0.0, HIGH, HIGH)
        if find(rowing)[2]:
            break
    assert find(rowing)[2] == "logprob"


def test_differing__validators_of_one_submission__are_logged(summing: FakePool):
    with capture_logs() as logs:
        work(summing, HONEST, HONEST + 0.08)
        assert logs == []
        work(summing, HONEST, HIGH)  # more than a fifth of the mean and one item, 0.09
    (log,) = logs
    assert (log["event"], log["statistics"]) == ("validators disagree about sums", ["logprob"])
    assert log["validators"] == sorted(summing.validators[:2])


def test_judged_again__sums_of_rows__do_not_count_for_the_whole_replay(rowing: FakePool):
    """A rejection of drawn rows orders a whole replay, and only its verdicts count."""
    rowing.stated = dict.fromkeys(range(3), make_sums(HONEST, tokens=10, windows=2))
    receipt_hash = rowing.work("a")
    rowing.decide(receipt_hash, Decision.REJECT, reason=Reason.PROOF)
    rowing.stated = dict.fromkeys(range(3), make_sums(HONEST))
    rowing.decide(receipt_hash)
    count, stated, _ = find(rowing)
    assert (count, {items for _, items in stated.values()}) == (1, {20})
