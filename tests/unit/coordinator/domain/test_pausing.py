"""A pause holds back new tasks only, is ended by the operator, and is not caused twice by one report."""

import pytest

from coordinator.domain import pausing
from coordinator.domain.pausing import Pause, PausedBy
from covey.errors import ProtocolError
from covey.protocol.learning_signs import LearningSign
from covey.protocol.status import SubmissionState
from tests.fakes.pool import FakePool

pytestmark = pytest.mark.unit
DEAD = (LearningSign.NO_LIVE_GROUP, LearningSign.ZERO_GRADIENT)


@pytest.fixture
def pool(pool: FakePool) -> FakePool:
    pool.register("a", "b")
    pool.publish(0)
    return pool


def report(pool: FakePool, steps: int, *signs: LearningSign, pause: bool = False) -> bool:
    with pool.database.write() as rows:
        return pausing.record_report(rows, steps=steps, signs=signs, pause=pause, now=pool.now)


def set_paused(pool: FakePool, is_paused: bool) -> bool:
    with pool.database.write() as rows:
        return pausing.set_paused(rows, by=PausedBy.OPERATOR, is_paused=is_paused, now=pool.now)


def find(pool: FakePool) -> Pause | None:
    with pool.database.read() as rows:
        return pausing.find_pause(rows)


def test_assign_tasks__paused__assigns_none_until_tasks_go_on(pool: FakePool) -> None:
    pool.wait("a")
    assert set_paused(pool, True)
    assert pool.assign() == 0
    assert set_paused(pool, False)
    assert pool.assign() == 1


def test_assign_tasks__paused__leased_and_submitted_work_goes_on(pool: FakePool) -> None:
    leased, receipt = pool.lease("a"), pool.work("b")
    set_paused(pool, True)
    pool.accept(receipt)
    pool.accept(pool.submit(leased))
    with pool.database.read() as rows:
        assert len(rows.list_submissions(SubmissionState.ACCEPTED)) == 2


def test_record_report__dead_run__pauses_and_says_why(pool: FakePool) -> None:
    assert not report(pool, 19, *DEAD)
    assert find(pool) is None
    assert report(pool, 20, *DEAD, pause=True)
    why = "no group has rewards that differ; the gradient is exactly zero"
    reason = f"its trainer has paused it after 20 steps, because the run cannot learn ({why})"
    assert find(pool) == Pause(since=1000, reason=reason)
    with pool.database.read() as rows, pytest.raises(ProtocolError, match="the pool is paused: its trainer") as caught:
        pausing.require_running(rows)
    assert (caught.value.code, caught.value.status) == ("pool_paused", 409)


def test_record_report__no_sign_yet__still_says_why(pool: FakePool) -> None:
    """The bound of dead steps may be smaller than the number of steps of a sign."""
    report(pool, 1, pause=True)
    pause = find(pool)
    assert pause is not None
    assert "(no group was live, or the gradient was exactly zero)" in pause.reason


def test_record_report__repeated_after_the_operator_has_resumed__pauses_nothing(pool: FakePool) -> None:
    """The trainer repeats a report if its process was killed before it noted the answer."""
    report(pool, 20, *DEAD, pause=True)
    assert set_paused(pool, False)
    assert not report(pool, 20, *DEAD, pause=True)
    assert not report(pool, 19, *DEAD, pause=True)
    assert find(pool) is None
    assert report(pool, 40, *DEAD, pause=True)


def test_record_report__run_that_learns_again__clears_the_signs_and_not_the_pause(pool: FakePool) -> None:
    report(pool, 20, *DEAD, pause=True)
    report(pool, 21)
    with pool.database.read() as rows:
        assert pausing.list_signs(rows) == ()
        assert pausing.is_paused(rows)


def test_list_signs__newest_report__replaces_the_one_before(pool: FakePool) -> None:
    report(pool, 5, LearningSign.TRUNCATED, LearningSign.NO_LIVE_GROUP)
    report(pool, 6, LearningSign.NO_LIVE_GROUP, LearningSign.NO_ANSWER)
    with pool.database.read() as rows:
        assert pausing.list_signs(rows) == (LearningSign.NO_ANSWER, LearningSign.NO_LIVE_GROUP)


def test_set_paused__twice__changes_nothing_the_second_time(pool: FakePool) -> None:
    assert set_paused(pool, True)
    pool.now += 50
    assert not set_paused(pool, True)
    assert find(pool) == Pause(since=1000, reason="its operator has paused it")
    assert not report(pool, 20, *DEAD, pause=True)
    assert find(pool) == Pause(since=1000, reason="its operator has paused it")
    assert set_paused(pool, False)
    assert not set_paused(pool, False)


def test_require_running__no_pause__returns(pool: FakePool) -> None:
    with pool.database.read() as rows:
        pausing.require_running(rows)


@pytest.mark.parametrize("is_paused", [True, False])
def test_set_paused__ended_pool__is_refused(pool: FakePool, is_paused: bool) -> None:
    with pool.database.write() as rows:
        rows.set_fact("ended", 7)
    with pytest.raises(ProtocolError, match="the pool ended in block 7") as caught:
        set_paused(pool, is_paused)
    assert (caught.value.code, caught.value.status) == ("pool_ended", 409)
    assert not report(pool, 20, *DEAD, pause=True)
