"""Finds more validators to sign hard rejections. The court counts only unexpired signatures of bonded validators."""

from collections.abc import Sequence

from coordinator.db.repository import Repository
from coordinator.domain import exact_lane, panel
from coordinator.domain.turns import announce_turns
from covey.protocol.ids import Address
from covey.protocol.params import PoolParams

SIGNING_SECONDS = 86_400.0
"""Time in seconds after a hard rejection in which more validators are asked to sign it, while it has no case. The
unbond window is added, because a case that exceeds the cap on slashes is proposed again after it."""


def seek_signatures(
    repository: Repository, params: PoolParams, *, validators: Sequence[Address], seconds: float, now: float
) -> int:
    """Open turns for hard rejections that have no case and too few signatures of the active `validators`.

    The court does not count signatures of validators that have withdrawn their bond, or that have expired. Later than
    `seconds` after the decision, no turn is opened, and open ones end. Returns the number of new turns.
    """
    standing, opened = repository.list_validators(), 0
    for row in repository.list_unopened(decided_since=now - 2 * seconds):
        if row.draw is None or not row.audited:  # It was restored from an epoch, and no validator has judged it here.
            continue
        if (row.decided_at or 0.0) < now - seconds:
            panel.close_unrevealed(row)
            continue
        able = exact_lane.list_able(row, validators, standing)
        opened += panel.open_signing(params, row, validators=able, active=validators, now=now)
    if opened:
        announce_turns(repository)
    return opened
