"""What the draw of a submission decides: whether it is replayed, and by how many validators it is judged.

Of each other submission the same block draws a few rows, which one validator replays (`PoolParams.draw_rows`).
The drawing block comes `draw_seconds` after the countersignature, so that nobody knows its hash when signing.  Audit
and order of turns follow from that hash (`covey.protocol.seeding`), as anybody can check.  Which work is confirmed
follows from a secret of the coordinator: a validator must not know when it is alone.
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
    """The block that draws a submission. Example: DrawingBlock(number=9, hash="0x...")."""

    number: int
    hash: Hash


FindBlock = Callable[[int], DrawingBlock | None]
"""From the time of a countersignature to its drawing block; None while that block is not final."""
UNDRAWN_CHECK_SECONDS = 10.0
"""Time between two looks at a submission that is not drawn, although no new block asks for one."""


def draw(
    repository: Repository,
    params: PoolParams,
    row: SubmissionRow,
    *,
    above: Container[str],
    find_block: FindBlock,
    secret: bytes,
) -> bool:
    """Record the draw of a submission; return whether it is drawn, now or before.

    `above`: nodes with a running sum above its limit.
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
    """Whether a submission is replayed whole by a quorum, or one validator replays the drawn rows only.

    Newcomers, suspended nodes and those whose running sums are above a limit are replayed fully, and strikes raise the
    rate.  A canary is always replayed: a validator that accepts it has no excuse then.
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
    """Whether a second validator judges work that is not replayed whole, by a uniform draw.

    Only the holder of `secret` knows it.
    """
    digest = hmac.new(secret, f"covey-confirm-1\n{receipt_hash}".encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big") < rate * 2**64
