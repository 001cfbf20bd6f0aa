"""Queries over undecided submissions and the turns of validators.

`coordinator.db.repository.Repository` has them.
"""

from collections.abc import Collection, Sequence
from typing import Any, cast

from sqlalchemy import CursorResult, func, select, update
from sqlalchemy.orm import Session, selectinload

from coordinator.db.models import JudgementRow, SubmissionRow
from coordinator.db.node_queries import cut
from covey.protocol.status import SubmissionState


class JudgingQueries:
    """The part of the repository that is about what is to be judged."""

    session: Session

    def get_judgement(self, judgement: int) -> JudgementRow | None:
        return self.session.get(JudgementRow, judgement)

    def list_due(self, now: float, *, limit: int) -> Sequence[SubmissionRow]:
        """Undecided submissions for which there may be something to do, with their judgements, the first due first."""
        query = select(SubmissionRow).where(
            SubmissionRow.state == SubmissionState.SUBMITTED, SubmissionRow.look_at <= now
        )
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

    def count_held(self, validator: str) -> int:
        """Number of turns that a validator has taken and not committed to."""
        query = select(func.count()).select_from(JudgementRow)
        return (
            self.session.scalar(
                query.where(
                    JudgementRow.validator == validator,
                    JudgementRow.commitment.is_(None),
                    JudgementRow.verdict.is_(None),
                    JudgementRow.lapsed.is_(False),
                )
            )
            or 0
        )

    def list_turns(
        self, validator: str | None, *, after: int = 0, limit: int = 64
    ) -> Sequence[tuple[JudgementRow, SubmissionRow]]:
        """Open judgements that a validator has taken, or free ones for None, oldest first, from the id `after` on.

        They are of undecided submissions, and neither revealed nor lapsed.
        """
        query = (
            select(JudgementRow, SubmissionRow)
            .join(SubmissionRow, SubmissionRow.receipt_hash == JudgementRow.receipt_hash)
            .where(
                JudgementRow.validator.is_(None) if validator is None else JudgementRow.validator == validator,
                JudgementRow.verdict.is_(None),
                JudgementRow.lapsed.is_(False),
                JudgementRow.id > after,
                SubmissionRow.state == SubmissionState.SUBMITTED,
            )
            .options(selectinload(SubmissionRow.judgements))
        )
        found = self.session.execute(query.order_by(JudgementRow.id).limit(limit))
        return [(turn, submission) for turn, submission in found]
