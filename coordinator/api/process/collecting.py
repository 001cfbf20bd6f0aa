"""Collects the leases of nodes with waiting long polls, in batches."""

from collections.abc import Sequence

from coordinator.api.process.request_batches import RequestBatches
from coordinator.context import Context
from coordinator.db.models import StepRow, TaskRow
from coordinator.db.repository import Repository
from coordinator.domain import tasks
from coordinator.domain.tasks import LeaseRequest
from covey.errors import CoveyError
from covey.protocol.api.worker import TaskOrder
from covey.protocol.ids import Hash, LeaseId, Step, TaskId


def build_collections(ctx: Context) -> RequestBatches[LeaseRequest, TaskOrder | None]:
    """Return batches that collect leases. Their errors are those of `tasks.collect_tasks`."""

    def collect(repository: Repository, asks: Sequence[LeaseRequest]) -> list[TaskOrder | CoveyError | None]:
        return build_orders(repository, tasks.collect_tasks(repository, ctx.params, asks, now=ctx.clock()))

    return RequestBatches(lambda asks: ctx.database.run(lambda rows: collect(rows, asks), name="collect_tasks"))


def build_orders(
    repository: Repository, found: Sequence[TaskRow | CoveyError | None]
) -> list[TaskOrder | CoveyError | None]:
    """Return the order for each collected task. Errors and None are returned unchanged."""
    versions = {each.policy_version for each in found if isinstance(each, TaskRow)}
    steps = {version: repository.get_step(version) for version in versions}
    return [_build_order(each, steps[each.policy_version]) if isinstance(each, TaskRow) else each for each in found]


def _build_order(task: TaskRow, step: StepRow | None) -> TaskOrder | None:
    if step is None or task.lease is None:
        return None
    return TaskOrder(
        task=TaskId(task.id),
        lease=LeaseId(task.lease),
        policy_version=Step(task.policy_version),
        record_hash=Hash(step.record_hash),
        groups=task.groups,
        deadline=task.expires_at,
    )
