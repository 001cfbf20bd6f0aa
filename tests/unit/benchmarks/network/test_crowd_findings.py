"""Double leases, steps that stand still, and waits of claims, worked out by hand."""

import math

import pytest

from benchmarks.network.crowd_findings import (
    BatchProgress,
    SeenLease,
    count_double_leases,
    find_stalled,
    select_waits,
)

pytestmark = pytest.mark.unit

FIRST = SeenLease(7, 1, "a", 100.0, 120.0)


def test_count_double_leases__one_node_each__is_zero() -> None:
    seen = [FIRST, SeenLease(8, 2, "b", 101.0, 121.0)]
    assert count_double_leases(seen, {1: (7, "a"), 2: (8, "b")}) == 0


def test_count_double_leases__lease_sent_again_to_its_node__is_zero() -> None:
    assert count_double_leases([FIRST, FIRST._replace(begins=105.0)], {1: (7, "a")}) == 0


@pytest.mark.parametrize(("begins", "count"), [(119.0, 1), (121.0, 0)])
def test_count_double_leases__task_of_two_nodes__counts_if_they_overlap(begins: float, count: int) -> None:
    seen = [FIRST, SeenLease(7, 2, "b", begins, begins + 20.0)]
    assert count_double_leases(seen, {1: (7, "a"), 2: (7, "b")}) == count


def test_count_double_leases__number_of_two_tasks__counts_it_and_what_the_database_denies() -> None:
    seen = [FIRST, SeenLease(8, 1, "b", 130.0, 150.0)]
    assert count_double_leases(seen, {1: (7, "a")}) == 2


def build(step: int, *times: float, full: bool = True, overdue: int = 0, unplanned: int = 0) -> BatchProgress:
    return BatchProgress(step=step, is_full=full, times=times, overdue=overdue, unplanned=unplanned)


def find(*batches: BatchProgress) -> list[int]:
    return [batch.step for batch in find_stalled(batches, began=0.0, ended=100.0, patience=50.0)]


def test_find_stalled__steady_batches__finds_none() -> None:
    assert find(build(0, 10.0, 40.0), build(1, 60.0, 80.0, full=False)) == []


def test_find_stalled__nothing_at_the_start_of_a_batch_or_at_the_end__finds_it() -> None:
    assert find(build(0, 51.0, 60.0), build(1, 70.0, full=False)) == [0]
    assert find(build(0, 10.0, 40.0), build(1, 95.0)) == [1]
    assert find(build(0, 10.0, 49.0, full=False)) == [0]


def test_find_stalled__what_comes_after_the_last_question__is_not_looked_at() -> None:
    assert find(build(0, 10.0, 40.0, 90.0, 300.0)) == []


def test_find_stalled__overdue_lease_or_missing_task__finds_it() -> None:
    assert find(build(0, 40.0, 80.0, overdue=1), build(1, 90.0, full=False, unplanned=3)) == [0, 1]


def test_select_waits__with_work_all_the_time__are_differences() -> None:
    claims = [(10.0, 10.5), (12.0, 12.25), (50.0, None), (99.9, None)]
    waits = select_waits(claims, [], ended=100.0, margin=0.5)
    assert waits == pytest.approx([0.5, 0.25, 50.0])


def test_select_waits__without_a_pending_task_meanwhile__is_left_out() -> None:
    claims = [(10.0, 20.0), (13.0, 13.5), (15.0, 15.5), (17.0, 17.5)]
    assert select_waits(claims, [15.2], ended=100.0, margin=0.5) == [0.5, 0.5]
    assert select_waits(claims, [9.6, 13.9, 17.9], ended=100.0, margin=0.5) == [0.5]
    assert math.isclose(sum(select_waits(claims, [9.4], ended=100.0, margin=0.5)), 11.5)
