"""The draw of a submission decides whether it is replayed, and how many validators judge it.

A quorum replays all rows of a drawn submission. For any other submission, the same block draws a few rows, which one
validator replays (`PoolParams.draw_rows`). The drawing block comes `draw_seconds` after the countersignature, so that
nobody knows its hash when signing. Audit and order of turns follow from that hash (`covey.protocol.seeding`), so
anybody can check them. A secret of the coordinator selects the submissions that a second validator confirms, because a
validator must not know when it judges alone.
"""

import hashlib
import hmac
from collections.abc import Callable, Container
from typing import NamedTuple

from coordinator.db.models import SubmissionRow
from coordinator.db.repository import Repository
from coordinator.domain import nodes
from covey.protocol.canaries import CanaryKind
from covey.protocol.ids import Hash
from covey.protocol.params import PoolParams
from covey.protocol.seeding import is_audited


class DrawingBlock(NamedTuple):
    """The block whose hash draws a submission. Example: DrawingBlock(number=9, hash="0x...")."""

    number: int
    hash: Hash


FindBlock = Callable[[int], DrawingBlock | None]
"""Function from the time of a countersignature to its drawing block. Returns None while that block is not final."""
UNDRAWN_CHECK_SECONDS = 10.0
"""Maximum time in seconds between two checks of an undrawn submission. New blocks cause checks earlier."""


def draw(
    repository: Repository,
    params: PoolParams,
    row: SubmissionRow,
    *,
    above: Container[str],
    find_block: FindBlock,
    secret: bytes,
) -> bool:
    """Record the draw of a submission if its block exists. Return whether the submission is drawn, now or earlier.

    `above` contains the nodes that have a running sum above its limit.
    """
    if row.draw is None:
        block = find_block(row.signed_at)
        if block is not None:
            row.draw, row.draw_block = block.hash, block.number
            row.audited = bool(row.audited) or is_replayed(
                repository, params, row, block.hash, is_above=row.node in above
            )
            rate = params.verification.confirm_rate
            row.confirmed = bool(row.confirmed) or is_confirmed(secret, Hash(row.receipt_hash), rate)
    return row.draw is not None


def is_replayed(
    repository: Repository, params: PoolParams, row: SubmissionRow, block_hash: Hash, *, is_above: bool
) -> bool:
    """Return whether a quorum replays all rows of a submission. Otherwise one validator replays the drawn rows.

    All work of newcomers, suspended nodes, and nodes with a running sum above its limit is replayed. Strikes raise the
    rate for all others. A canary is always replayed, so that a validator that accepts a bad one has no excuse.
    """
    node, rules = nodes.require_node(repository, row.node), params.verification
    rate = min(1.0, rules.audit_rate * (1 + nodes.count_strikes(repository, row.contributor)))
    return (
        bool(node.suspended)
        or is_above
        or node.accepted < rules.newcomer_submissions
        or row.canary != CanaryKind.ORDINARY
        or is_audited(Hash(row.receipt_hash), block_hash, rate)
    )


def is_confirmed(secret: bytes, receipt_hash: Hash, rate: float) -> bool:
    """Return whether a second validator judges a submission that no quorum replays, by a draw with probability `rate`.

    Only the holder of `secret` can compute the draw.
    """
    digest = hmac.new(secret, f"covey-confirm-1\n{receipt_hash}".encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big") < rate * 2**64
