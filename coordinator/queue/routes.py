"""Which queue each job is in, and how often beat asks for it. A queue is named for what its jobs wait for."""

from enum import StrEnum
from typing import NamedTuple

from covey.errors import OperatorError


class JobQueue(StrEnum):
    """The queues. A job that hangs delays no other queue."""

    NOW = "now"
    """Assignment and expiry, which wait for nothing but the database."""
    CHAIN = "chain"
    """Draws, judging, epochs that are due, and old files. Some wait for the chain's node, which may hang."""
    BULK = "bulk"
    """Work in proportion to the size of an epoch."""


class JobRoute(NamedTuple):
    """Example: JobRoute(JobQueue.NOW, every_s=0.5)."""

    queue: JobQueue
    every_s: float
    """Seconds between two messages of beat, which replace triggers that were lost and find work that becomes due."""


ROUTES = {
    "assign_tasks": JobRoute(JobQueue.NOW, 0.5),
    "expire_leases": JobRoute(JobQueue.NOW, 1.0),
    "draw_submissions": JobRoute(JobQueue.CHAIN, 1.0),
    "dispatch_validation": JobRoute(JobQueue.CHAIN, 0.5),
    "seek_signatures": JobRoute(JobQueue.CHAIN, 2.0),
    "settle_epoch": JobRoute(JobQueue.CHAIN, 1.0),
    "prune_files": JobRoute(JobQueue.CHAIN, 5.0),
    "close_epoch": JobRoute(JobQueue.BULK, 2.0),
    "mark_settled": JobRoute(JobQueue.BULK, 2.0),
}
"""All jobs by name."""


def parse_queues(text: str) -> list[JobQueue]:
    """Return the queues that a text names, such as "now,chain". Raises OperatorError("unknown_queue")."""
    names = [name.strip() for name in text.split(",")]
    unknown = sorted(set(names).difference(JobQueue))
    if unknown:
        known = ", ".join(JobQueue)
        raise OperatorError("unknown_queue", f"there is no queue {unknown[0]!r}", fix=f"Use some of {known}")
    return [queue for queue in JobQueue if queue in names]
