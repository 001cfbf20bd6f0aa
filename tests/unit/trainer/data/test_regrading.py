"""Invented rewards, prompts and ends have no effect in work that a single validator accepted."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from covey.environments.base import EnvironmentSpec, Grade, Reply
from covey.environments.registry import DEMO, load
from covey.protocol.ids import Step
from covey.protocol.submission_file.codec import decode
from covey.protocol.submission_file.rows import Rollout
from tests.fakes.grading import open_grading
from tests.fakes.training import TrainerHarness
from trainer.data.samples import AcceptedWork

pytestmark = pytest.mark.unit
Build = Callable[..., Any]
Forge = Callable[[Rollout], Rollout]


def train(
    harness: TrainerHarness, forge: Forge | None = None, *, replayed: bool = False
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return policies and `update` lines of a trainer whose batches hold honest rows changed by `forge`."""
    harness.coordinator.replayed = replayed
    if forge is not None:
        harness.coordinator.forge = forge
    harness.run()
    return list(harness.chain.hashes), [line for line in harness.read_metrics() if line["event"] == "update"]


def invent_reward(row: Rollout) -> Rollout:
    """Reward the odd siblings, which the cheat wants to reinforce."""
    return replace(row, reward=float(row.sibling % 2))


def invent_prompt(row: Rollout) -> Rollout:
    return replace(row, prompt=(*row.prompt[:-2], 77, row.prompt[-1])) if row.group == 1 else row


def invent_end(row: Rollout) -> Rollout:
    return replace(row, finished=not row.finished) if (row.group, row.sibling) == (1, 3) else row


def invent_seed(row: Rollout) -> Rollout:
    return replace(row, seed=row.seed ^ 1) if (row.group, row.sibling) == (0, 2) else row


def test_cycle__invented_rewards_that_nobody_replayed__teach_nothing(build_harness: Build) -> None:
    honest, lines = train(build_harness())
    forged, updates = train(build_harness(), invent_reward)
    assert forged == honest
    rewards = ("reward/mean", "policy/loss", "optim/grad_norm", "batch/left_out", "batch/live_share")
    assert [[line[name] for name in rewards] for line in updates] == [
        [line[name] for name in rewards] for line in lines
    ]
    assert [line["batch/regraded"] for line in lines] == [0, 0]
    assert min(line["batch/regraded"] for line in updates) > 0
    assert (
        train(build_harness(), invent_reward, replayed=True)[0] != honest
    )  # rewards that a quorum confirmed are trusted


def test_cycle__invented_rewards__are_counted_and_their_task_is_named(build_harness: Build) -> None:
    harness = build_harness(steps=1)
    with capture_logs() as logs:
        _, (update,) = train(harness, invent_reward)
    wrong = {}
    for (_, task), rows in harness.coordinator.made.items():
        wrong[task] = sum(invent_reward(row).reward != row.reward for row in rows if task < 2)
    logged = {
        log["task"]: log["rollouts"] for log in logs if log["event"] == "claimed rewards differ from recomputed rewards"
    }
    assert logged == {task: count for task, count in wrong.items() if count}
    assert update["batch/regraded"] == sum(logged.values()) > 0


@pytest.mark.parametrize(
    ("forge", "reason"),
    [(invent_prompt, "wrong_prompt"), (invent_seed, "wrong_seed"), (invent_end, "false_termination")],
)
def test_cycle__row_that_does_not_fit_its_slot__its_submission_is_left_out_and_learning_continues(
    forge: Forge, reason: str, build_harness: Build
) -> None:
    harness, spared = build_harness(), {0}

    def forge_others(row: Rollout) -> Rollout:
        """Forge the rows of all tasks but the first, whose rows are recognised by their seeds."""
        seeds = {each.seed for (_, task), rows in harness.coordinator.made.items() for each in rows if task in spared}
        return row if row.seed in seeds else forge(row)

    with capture_logs() as logs:
        hashes, updates = train(harness, forge_others)
    assert [(line["batch/left_out"], line["batch/samples"]) for line in updates] == [(1, 16), (2, 0)]
    assert len(hashes) == 3
    left_out = [(log["task"], log["code"]) for log in logs if log["event"] == "submission skipped"]
    assert sorted(left_out) == [(task, reason) for task in (1, 2, 3)]


