"""The online filter in the rows: whose words count, when a batch is full, what is planned until then, what is paid."""

import pytest
from structlog.testing import capture_logs

from coordinator.db.models import SubmissionRow
from coordinator.domain import nodes
from coordinator.domain.panel import compute_live_groups
from coordinator.domain.steps import plan_tasks
from covey.protocol.canaries import CanaryKind
from covey.protocol.status import StepState, SubmissionState, TaskState
from covey.protocol.verdict import Decision
from tests.fakes.pool import FakePool, make_params

pytestmark = pytest.mark.unit
ACCEPT, REJECT = Decision.ACCEPT, Decision.REJECT


@pytest.fixture
def filtering(pool: FakePool) -> FakePool:
    """A step wants four live groups of two-group tasks, and samples ten groups at most: 2.9 x 4 in whole tasks."""
    pool.params = make_params(online_filter=True, max_sampling=2.9)
    pool.register("a", "b")
    pool.publish(0)
    return pool


def accept(pool: FakePool, receipt_hash: str, live: int | None) -> None:
    """The quorum accepts and says that so many groups are live."""
    pool.told = dict.fromkeys(range(len(pool.validators)), live)
    pool.accept(receipt_hash)


def get_state(pool: FakePool, step: int = 0) -> tuple[StepState, list[int]]:
    """The step's state and its batch, as live groups of each submission in order of task."""
    with pool.database.read() as rows:
        return rows.get_step(step).state, [row.live_groups for row in rows.list_batch(step)]


def count_pending(pool: FakePool) -> int:
    return len(pool.tasks(TaskState.PENDING))


# -- the words of validators


@pytest.mark.parametrize(
    ("is_on", "told", "live"),
    [
        (True, [2, 2], 2),
        (True, [2, 1], 1),
        (True, [0, 2], 0),
        (True, [None, 2], 0),
        (True, [None], 0),
        (False, [None, None], 2),
        (False, [None, 1], 1),
        (False, [1, 2], 1),
    ],
)
def test_compute_live_groups__words_of_a_quorum__the_smallest_counts(is_on: bool, told: list[int | None], live: int):
    row = SubmissionRow(task=1, groups=2)
    assert compute_live_groups(make_params(online_filter=is_on), row, told) == live


@pytest.mark.parametrize(("hostile", "live"), [(0, 0), (None, 0), (2, 1)])
def test_tally__one_hostile_word__never_raises_what_honest_ones_say(
    filtering: FakePool, hostile: int | None, live: int
):
    """It may only lower it, which costs sampling: units and state stay."""
    receipt_hash = filtering.work("a")
    filtering.dispatch()
    filtering.told = {0: hostile, 1: 1}
    with capture_logs() as logs:
        filtering.judge(receipt_hash, [(0, ACCEPT, {}), (1, ACCEPT, {})])
    row = filtering.submission(receipt_hash)
    assert (row.state, row.units, row.live_groups) == (SubmissionState.ACCEPTED, 20, live)
    assert [j.live_groups for j in row.turns] == [hostile, 1]
    assert [log["told"] for log in logs if log["event"] == "validators disagree about live groups"] == [[hostile, 1]]


def test_tally__word_of_who_was_outvoted__does_not_count(filtering: FakePool):
    receipt_hash = filtering.work("a")
    filtering.dispatch()
    filtering.told = {0: 2, 1: 0, 2: 2}
    filtering.judge(receipt_hash, [(0, ACCEPT, {}), (1, REJECT, {})])
    filtering.judge(receipt_hash, [(2, ACCEPT, {})])
    row = filtering.submission(receipt_hash)
    assert (row.state, row.live_groups) == (SubmissionState.ACCEPTED, 2)


def test_tally__rejected_or_canary__has_no_live_groups(filtering: FakePool):
    filtering.told = {0: 2, 1: 2}
    rejected = filtering.work("a")
    filtering.reject(rejected)
    filtering.canaries["b"] = CanaryKind.ACCEPT
    canary = filtering.work("b")
    filtering.accept(canary)
    assert [filtering.submission(each).live_groups for each in (rejected, canary)] == [0, 0]
    assert get_state(filtering) == (StepState.OPEN, [])


# -- when a batch is full


def test_close_step__groups_of_equal_rewards__do_not_fill_it_and_come_along(filtering: FakePool):
    for live in (1, 0, 2):
        accept(filtering, filtering.work("a"), live)
        assert get_state(filtering) == (StepState.OPEN, [])
    accept(filtering, filtering.work("a"), 1)
    assert get_state(filtering) == (StepState.READY, [1, 0, 2, 1])


