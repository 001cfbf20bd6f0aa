"""Queries over undecided submissions and the turns of validators.

`coordinator.db.repository.Repository` has them.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, cast

from sqlalchemy import ColumnElement, CursorResult, func, select, update
from sqlalchemy.orm import Session, aliased, selectinload

from coordinator.db.models import JudgementRow, SubmissionRow
from coordinator.db.node_queries import cut
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Reason

JUDGED_STATES = (SubmissionState.SUBMITTED, SubmissionState.REJECTED)
"""States of submissions that validators judge: undecided ones, and hard rejections that need more signatures."""
_IS_OPEN = (
    JudgementRow.verdict.is_(None),
    JudgementRow.lapsed.is_(False),
    SubmissionRow.state.in_(JUDGED_STATES),
)
"""A turn of such a submission that is neither revealed nor lapsed."""

Turn = tuple[JudgementRow, SubmissionRow]
"""A turn and the submission that it is about, which has all of its turns."""


_TURNS = (
    select(JudgementRow, SubmissionRow)
    .join(SubmissionRow, SubmissionRow.receipt_hash == JudgementRow.receipt_hash)
    .options(selectinload(SubmissionRow.judgements))
)


class ReplayedWork(NamedTuple):
    """Replayed work of a contributor. Example: ReplayedWork(units=40_000, faults=1)."""

    units: int
    """Claimed units of its decided submissions."""
    faults: int
    """Number of its submissions that are void because of a single fault in the exact lane."""


def _is_ready(validator: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of turns to which a validator and all others have committed."""
    other = aliased(JudgementRow)
    missing = select(other.id).where(
        other.receipt_hash == JudgementRow.receipt_hash,
        other.full == JudgementRow.full,
        other.commitment.is_(None),
        other.lapsed.is_(False),
    )
    return JudgementRow.validator == validator, JudgementRow.commitment.is_not(None), ~missing.exists()