def test_regrade__sandboxed_grader__is_called_once_per_task(build_harness: Build) -> None:
    harness, asked = build_harness(steps=0), list[int]()
    harness.run()
    order = asyncio.run(harness.coordinator.claim_batch(0, wait_seconds=0))
    item = order.items[0].model_copy(update={"replayed": False})
    rows = decode(harness.coordinator.files[item.work_key], harness.params.build_budget())
    claimed = [invent_reward(row) for row in rows]
    work = AcceptedWork(task=item.task, policy_version=item.policy_version, replayed=False, rollouts=tuple(claimed))
    with open_grading(load(DEMO)) as grade, ThreadPoolExecutor(max_workers=1) as thread:
        regrader = harness.build(thread, asyncio.Event()).regrader

        def count(replies: Sequence[Reply]) -> Sequence[Grade]:
            asked.append(len(replies))
            return grade(replies)

        regraded = replace(regrader, grade=count).regrade(item, work)
    assert regraded is not None
    assert regraded.rollouts == tuple(rows)
    assert regraded.regraded == sum(one.reward != other.reward for one, other in zip(rows, claimed, strict=True)) > 0
    assert asked == [len(rows)]


def test_count_answers__first_group__finished_completions_without_an_answer(build_harness: Build) -> None:
    """No completion of the shipped model has a box, and none that is finished is blank."""
    harness = build_harness(steps=0)
    harness.run()
    order = asyncio.run(harness.coordinator.claim_batch(0, wait_seconds=0))
    rows = decode(harness.coordinator.files[order.items[0].work_key], harness.params.build_budget())
    rows = [replace(row, finished=row.finished and row.sibling > 0) for row in rows]
    finished = sum(row.finished for row in rows if row.group == 0)
    work = AcceptedWork(task=order.items[0].task, policy_version=Step(0), replayed=True, rollouts=tuple(rows))
    boxed = EnvironmentSpec(kind=DEMO.kind, options={**DEMO.options, "extraction": "last_boxed"})
    with ThreadPoolExecutor(max_workers=1) as thread:
        regrader = harness.build(thread, asyncio.Event()).regrader
        counted = regrader.count_answers(order.items[0], work)
        unboxed = replace(regrader, environment=load(boxed)).count_answers(order.items[0], work)
    assert (counted.looked_up, counted.unanswered) == (finished, 0)
    assert (unboxed.looked_up, unboxed.unanswered) == (finished, finished)
    assert finished > 3
    assert counted.rollouts == unboxed.rollouts == work.rollouts


def test_count_answers__nothing_finished__draws_no_prompt(build_harness: Build) -> None:
    harness = build_harness(steps=0)
    harness.run()
    order = asyncio.run(harness.coordinator.claim_batch(0, wait_seconds=0))
    rows = decode(harness.coordinator.files[order.items[0].work_key], harness.params.build_budget())
    cut = tuple(replace(row, finished=False) for row in rows)
    work = AcceptedWork(task=order.items[0].task, policy_version=Step(0), replayed=True, rollouts=cut)
    with ThreadPoolExecutor(max_workers=1) as thread:
        regrader = harness.build(thread, asyncio.Event()).regrader
        unused: Any = None
        assert replace(regrader, environment=unused).count_answers(order.items[0], work) == work


def test_regrade__grader_that_dies_on_the_answers__they_earn_nothing(build_harness: Build) -> None:
    """As with the validator, an answer that ends every attempt to grade it is itself to blame."""
    harness = build_harness(steps=1)
    with open_grading(load(DEMO), factory="tests.fakes.dying:build") as dying:
        harness.grade = dying
        _, (update,) = train(harness)
    assert (update["reward/mean"], update["batch/live_share"], update["batch/samples"]) == (0, 0, 32)
