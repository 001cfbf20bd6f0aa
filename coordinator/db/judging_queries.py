"""Queries over undecided submissions and the turns of validators.

`coordinator.db.repository.Repository` has them.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session, aliased, selectinload

from coordinator.db.models import SubmissionRow, TurnRow
from coordinator.db.node_queries import cut
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Reason

JUDGED_STATES = (SubmissionState.SUBMITTED, SubmissionState.REJECTED)
"""States of submissions that validators judge: undecided ones, and hard rejections that need more signatures."""
_IS_OPEN = (
    TurnRow.verdict.is_(None),
    TurnRow.lapsed.is_(False),
    SubmissionRow.state.in_(JUDGED_STATES),
)
"""A turn of such a submission that is neither revealed nor lapsed."""
_IS_UNDRAWN = SubmissionRow.state == SubmissionState.SUBMITTED, SubmissionRow.draw.is_(None)

Turn = tuple[TurnRow, SubmissionRow]
"""A turn and the submission that it is about, which has all of its turns."""


_TURNS = (
    select(TurnRow, SubmissionRow)
    .join(SubmissionRow, SubmissionRow.receipt_hash == TurnRow.receipt_hash)
    .options(selectinload(SubmissionRow.turns))
)


class ReplayedWork(NamedTuple):
    """Replayed work of a contributor. Example: ReplayedWork(units=40_000, faults=1)."""

    units: int
    """Claimed units of its decided submissions."""
    faults: int
    """Number of its submissions that are void because of a single fault in the exact lane."""


def _is_ready(validator: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of turns to which a validator and all others have committed."""
    other = aliased(TurnRow)
    missing = select(other.id).where(
        other.receipt_hash == TurnRow.receipt_hash,
        other.full == TurnRow.full,
        other.commitment.is_(None),
        other.lapsed.is_(False),
    )
    return TurnRow.validator == validator, TurnRow.commitment.is_not(None), ~missing.exists()


class JudgingQueries:
    """The part of the repository that is about what is to be judged."""

    session: Session

    def get_judgement(self, judgement: int) -> TurnRow | None:
        return self.session.get(TurnRow, judgement)

    def list_due(self, now: float, *, limit: int) -> Sequence[str]:
        """Return receipt hashes of drawn, undecided submissions whose next check is due, the first due first."""
        query = select(SubmissionRow.receipt_hash).where(
            SubmissionRow.state == SubmissionState.SUBMITTED,
            SubmissionRow.next_check_at <= now,
            SubmissionRow.draw.is_not(None),
        )
        return self.session.scalars(query.order_by(SubmissionRow.next_check_at, SubmissionRow.task).limit(limit)).all()

    def list_undrawn(self, *, signed_until: float) -> list[tuple[str, int]]:
        """Return receipt hash and time of countersignature of the submissions that await their draw, oldest first."""
        query = select(SubmissionRow.receipt_hash, SubmissionRow.signed_at).where(
            *_IS_UNDRAWN, SubmissionRow.signed_at <= signed_until
        )
        found = self.session.execute(query.order_by(SubmissionRow.signed_at, SubmissionRow.task))
        return [(row[0], row[1]) for row in found]

    def has_undrawn(self, *, signed_until: float | None = None, due_until: float | None = None) -> bool:
        """Return whether a submission awaits its draw that was countersigned, or has its next check, by a time."""
        query = select(SubmissionRow.receipt_hash).where(*_IS_UNDRAWN)
        if signed_until is not None:
            query = query.where(SubmissionRow.signed_at <= signed_until)
        if due_until is not None:
            query = query.where(SubmissionRow.next_check_at <= due_until)
        return self.session.scalar(query.limit(1)) is not None

    def has_undecided(self) -> bool:
        """Whether any submission awaits its verdict."""
        undecided = select(SubmissionRow.receipt_hash).where(SubmissionRow.state == SubmissionState.SUBMITTED)
        return self.session.scalar(undecided.limit(1)) is not None

    def find_oldest(self) -> dict[str, float | None]:
        """Unix seconds since when the oldest submission or turn is in its state. None if there is none."""
        undecided = select(func.min(SubmissionRow.signed_at)).where(SubmissionRow.state == SubmissionState.SUBMITTED)
        free = select(func.min(TurnRow.opened_at)).where(
            TurnRow.validator.is_(None), TurnRow.verdict.is_(None), TurnRow.lapsed.is_(False)
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
            query = query.order_by(SubmissionRow.task).options(selectinload(SubmissionRow.turns))
            found += self.session.scalars(query)
        return found

    def list_drawn(self, *, above: int) -> Sequence[SubmissionRow]:
        """Submissions in no epoch, undecided or accepted, whose drawing blocks are above a number."""
        query = select(SubmissionRow).where(
            SubmissionRow.draw_block > above,
            SubmissionRow.epoch.is_(None),
            SubmissionRow.state.in_((SubmissionState.SUBMITTED, SubmissionState.ACCEPTED)),
        )
        return self.session.scalars(query.options(selectinload(SubmissionRow.turns))).all()

    def check_promised_next(self, *, latest_epoch: int) -> None:
        """Have all undecided submissions looked at that are promised to an epoch up to `latest_epoch`."""
        promised = update(SubmissionRow).where(
            SubmissionRow.state == SubmissionState.SUBMITTED, SubmissionRow.latest_epoch <= latest_epoch
        )
        self.session.execute(promised.values(next_check_at=0.0))

    def load_turns(self, turns: Collection[int]) -> dict[int, Turn]:
        """Return turns by their ids, as far as they exist."""
        found: dict[int, Turn] = {}
        for part in cut(turns):
            pairs = self.session.execute(_TURNS.where(TurnRow.id.in_(part)).order_by(TurnRow.id))
            found |= {turn.id: (turn, submission) for turn, submission in pairs}
        return found

    def list_held(self, validator: str) -> list[int]:
        """Ids of the turns that a validator has taken and not committed to, oldest first."""
        query = select(TurnRow.id).join(SubmissionRow, SubmissionRow.receipt_hash == TurnRow.receipt_hash)
        query = query.where(TurnRow.validator == validator, TurnRow.commitment.is_(None), *_IS_OPEN)
        return list(self.session.scalars(query.order_by(TurnRow.id)))

    def has_ready(self, validator: str) -> bool:
        """Return whether `list_ready` has any turn, without reading one."""
        query = select(TurnRow.id).join(SubmissionRow, SubmissionRow.receipt_hash == TurnRow.receipt_hash)
        return self.session.scalar(query.where(*_is_ready(validator), *_IS_OPEN).limit(1)) is not None

    def list_ready(self, validator: str, *, after: int, limit: int) -> list[Turn]:
        """Turns to which a validator has committed, as all others have to theirs, oldest first, from the id `after` on.

        Its other turns wait, and they may be many.
        """
        return self._list_turns(*_is_ready(validator), after=after, limit=limit)

    def list_free(self, contract: str = "", *, after: int, limit: int) -> list[Turn]:
        """Turns that nobody has taken, oldest first, from the id `after` on: of the calibrated lane or a contract."""
        is_in_lane = SubmissionRow.contract.in_({"", contract})
        return self._list_turns(TurnRow.validator.is_(None), is_in_lane, after=after, limit=limit)

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
        query = _TURNS.where(*which, *_IS_OPEN, TurnRow.id > after)
        found = self.session.execute(query.order_by(TurnRow.id).limit(limit))
        return [(turn, submission) for turn, submission in found]