def test_close_step__more_waits_than_it_needs__the_oldest_whole_submissions_go(pool: FakePool):
    """Staleness 1: two batches of work are out.  Live groups by task: 1, 2, 2, 2; a batch wants four."""
    pool.params = make_params(online_filter=True, max_staleness=1)
    pool.register("a", "b", "c", "d")
    pool.publish(0)
    made = [pool.work(name) for name in "abcd"]
    pool.told = {0: 1, 1: 1}
    pool.dispatch()
    pool.decide(made[0])
    pool.told = {0: 2, 1: 2}
    pool.decide(made[3])
    assert get_state(pool) == (StepState.OPEN, [])
    pool.decide(made[1])
    assert get_state(pool) == (StepState.READY, [1, 2, 2]), "five live groups: submissions are whole"
    pool.decide(made[2])
    pool.publish(1)
    assert get_state(pool, 1) == (StepState.OPEN, [])
    with pool.database.read() as rows:
        assert [rows.get_submission(each).task for each, _, _ in rows.list_unpacked(oldest_version=0)] == [3]


def test_close_step__all_dead__ends_at_the_cap_and_is_said(filtering: FakePool):
    with capture_logs() as logs:
        for _ in range(4):
            accept(filtering, filtering.work("a"), 0)
            assert get_state(filtering) == (StepState.OPEN, [])
        accept(filtering, filtering.work("a"), 0)
    assert get_state(filtering) == (StepState.READY, [0, 0, 0, 0, 0])
    said = [log for log in logs if log["event"] == "a batch has too few live groups"]
    assert [(log["step"], log["sampled"], log["live"]) for log in said] == [(0, 10, 0)]
    assert count_pending(filtering) == 0, "nothing more for this step"
    filtering.publish(1)
    assert count_pending(filtering) == 2, "the next one begins as the first did"


def test_close_step__filter_off__counts_what_is_dead_too(pool: FakePool):
    pool.register("a")
    pool.publish(0)
    for _ in range(2):
        accept(pool, pool.work("a"), 0)
    assert get_state(pool) == (StepState.READY, [0, 0])
    assert count_pending(pool) == 0


def test_close_step__dead_groups__are_paid(filtering: FakePool):
    for live in (0, 2):
        accept(filtering, filtering.work("a"), live)
    with filtering.database.read() as rows:
        accepted = rows.list_submissions(SubmissionState.ACCEPTED)
        assert [row.units for row in accepted] == [units for _, units in rows.list_unsettled()] == [20, 20]
        assert nodes.require_node(rows, accepted[0].node).accepted == 2


# -- what is planned


def test_plan_tasks__live_share_seen__is_planned_for_up_to_the_cap(filtering: FakePool):
    """Of dead work 2, 4, 6, 8, 10 groups are seen, so shares are 4/6, 4/8 ...: four live ones want 6, 8 ... groups in
    flight; ten less those seen is the room, which is 3 tasks, 2, 1 and none after the second."""
    assert count_pending(filtering) == 2
    for pending in (3, 3, 2, 1, 0):
        accept(filtering, filtering.work("a"), 0)
        assert count_pending(filtering) == pending
    assert get_state(filtering)[0] is StepState.READY


def test_plan_tasks__few_live_groups_are_missing__plans_few_tasks(filtering: FakePool):
    """Live 2 of 2: two groups are missing and one task is out.  Live 3 of 4: one is missing at a share of 7/8."""
    accept(filtering, filtering.work("a"), 2)
    assert count_pending(filtering) == 1
    accept(filtering, filtering.work("a"), 1)
    assert count_pending(filtering) == 1


def test_plan_tasks__void_work__is_planned_anew_and_not_sampled(filtering: FakePool):
    with filtering.database.write() as rows:
        for _ in range(3):
            assert plan_tasks(rows, filtering.params) == 0
    filtering.reject(filtering.work("a"))
    assert count_pending(filtering) == 2
    with filtering.database.read() as rows:
        assert rows.sum_accepted_groups(oldest_version=0) == (0, 0)


def test_plan_tasks__last_step_of_a_short_run__plans_nothing(filtering: FakePool):
    filtering.params = make_params(online_filter=True, max_steps=1, max_staleness=3)
    filtering.told = {0: 2, 1: 2}
    for _ in range(2):
        filtering.accept(filtering.work("a"))
    filtering.publish(1)
    assert count_pending(filtering) == 0


def test_close_step__batch__counts_its_groups(filtering: FakePool):
    for live in (1, 1, 2):
        accept(filtering, filtering.work("a"), live)
    filtering.publish(1)
    accept(filtering, filtering.work("a"), 1)
    with filtering.database.read() as rows:
        step = rows.get_step(0)
        assert (step.packed_groups, step.packed_live_groups, rows.count_packed_groups()) == (6, 4, 6)
        assert rows.sum_accepted_groups(oldest_version=0) == (8, 5)
        assert rows.sum_accepted_groups(oldest_version=1) == (2, 1)
