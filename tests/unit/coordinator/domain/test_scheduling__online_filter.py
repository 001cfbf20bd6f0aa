"""The online filter's arithmetic: by hand, against the pace without a filter, and over whole runs of any luck."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain.scheduling import Groups, count_tasks_to_plan, count_tasks_to_sample, find_batch, is_capped
from covey.protocol.params import PoolParams
from tests.fakes.pool import make_params

pytestmark = pytest.mark.unit


def make_filter(**changes: object) -> PoolParams:
    """Four live groups a step, two groups a task, sixteen groups sampled at most."""
    return make_params(**({"online_filter": True, "max_sampling": 4.0} | changes))


# -- how many tasks


@pytest.mark.parametrize(
    ("staleness", "step", "closed", "unpacked", "in_flight", "seen", "tasks"),
    [
        (0, 0, 0, (0, 0), 0, (0, 0), 2),
        (1, 0, 0, (0, 0), 0, (0, 0), 4),
        (0, 0, 0, (2, 0), 2, (2, 0), 2),  # share 4/6: 4 live want 6 groups, 2 are out
        (0, 0, 0, (4, 2), 0, (4, 2), 2),  # 6/8: 2 live want 2.67 groups
        (0, 0, 0, (4, 3), 0, (4, 3), 1),  # 7/8: 1 live wants 1.14 groups
        (0, 0, 0, (4, 3), 2, (4, 3), 0),
        (0, 0, 0, (12, 0), 2, (12, 0), 1),  # 16 are wanted, the cap leaves 2
        (0, 0, 0, (14, 0), 2, (14, 0), 0),
        (0, 0, 0, (6, 3), 0, (96, 1), 2),  # 5/100, taken for 1/4: 1 live wants 4 groups
        (0, 3, 4, (0, 0), 0, (8, 4), 0),  # the batch is ready: the next step has no policy yet
        (1, 3, 4, (2, 1), 0, (8, 8), 2),  # its work may be sampled with this one
        (1, 3, 3, (12, 3), 0, (12, 3), 6),  # two batches, share 7/16: 5 live want 11.4 groups, 20 may be
        (1, 3, 3, (28, 3), 0, (28, 3), 2),  # the caps of two batches leave 4
    ],
)
def test_count_tasks_to_sample__worked_by_hand__agrees(
    staleness: int, step: int, closed: int, unpacked: tuple[int, int], in_flight: int, seen: tuple[int, int], tasks: int
):
    found = count_tasks_to_sample(
        make_filter(max_staleness=staleness),
        step=step,
        closed_batches=closed,
        unpacked=Groups(*unpacked),
        groups_in_flight=in_flight,
        seen=Groups(*seen),
    )
    assert found == tasks


@given(
    step=st.integers(0, 1000),
    staleness=st.integers(0, 4),
    max_steps=st.none() | st.integers(1, 1000),
    is_ready=st.booleans(),
    unpacked=st.integers(0, 40),
    in_flight=st.integers(0, 40),
    more_seen=st.integers(0, 100),
    sampling=st.floats(1, 64),
)
def test_count_tasks_to_sample__all_groups_live__is_the_pace_without_a_filter(
    step: int, staleness: int, max_steps: int | None, is_ready: bool, unpacked: int, in_flight: int, more_seen: int,
    sampling: float,
):  # fmt: skip
    changes = {"max_staleness": staleness, "max_steps": max_steps}
    closed, waiting = step + is_ready, 2 * unpacked
    filtered = count_tasks_to_sample(
        make_filter(max_sampling=sampling, **changes),
        step=step,
        closed_batches=closed,
        unpacked=Groups(waiting, waiting),
        groups_in_flight=2 * in_flight,
        seen=Groups(waiting + more_seen, waiting + more_seen),
    )
    assert filtered == count_tasks_to_plan(
        make_params(**changes),
        step=step,
        packed_groups=closed * 4,
        unpacked_groups=waiting,
        groups_in_flight=2 * in_flight,
    )


# -- when a batch is full


@pytest.mark.parametrize(
    ("live", "count", "capped"),
    [
        ([2, 2], 2, False),
        ([2, 2, 2], 2, False),
        ([1, 2], None, False),
        ([1, 2, 2, 2], 3, False),
        ([0, 0, 0, 2, 2], 5, False),
        ([0, 0, 0, 1, 1, 0, 0, 2], 8, False),  # with the last one that may be sampled
        ([0, 0, 0, 1, 1, 0, 0, 1], 8, True),
        ([0] * 7, None, False),
        ([0] * 9, 8, True),
        ([], None, False),
    ],
)
def test_find_batch__live_groups_of_waiting_tasks__by_hand(live: list[int], count: int | None, capped: bool):
    params = make_filter()
    assert find_batch(params, [Groups(2, each) for each in live]) == count
    if count is not None:
        assert is_capped(params, Groups(2 * count, sum(live[:count]))) is capped


@given(st.lists(st.integers(0, 2), max_size=6), st.integers(1, 3))
def test_find_batch__filter_off__is_every_accepted_group(live: list[int], tasks: int):
    params = make_params(groups_per_step=2 * tasks)
    found = find_batch(params, [Groups(2, each) for each in live])
    assert found == (tasks if len(live) >= tasks else None)
    assert not is_capped(params, Groups(2 * tasks, 0))


# -- whole runs


@settings(deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    staleness=st.integers(0, 3),
    sampling=st.floats(1, 6),
    live_share=st.sampled_from([0.0, 0.05, 0.3, 0.7, 1.0]),
    void_share=st.sampled_from([0.0, 0.4]),
)
def test_run__any_luck__every_step_closes_with_enough_live_groups_or_at_the_cap(
    seed: int, staleness: int, sampling: float, live_share: float, void_share: float
):
    """Tasks end in any order, some void; the trainer takes its time.  Nothing is planned beyond the caps of the batches
    that are open, and while a step is open something is out."""
    params, rng = make_filter(max_staleness=staleness, max_sampling=sampling, max_steps=6), random.Random(seed)
    step, is_ready = 0, False
    out: list[tuple[int, int]] = []  # (version, task)
    waiting: list[tuple[int, int, int]] = []  # (version, task, live)
    seen: list[tuple[int, int]] = []  # (version, live)
    tasks = 0
    for _ in range(2000):
        oldest = max(0, step - staleness)
        out, waiting = [t for t in out if t[0] >= oldest], sorted(t for t in waiting if t[0] >= oldest)
        if not is_ready and (count := find_batch(params, [Groups(2, live) for *_, live in waiting])) is not None:
            packed, waiting, is_ready = waiting[:count], waiting[count:], True
            live = sum(live for *_, live in packed)
            assert live >= 4 or 2 * count == params.max_groups_per_step
            assert all(step - version <= staleness for version, *_ in packed)
        fresh = [live for version, live in seen if version >= oldest]
        more = count_tasks_to_sample(
            params,
            step=step,
            closed_batches=step + is_ready,
            unpacked=Groups(2 * len(waiting), sum(live for *_, live in waiting)),
            groups_in_flight=2 * len(out),
            seen=Groups(2 * len(fresh), sum(fresh)),
        )
        open_batches = min(step + 1 + staleness, 6) - step - is_ready
        assert not more or 2 * (len(out) + len(waiting) + more) <= open_batches * params.max_groups_per_step
        out += [(step, tasks + i) for i in range(more)]
        tasks += more
        if is_ready and (not out or rng.random() < 0.3):
            step, is_ready = step + 1, False
            if step == 6:
                return
            continue
        assert out, "an open step waits for something"
        version, task = out.pop(rng.randrange(len(out)))
        if rng.random() >= void_share:
            live = sum(rng.random() < live_share for _ in range(2))
            waiting.append((version, task, live))
            seen.append((version, live))
    pytest.fail("the run does not end")
