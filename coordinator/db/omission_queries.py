"""Omission challenges, as the chain reports them, and the queries about them.

They are methods of `coordinator.db.repository.Repository`.
"""

from collections.abc import Sequence

from sqlalchemy import ForeignKey, String, delete, or_, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from coordinator.db.column_types import Number
from coordinator.db.intent_row import IntentRow
from coordinator.db.models import Base, EpochRow, SubmissionRow
from covey.chain.outbox import IntentState


class ChallengeRow(Base):
    """An omission challenge, as the chain reports it. It claims that no epoch contains a countersigned receipt."""

    __tablename__ = "challenges"
    receipt_hash: Mapped[str] = mapped_column(ForeignKey("submissions.receipt_hash"), primary_key=True)
    block_number: Mapped[int] = mapped_column(Number)
    """Number of the block that opened the challenge."""
    decided_block: Mapped[int | None] = mapped_column(Number)
    """Number of the block in which the challenge was answered or resolved. None while it is open."""
    is_upheld: Mapped[bool] = mapped_column(default=False)
    """Whether nobody answered in time, so that the operator's bond pays as far as it goes."""
    is_paid: Mapped[bool] = mapped_column(default=False)
    """Whether the bond has paid for the receipt, at least in part. No later epoch pays for it again."""
    netted_block: Mapped[int | None] = mapped_column(Number)
    """Number of the block in which the payment was deducted from rewards. None if it was not deducted."""
    answer: Mapped[str | None] = mapped_column(String(96))
    """Key of the intent that answers the challenge, or that deducts its payment. None while there is none."""
    tries: Mapped[int] = mapped_column(default=0)
    """Number of intents added so far to answer the challenge."""


class OmissionQueries:
    """Repository queries about omission challenges."""

    session: Session

    def get_challenge(self, receipt_hash: str) -> ChallengeRow | None:
        return self.session.get(ChallengeRow, receipt_hash)

    def list_unanswered(self, *, most_tries: int, final_before: float) -> Sequence[tuple[ChallengeRow, SubmissionRow]]:
        """Return open challenges of submissions in posted epochs that are not disabled, by epoch.

        Upheld ones of submissions that an epoch holds too are included, once the epoch was final before `final_before`
        and until the payment is deducted, so that the bond pays no more for them. All of these have no answer yet, or
        their last answer was reverted after fewer than `most_tries` tries.
        """
        is_paid_twice = (
            ChallengeRow.is_upheld & ChallengeRow.netted_block.is_(None) & (EpochRow.final_at < final_before)
        )
        is_refused = IntentRow.state == IntentState.REVERTED
        query = (
            select(ChallengeRow, SubmissionRow)
            .join(SubmissionRow, SubmissionRow.receipt_hash == ChallengeRow.receipt_hash)
            .join(EpochRow, EpochRow.number == SubmissionRow.epoch)
            .outerjoin(IntentRow, IntentRow.key == ChallengeRow.answer)
            .where(or_(ChallengeRow.decided_block.is_(None), is_paid_twice))
            .where(EpochRow.posted_block.is_not(None), ~EpochRow.disabled)
            .where(or_(ChallengeRow.answer.is_(None), is_refused & (ChallengeRow.tries < most_tries)))
        )
        found = self.session.execute(
            query.order_by(SubmissionRow.epoch, ChallengeRow.block_number, ChallengeRow.receipt_hash)
        )
        return [(challenge, submission) for challenge, submission in found]

    def _forget_challenges_above(self, number: int) -> None:
        self.session.execute(delete(ChallengeRow).where(ChallengeRow.block_number > number))
        decided = update(ChallengeRow).where(ChallengeRow.decided_block > number)
        self.session.execute(decided.values(decided_block=None, is_upheld=False, is_paid=False))
        self.session.execute(update(ChallengeRow).where(ChallengeRow.netted_block > number).values(netted_block=None))
