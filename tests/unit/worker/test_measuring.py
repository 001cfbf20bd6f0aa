"""The measured speed of a machine: a mean over a window, and the real work of a task."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from covey.errors import OperatorError
from worker.context import Context
from worker.measuring import DoneTask, compute_speed, run_trial

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([(0, 10, 100)], 0.0),  # ended before the window
        ([(10, 20, 100)], 10.0),
        ([(5, 15, 100)], 5.0),  # half of it is inside
        ([(15, 45, 300)], 5.0),  # a sixth of it is inside
        ([(10, 20, 100), (10, 20, 60)], 16.0),
        ([(0, 40, 400)], 10.0),  # longer than the window
    ],
)
def test_compute_speed__tasks_partly_inside__count_in_proportion(tasks: list[tuple[int, int, int]], expected: float):
    done = [DoneTask(begun=begun, ended=ended, tokens=tokens) for begun, ended, tokens in tasks]
    assert compute_speed(done, since=10, until=20) == pytest.approx(expected)


async def test_run_trial__real_engine__finishes_tasks_for_the_whole_window_and_submits_nothing(
    start: Callable[..., Context],
):
    ctx = start()
    trial = await run_trial(ctx, 0.5)
    assert trial.done[-1].ended >= trial.window + 0.5
    group, model = ctx.network.params.groups_per_task * ctx.network.params.group_size, ctx.network.params.model
    assert all(group <= task.tokens <= group * model.max_completion_tokens for task in trial.done)
    assert len(trial.done) > 1
    assert list(ctx.submissions.list()) == []
    assert ctx.leases.ids == []


async def test_run_trial__no_policy__says_so(start: Callable[..., Context]):
    ctx = start()
    ctx.network.contracts.policies = SimpleNamespace(steps_of=lambda pool: 0)
    with pytest.raises(OperatorError, match="no_policy"):
        await run_trial(ctx, 0.5)


async def test_run_trial__stop_signal__ends_it(start: Callable[..., Context]):
    ctx = start()
    asyncio.get_running_loop().call_later(0.2, ctx.stop.set)
    with pytest.raises(OperatorError, match="stopped"):
        await asyncio.wait_for(run_trial(ctx, 600.0), 30)
