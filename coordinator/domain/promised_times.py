"""When submissions are promised to be in a posted epoch, and when they must be decided so that they are."""

from collections.abc import Sequence

from coordinator.db.models import SubmissionRow
from covey.protocol.params import PoolParams
from covey.protocol.promises import compute_longest_promise

POSTING_SECONDS = 900
"""Time in seconds that the transaction of an epoch may take, with repetitions and a slow chain."""


def compute_promise_seconds(params: PoolParams, epoch_length: int) -> int:
    """Return the time in seconds that a countersignature gives to judging, the next epoch and its posting.

    A promise that EpochLedger would not enforce is worthless, so it never exceeds `compute_longest_promise`.
    """
    settling = 2 * max(params.epoch_seconds, epoch_length) + POSTING_SECONDS
    return min(int(params.receipt_seconds + settling), compute_longest_promise(epoch_length))


def compute_decide_by(params: PoolParams, row: SubmissionRow) -> float:
    """Return the Unix time at which a submission is decided with the verdicts that it has.

    An undecided submission cannot be in an epoch, so waiting would break the operator's promise and cost its bond. At
    most a quarter of the promised time is left for the epoch.
    """
    settling = min(2 * params.epoch_seconds + POSTING_SECONDS, (row.due_by - row.signed_at) / 4)
    return min(row.signed_at + params.receipt_seconds, row.due_by - settling)


def find_due(params: PoolParams, rows: Sequence[SubmissionRow], *, now: float) -> set[str]:
    """Return receipt hashes of submissions that can no longer wait for validators."""
    return {row.receipt_hash for row in rows if now >= compute_decide_by(params, row)}