class JudgingQueries:
    """The part of the repository that is about what is to be judged."""

    session: Session

    def get_judgement(self, judgement: int) -> JudgementRow | None:
        return self.session.get(JudgementRow, judgement)

    def list_due(self, now: float, *, limit: int, is_drawn: bool | None = None) -> Sequence[SubmissionRow]:
        """Undecided submissions for which there may be something to do, with their judgements, the first due first.

        `is_drawn` says whether a block has drawn them. None stands for any.
        """
        query = select(SubmissionRow).where(
            SubmissionRow.state == SubmissionState.SUBMITTED, SubmissionRow.look_at <= now
        )
        if is_drawn is not None:
            query = query.where(SubmissionRow.draw.is_not(None) if is_drawn else SubmissionRow.draw.is_(None))
        query = query.order_by(SubmissionRow.look_at, SubmissionRow.task).limit(limit)
        return self.session.scalars(query.options(selectinload(SubmissionRow.judgements))).all()

    def has_undecided(self) -> bool:
        """Whether any submission awaits its verdict."""
        undecided = select(SubmissionRow.receipt_hash).where(SubmissionRow.state == SubmissionState.SUBMITTED)
        return self.session.scalar(undecided.limit(1)) is not None

    def find_oldest(self) -> dict[str, float | None]:
        """Unix seconds since when the oldest submission or turn is in its state. None if there is none."""
        undecided = select(func.min(SubmissionRow.signed_at)).where(SubmissionRow.state == SubmissionState.SUBMITTED)
        free = select(func.min(JudgementRow.opened_at)).where(
            JudgementRow.validator.is_(None), JudgementRow.verdict.is_(None), JudgementRow.lapsed.is_(False)
        )
        return {
            "undecided_submission": self.session.scalar(undecided),
            "undrawn_submission": self.session.scalar(undecided.where(SubmissionRow.draw.is_(None))),
            "free_turn": self.session.scalar(free),
        }

    def list_undecided(self, receipt_hashes: Collection[str]) -> Sequence[SubmissionRow]:
        """Those of some submissions that are undecided, with their judgements."""
        found: list[SubmissionRow] = []
        for part in cut(receipt_hashes):
            query = select(SubmissionRow).where(
                SubmissionRow.receipt_hash.in_(part), SubmissionRow.state == SubmissionState.SUBMITTED
            )
            query = query.order_by(SubmissionRow.task).options(selectinload(SubmissionRow.judgements))
            found += self.session.scalars(query)
        return found

    def list_drawn(self, *, above: int) -> Sequence[SubmissionRow]:
        """Submissions in no epoch, undecided or accepted, whose drawing blocks are above a number."""
        query = select(SubmissionRow).where(
            SubmissionRow.draw_block > above,
            SubmissionRow.epoch.is_(None),
            SubmissionRow.state.in_((SubmissionState.SUBMITTED, SubmissionState.ACCEPTED)),
        )
        return self.session.scalars(query.options(selectinload(SubmissionRow.judgements))).all()

    def look_at_undrawn(self, *, signed_until: int) -> int:
        """Have all submissions looked at that await their draw and were countersigned by then. Return their number."""
        undrawn = update(SubmissionRow).where(
            SubmissionRow.state == SubmissionState.SUBMITTED,
            SubmissionRow.draw.is_(None),
            SubmissionRow.signed_at <= signed_until,
        )
        result = cast("CursorResult[Any]", self.session.execute(undrawn.values(look_at=0.0)))
        return result.rowcount

    def look_at_promises(self, *, latest_epoch: int) -> None:
        """Have all undecided submissions looked at that are promised to an epoch up to `latest_epoch`."""
        promised = update(SubmissionRow).where(
            SubmissionRow.state == SubmissionState.SUBMITTED, SubmissionRow.latest_epoch <= latest_epoch
        )
        self.session.execute(promised.values(look_at=0.0))

    def load_turns(self, judgements: Collection[int]) -> dict[int, Turn]:
        """Return turns by their ids, as far as they exist."""
        found: dict[int, Turn] = {}
        for part in cut(judgements):
            pairs = self.session.execute(_TURNS.where(JudgementRow.id.in_(part)).order_by(JudgementRow.id))
            found |= {turn.id: (turn, submission) for turn, submission in pairs}
        return found

    def list_held(self, validator: str) -> list[int]:
        """Ids of the turns that a validator has taken and not committed to, oldest first."""
        query = select(JudgementRow.id).join(SubmissionRow, SubmissionRow.receipt_hash == JudgementRow.receipt_hash)
        query = query.where(JudgementRow.validator == validator, JudgementRow.commitment.is_(None), *_IS_OPEN)
        return list(self.session.scalars(query.order_by(JudgementRow.id)))

    def has_ready(self, validator: str) -> bool:
        """Return whether `list_ready` has any turn, without reading one."""
        query = select(JudgementRow.id).join(SubmissionRow, SubmissionRow.receipt_hash == JudgementRow.receipt_hash)
        return self.session.scalar(query.where(*_is_ready(validator), *_IS_OPEN).limit(1)) is not None

    def list_ready(self, validator: str, *, after: int, limit: int) -> list[Turn]:
        """Turns to which a validator has committed, as all others have to theirs, oldest first, from the id `after` on.

        Its other turns wait, and they may be many.
        """
        return self._list_turns(*_is_ready(validator), after=after, limit=limit)

    def list_free(self, contract: str = "", *, after: int, limit: int) -> list[Turn]:
        """Turns that nobody has taken, oldest first, from the id `after` on: of the calibrated lane or a contract."""
        is_in_lane = SubmissionRow.contract.in_({"", contract})
        return self._list_turns(JudgementRow.validator.is_(None), is_in_lane, after=after, limit=limit)

    def sum_replayed(self, contributor: str) -> ReplayedWork:
        """Units of a contributor's decided submissions that were replayed, and how many of them had a single fault."""
        units, is_faulty = (
            func.coalesce(func.sum(SubmissionRow.receipt_units), 0),
            SubmissionRow.reason == Reason.INEXACT,
        )
        query = select(units, func.count().filter(is_faulty)).where(
            SubmissionRow.contributor == contributor,
            SubmissionRow.audited.is_(True),
            SubmissionRow.decision.is_not(None),
        )
        found = self.session.execute(query).one()
        return ReplayedWork(units=int(found[0]), faults=int(found[1]))

    def _list_turns(self, *which: ColumnElement[bool], after: int, limit: int) -> list[Turn]:
        query = _TURNS.where(*which, *_IS_OPEN, JudgementRow.id > after)
        found = self.session.execute(query.order_by(JudgementRow.id).limit(limit))
        return [(turn, submission) for turn, submission in found]
