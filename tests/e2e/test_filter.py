"""A pool with the online filter and the real model: the trainer's batch has enough live groups, or the cap ends it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import trainer.loop
from covey.demo.demo_network import POOL
from covey.demo.participants import DemoOptions, Participants
from covey.protocol.api.public import StepView
from covey.protocol.status import StepState
from tests.e2e.submitting import hand_in, judge_all, list_submissions
from tests.e2e.walk import Walk, open_walk
from trainer.data.samples import AcceptedWork

pytestmark = [pytest.mark.e2e]
OPTIONS = DemoOptions(steps=1, workers=1, cheats=0, max_staleness=0)


class FilteringParticipants(Participants):
    """A pool of pairs of completions, half of which are right, so that more than four groups must be sampled."""

    changes: Mapping[str, Any] = {
        "online_filter": True, "max_sampling": 8.0, "group_size": 2, "groups_per_step": 4, "groups_per_task": 2,
    }  # fmt: skip
    longest = 8

    def _write(self, name: str, values: Mapping[str, Any]) -> Any:
        if name == "pool":
            values["params"].update(self.changes)
            values["params"]["model"]["max_completion_tokens"] = self.longest
        return super()._write(name, values)


class DeadGroupsParticipants(FilteringParticipants):
    """A pool in which nothing can be answered in one token, so that every reward is 0."""

    changes: Mapping[str, Any] = {**FilteringParticipants.changes, "max_sampling": 2.0}
    longest = 1


def get_step(walk: Walk, number: int = 0) -> StepView:
    return walk.get_status().steps[number]


async def fill(walk: Walk) -> int:
    """Let the worker submit until the step is ready, and return the number of submissions."""
    await walk.publish()
    await walk.follow()
    while get_step(walk).state == StepState.OPEN:
        await hand_in(walk, "worker-1")
        await judge_all(walk)
    return len(list_submissions(walk))


async def fetch(walk: Walk) -> list[AcceptedWork]:
    order = await trainer.loop.claim(walk.trainer)
    assert order is not None
    works = await trainer.loop.fetch(walk.trainer, order)
    return [work for work in works if work is not None]


def count_live(works: list[AcceptedWork]) -> int:
    groups: dict[tuple[int, int], set[float]] = {}
    for work in works:
        for row in work.rollouts:
            groups.setdefault((work.task, row.group), set()).add(row.reward)
    return sum(len(rewards) == 2 for rewards in groups.values())


@pytest.mark.full
async def test_walk__some_groups_are_dead__the_batch_has_as_many_live_ones_as_a_step_wants(tmp_path: Path):
    async with open_walk(tmp_path / "net", OPTIONS, participants=FilteringParticipants) as walk:
        count = await fill(walk)
        works = await fetch(walk)
        live = count_live(works)
        assert len(works) == count > 2, "two submissions would do if every group were live"
        assert 4 <= live <= 5, "submissions are whole, so one more may come along"
        step = get_step(walk)
        assert (step.groups_sampled, step.groups_live, step.is_capped) == (2 * count, live, False)
        assert all(row.units == row.receipt_units > 0 for row in list_submissions(walk)), "dead groups are paid"

        await trainer.loop.cycle(walk.trainer)
        report = walk.read_update(0)
        assert report["batch/samples"] == 4 * count
        assert report["batch/live_share"] == pytest.approx(live / (2 * count))
        assert report["optim/grad_norm"] > 0
        await walk.publish()
        assert walk.network.contracts.policies.steps_of(POOL) == 2


@pytest.mark.full
async def test_walk__all_groups_are_dead__the_cap_ends_the_step_and_the_next_policy_comes(tmp_path: Path):
    async with open_walk(tmp_path / "net", OPTIONS, participants=DeadGroupsParticipants) as walk:
        assert await fill(walk) == 4, "eight groups in tasks of two"
        step = get_step(walk)
        assert (step.groups_sampled, step.groups_live, step.is_capped) == (8, 0, True)
        await trainer.loop.cycle(walk.trainer)
        report = walk.read_update(0)
        assert (report["batch/samples"], report["batch/live_share"], report["optim/grad_norm"]) == (16, 0, 0)
        await walk.publish()
        await walk.follow()
        assert [get_step(walk, number).state for number in (0, 1)] == [StepState.TRAINED, StepState.OPEN]
