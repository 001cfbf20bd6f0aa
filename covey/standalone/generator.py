"""Generates and grades the batch of a step, with the draws that a pool with one node would make.

The batch of a step depends only on the policy, the parameters and the step, so that a run that was interrupted
continues with the same batch. Sampling is repeatable where the engine is.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from covey.engines.base import Engine
from covey.environments.base import Environment, Grade, Grader
from covey.protocol.ids import Address, PoolId, Step, TaskId
from covey.protocol.params import TrainingParams
from covey.protocol.seeding import SlotDomain
from covey.rollouts import Draft, build_reply, build_rollouts, build_slots, grade_drafts, roll_out
from covey.standalone.beacons import Beacons
from trainer.checkpoints.checkpoint import StepFolders
from trainer.data.samples import AcceptedWork


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedBatch:
    """The batch of one step."""

    works: tuple[AcceptedWork, ...]
    """One entry per task."""
    seconds: float
    """Seconds of generation and grading, without loading the policy."""
    load_seconds: float
    """Seconds of loading the policy into the engine."""

    @property
    def tokens(self) -> int:
        """Number of generated tokens."""
        return sum(len(row.tokens) for work in self.works for row in work.rollouts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Generator:
    """The engine and everything that determines the rollouts. It belongs to one thread at a time."""

    engine: Engine
    environment: Environment
    grade: Grader
    params: TrainingParams
    exports: StepFolders
    beacons: Beacons
    pool: PoolId
    node: Address
    turn: AbstractContextManager[None] = field(default_factory=nullcontext)
    """Context of each batch, for an engine that others use, too."""

    def generate(self, step: Step) -> GeneratedBatch:
        """Return the batch from which the policy of `step` learns, sampled by the policy `max_staleness` steps before.

        With the online filter, tasks are added until enough groups are live, at most `max_groups_per_step` groups.
        """
        with self.turn:
            return self._generate(step)

    def _generate(self, step: Step) -> GeneratedBatch:
        params, version = self.params, Step(max(0, step - self.params.max_staleness))
        begun = time.monotonic()
        if self.engine.policy_version != version:
            self.engine.load_policy(self.exports.get_path(version), version)
        loaded = time.monotonic()
        most = params.max_groups_per_step // params.groups_per_task
        rest, works, live = [TaskId(1 + step * most + number) for number in range(most)], list[AcceptedWork](), 0
        while rest and live < params.groups_per_step:
            count = min(len(rest), -(-(params.groups_per_step - live) // params.groups_per_task))
            tasks, rest = rest[:count], rest[count:]
            for task, drafts, grades in self._roll_out(tasks, version):
                work = self._build_work(task, version, drafts, grades)
                works.append(work)
                live += _count_live(work, params.group_size) if params.online_filter else params.groups_per_task
        return GeneratedBatch(works=tuple(works), seconds=time.monotonic() - loaded, load_seconds=loaded - begun)

    def _roll_out(
        self, tasks: Sequence[TaskId], version: Step
    ) -> list[tuple[TaskId, Sequence[Draft], Sequence[Grade]]]:
        """Generate the completions of several tasks in one call of the engine, and grade them."""
        beacon = self.beacons.get(version)
        slots = [
            build_slots(
                SlotDomain(beacon=beacon, pool=self.pool, policy_version=version, node=self.node, task=task),
                self.params.groups_per_task,
                self.params,
                environment=self.environment,
                engine=self.engine,
            )
            for task in tasks
        ]
        together = [slot for each in slots for slot in each]
        drafts = roll_out(together, self.params, self.engine, version=version, capture=None)
        grades, size = grade_drafts(drafts, self.grade), self.params.groups_per_task * self.params.group_size
        return [
            (task, drafts[n * size : (n + 1) * size], grades[n * size : (n + 1) * size]) for n, task in enumerate(tasks)
        ]

    def _build_work(
        self, task: TaskId, version: Step, drafts: Sequence[Draft], grades: Sequence[Grade]
    ) -> AcceptedWork:
        """Return a task's rollouts, with the counts of answers in its first group, as a pool's trainer counts them."""
        replies = [build_reply(draft) for draft in drafts if draft.slot.group == 0 and draft.completion.finished]
        return AcceptedWork(
            task=task,
            policy_version=version,
            replayed=self.params.model.temperature == 1,  # engines return those of the unmodified model
            rollouts=tuple(build_rollouts(drafts, grades)),
            looked_up=len(replies),
            unanswered=sum(not self.environment.has_answer(reply) for reply in replies),
        )


def _count_live(work: AcceptedWork, group_size: int) -> int:
    """Return the number of groups whose rewards are not all equal."""
    rewards = [row.reward for row in work.rollouts]
    groups = [rewards[start : start + group_size] for start in range(0, len(rewards), group_size)]
    return sum(len(set(group)) > 1 for group in groups)
