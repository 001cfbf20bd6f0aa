"""The queue of each job, and the subject of its messages. A queue is named for what its jobs wait for."""

from enum import StrEnum
from typing import NamedTuple

from covey.errors import OperatorError


class JobQueue(StrEnum):
    """The queues. A job that hangs delays no other queue."""

    NOW = "now"
    """Assignment, expiry and the sweeps. They wait only for the database."""
    CHAIN = "chain"
    """Draws, decisions, beginning and posting of epochs, and deletion of files. Some wait for the chain's node."""
    BULK = "bulk"
    """Jobs whose duration grows with the size of an epoch."""


class JobRoute(NamedTuple):
    """Queue and schedule of a job. Example: JobRoute(JobQueue.BULK, about="epoch")."""

    queue: JobQueue
    about: str = ""
    """Name of the argument that identifies the subject of a message. Empty for a job that finds its rows itself.

    Celery retries the messages of jobs with such an argument. A sweep sends new messages for all others.
    """
    is_cumulative: bool = False
    """Whether a run about an object also does the work of objects with lower numbers, so that one run at a time is
    enough."""
    every_s: float | None = None
    """Time in seconds between two messages of beat. None for jobs that only triggers start."""


ROUTES = {
    "sweep": JobRoute(JobQueue.NOW, every_s=1.0),
    "sweep_settled": JobRoute(JobQueue.NOW, every_s=10.0),
    "assign_tasks": JobRoute(JobQueue.NOW),
    "expire_leases": JobRoute(JobQueue.NOW),
    "draw_submissions": JobRoute(JobQueue.CHAIN, about="block", is_cumulative=True),
    "dispatch_validation": JobRoute(JobQueue.CHAIN, about="receipts"),
    "seek_signatures": JobRoute(JobQueue.CHAIN),
    "begin_epoch": JobRoute(JobQueue.CHAIN),
    "post_epoch": JobRoute(JobQueue.CHAIN, about="epoch"),
    "prune_epoch": JobRoute(JobQueue.CHAIN, about="epoch"),
    "close_epoch": JobRoute(JobQueue.BULK, about="epoch"),
    "mark_settled": JobRoute(JobQueue.BULK, about="epoch"),
}
"""All jobs by name. Beat sends only messages for sweeps, which send messages for late work."""


def parse_queues(text: str) -> list[JobQueue]:
    """Return the queues that a text names, such as "now,chain". Raises OperatorError("unknown_queue")."""
    names = [name.strip() for name in text.split(",")]
    unknown = sorted(set(names).difference(JobQueue))
    if unknown:
        known = ", ".join(JobQueue)
        raise OperatorError("unknown_queue", f"there is no queue {unknown[0]!r}", fix=f"Use one or more of {known}")
    return [queue for queue in JobQueue if queue in names]
