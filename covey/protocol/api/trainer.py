"""Bodies of the routes that the trainer calls: the batch of a step, and whether the run can learn."""

from typing import Annotated

from pydantic import Field

from covey.protocol.api.common import AddressText, Body, HashText, UInt64, WaitRequest
from covey.protocol.ids import Step, TaskId
from covey.protocol.learning_signs import LearningSign

Metric = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
"""Value of a metric of the trainer."""


class BatchRequest(WaitRequest):
    """Long-poll request for the batch of a step."""

    step: UInt64


class BatchItem(Body):
    """One accepted submission in a batch."""

    receipt_hash: HashText
    task: TaskId
    node: AddressText
    """Node to which the task was leased. The prompts and seeds of the submission are derived from its address."""
    policy_version: Step
    record_hash: HashText
    work_key: HashText
    url: str
    """URL for downloading the submission's file."""
    replayed: bool
    """Whether a quorum of validators replayed the submission. Otherwise it passed only the checks that need no
    policy.
    """


class BatchOrder(Body):
    """The submissions that `step` trains on, ordered by task."""

    step: Step
    items: tuple[BatchItem, ...]


class StepPoint(Body):
    """Metrics of one step, which pages show. Example: StepPoint(reward_mean=0.4, reward_std=0.5, ...)."""

    reward_mean: Metric
    """Mean reward of the batch's rollouts."""
    reward_std: Metric
    """Standard deviation of the task component of the reward over the batch's rollouts."""
    live_share: Metric
    """Share of rollouts with a nonzero advantage."""
    truncated_share: Metric
    """Share of completions that were cut at the token limit."""
    staleness_mean: Metric
    """Mean number of steps between the policy that sampled and the policy in training."""
    tokens_per_second: Metric
    """Trained completion tokens per second of the step."""
    wait_seconds: Metric
    """Seconds for which the trainer waited for the batch."""
    step_seconds: Metric
    """Seconds of the whole step, including the wait."""


class TaskTypePoint(Body):
    """Part of one type of tasks in a batch. Example: TaskTypePoint(name="math", share=0.75, reward_mean=0.4)."""

    name: str = Field(min_length=1, max_length=64)
    """Kind of the environment, with its option `name` if it has one."""
    share: float = Field(ge=0, le=1)
    """Share of the batch's rollouts."""
    reward_mean: Metric
    """Mean reward of these rollouts."""


class LearningReport(Body):
    """Whether the run can learn, after each step. Example: steps=24, signs=("no_live_group",), pause=False."""

    steps: UInt64
    """Number of steps that are trained."""
    signs: tuple[LearningSign, ...] = Field(max_length=len(LearningSign))
    """Signs that the run cannot learn, at the newest step."""
    pause: bool
    """Whether new tasks are to be paused. A report that is repeated after the operator has resumed pauses nothing."""
    point: StepPoint | None = None
    """Metrics of the newest step, whose number is `steps` - 1. None: the trainer has none."""
    task_types: tuple[TaskTypePoint, ...] = Field(default=(), max_length=64)
    """Types of tasks in the batch of that step."""
