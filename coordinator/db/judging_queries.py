"""Queries about undecided submissions and the turns of validators.

They are methods of `coordinator.db.repository.Repository`.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, aliased, selectinload

from coordinator.db.models import SubmissionRow, TurnRow
from coordinator.db.node_queries import cut
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Reason

JUDGED_STATES = (SubmissionState.SUBMITTED, SubmissionState.REJECTED)
"""States of submissions that validators judge. A hard rejection may need the signatures of more validators."""
_IS_OPEN = (
    TurnRow.verdict.is_(None),
    TurnRow.lapsed.is_(False),
    SubmissionRow.state.in_(JUDGED_STATES),
)
"""Conditions of open turns. An open turn is neither revealed nor lapsed, and its submission is being judged."""
_IS_UNDRAWN = SubmissionRow.state == SubmissionState.SUBMITTED, SubmissionRow.draw.is_(None)

Turn = tuple[TurnRow, SubmissionRow]
"""A turn and its submission, whose `turns` are loaded."""


_TURNS = (
    select(TurnRow, SubmissionRow)
    .join(SubmissionRow, SubmissionRow.receipt_hash == TurnRow.receipt_hash)
    .options(selectinload(SubmissionRow.turns))
)


class ReplayedWork(NamedTuple):
    """Work of one contributor that validators have replayed. Example: ReplayedWork(units=40_000, faults=1)."""

    units: int
    """Units that the receipts of its replayed and decided submissions claim."""
    faults: int
    """Number of its replayed submissions that are void because of a single fault in the exact lane."""


def _is_ready(validator: str) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of turns that a validator may reveal, because all validators have committed."""
    other = aliased(TurnRow)
    missing = select(other.id).where(
        other.receipt_hash == TurnRow.receipt_hash,
        other.full == TurnRow.full,
        other.commitment.is_(None),
        other.lapsed.is_(False),
    )
    return TurnRow.validator == validator, TurnRow.commitment.is_not(None), ~missing.exists()


class JudgingQueries:
    """Repository queries about judging."""

    session: Session

    def get_judgement(self, judgement: int) -> TurnRow | None:
        return self.session.get(TurnRow, judgement)

    def list_due(self, now: float, *, limit: int) -> Sequence[str]:
        """Return receipt hashes of drawn, undecided submissions whose next check is due, the most overdue first."""
        query = select(SubmissionRow.receipt_hash).where(
            SubmissionRow.state == SubmissionState.SUBMITTED,
            SubmissionRow.next_check_at <= now,
            SubmissionRow.draw.is_not(None),
        )
        return self.session.scalars(query.order_by(SubmissionRow.next_check_at, SubmissionRow.task).limit(limit)).all()

    def list_undrawn(self, *, signed_until: float) -> list[tuple[str, int]]:
        """Return receipt hash and Unix time of countersignature of the submissions that await their draw, oldest first.

        Only submissions that were countersigned at or before `signed_until` are included.
        """
        query = select(SubmissionRow.receipt_hash, SubmissionRow.signed_at).where(
            *_IS_UNDRAWN, SubmissionRow.signed_at <= signed_until
        )
        found = self.session.execute(query.order_by(SubmissionRow.signed_at, SubmissionRow.task))
        return [(row[0], row[1]) for row in found]

    def has_undrawn(self, *, signed_until: float | None = None, due_until: float | None = None) -> bool:
        """Return whether any submission awaits its draw.

        With `signed_until`, only submissions countersigned by then count. With `due_until`, only those whose next check
        is due by then.
        """
        query = select(SubmissionRow.receipt_hash).where(*_IS_UNDRAWN)
        if signed_until is not None:
            query = query.where(SubmissionRow.signed_at <= signed_until)
        if due_until is not None:
            query = query.where(SubmissionRow.next_check_at <= due_until)
        return self.session.scalar(query.limit(1)) is not None

    def has_undecided(self) -> bool:
        """Return whether any submission is undecided."""
        undecided = select(SubmissionRow.receipt_hash).where(SubmissionRow.state == SubmissionState.SUBMITTED)
        return self.session.scalar(undecided.limit(1)) is not None

    def find_oldest(self) -> dict[str, float | None]:
        """Return the Unix time since which the oldest submission or turn has waited, by what it waits for.

        A value is None if nothing waits.
        """
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
        """Return the undecided ones among some submissions, with their turns."""
        found: list[SubmissionRow] = []
        for part in cut(receipt_hashes):
            query = select(SubmissionRow).where(
                SubmissionRow.receipt_hash.in_(part), SubmissionRow.state == SubmissionState.SUBMITTED
            )
            query = query.order_by(SubmissionRow.task).options(selectinload(SubmissionRow.turns))
            found += self.session.scalars(query)
        return found

    def list_drawn(self, *, above: int) -> Sequence[SubmissionRow]:
        """Return undecided and accepted submissions in no epoch whose drawing blocks are above a number."""
        query = select(SubmissionRow).where(
            SubmissionRow.draw_block > above,
            SubmissionRow.epoch.is_(None),
            SubmissionRow.state.in_((SubmissionState.SUBMITTED, SubmissionState.ACCEPTED)),
        )
        return self.session.scalars(query.options(selectinload(SubmissionRow.turns))).all()

    def load_turns(self, turns: Collection[int]) -> dict[int, Turn]:
        """Return turns by id. Unknown ids are left out."""
        found: dict[int, Turn] = {}
        for part in cut(turns):
            pairs = self.session.execute(_TURNS.where(TurnRow.id.in_(part)).order_by(TurnRow.id))
            found |= {turn.id: (turn, submission) for turn, submission in pairs}
        return found

    def list_held(self, validator: str) -> list[int]:
        """Return the ids of the open turns that a validator has taken and not committed to, oldest first."""
        query = select(TurnRow.id).join(SubmissionRow, SubmissionRow.receipt_hash == TurnRow.receipt_hash)
        query = query.where(TurnRow.validator == validator, TurnRow.commitment.is_(None), *_IS_OPEN)
        return list(self.session.scalars(query.order_by(TurnRow.id)))

    def has_ready(self, validator: str) -> bool:
        """Return whether a validator has any turn that is ready to be revealed, without loading one."""
        query = select(TurnRow.id).join(SubmissionRow, SubmissionRow.receipt_hash == TurnRow.receipt_hash)
        return self.session.scalar(query.where(*_is_ready(validator), *_IS_OPEN).limit(1)) is not None

    def list_ready(self, validator: str, *, after: int, limit: int) -> list[Turn]:
        """Return a validator's turns that are ready to be revealed, oldest first, from the id after `after`.

        All validators of such a submission have committed. The validator may have many other turns that are not ready.
        """
        return self._list_turns(*_is_ready(validator), after=after, limit=limit)

    def list_free(self, contract: str = "", *, after: int, limit: int) -> list[Turn]:
        """Return open turns that nobody has taken, oldest first, from the id after `after`.

        They are of the calibrated lane or, if `contract` is given, also of the lane of that execution contract.
        """
        is_in_lane = SubmissionRow.contract.in_({"", contract})
        return self._list_turns(TurnRow.validator.is_(None), is_in_lane, after=after, limit=limit)

    def sum_replayed(self, contributor: str) -> ReplayedWork:
        """Return the units of a contributor's replayed and decided submissions, and how many had a single fault."""
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
