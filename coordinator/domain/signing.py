"""More signatures for hard rejections: the court counts those of validators with their bonds, and only for a time."""

from collections.abc import Sequence

from coordinator.db.repository import Repository
from coordinator.domain import exact_lane, panel
from coordinator.domain.turns import announce_turns
from covey.protocol.ids import Address
from covey.protocol.params import PoolParams

SIGNING_SECONDS = 86_400.0
"""Time after a hard rejection in which more validators are asked to sign, as long as no case is about it. The window
after which a case that the cap on slashes refused is proposed again comes on top."""


def seek_signatures(
    repository: Repository, params: PoolParams, *, validators: Sequence[Address], seconds: float, now: float
) -> int:
    """Open turns for hard rejections that no case is about, where too few of the active `validators` have signed.

    A validator may withdraw its bond once it has spoken, or its signature may expire, and the court would not count it.
    After `seconds` from the decision no turn is opened, and those under way end. Returns how many opened.
    """
    standing, opened = repository.list_validators(), 0
    for row in repository.list_unopened(decided_since=now - 2 * seconds):
        if row.draw is None or not row.audited:  # read back from an epoch: nobody here has judged it
            continue
        if (row.decided_at or 0.0) < now - seconds:
            panel.close_unrevealed(row)
            continue
        able = exact_lane.list_able(row, validators, standing)
        opened += panel.open_signing(params, row, validators=able, active=validators, now=now)
    if opened:
        announce_turns(repository)
    return opened
