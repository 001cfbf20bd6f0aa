"""Queries about what was read from the chain (followed blocks) and what is sent to it (the outbox).

They are methods of `coordinator.db.repository.Repository`. After a reorganization, `forget_blocks_above` removes what
was recorded from the lost blocks.
"""

from collections.abc import Sequence

from sqlalchemy import delete, func, or_, select, update

from coordinator.db.attestation_queries import AttestationQueries
from coordinator.db.fact_queries import FactQueries
from coordinator.db.intent_row import IntentRow
from coordinator.db.models import BlockRow, CaseRow, EpochRow
from coordinator.db.omission_queries import OmissionQueries
from covey.chain.outbox import IntentState
from covey.protocol.status import CaseState

_BLOCKS = select(BlockRow.number, BlockRow.hash).order_by(BlockRow.number)
_IS_PROVISIONAL = IntentRow.block_number.is_not(None) & ~IntentRow.is_final


class ChainQueries(AttestationQueries, FactQueries, OmissionQueries):
    """Repository queries for the chain loop."""

    # -- followed blocks

    def list_blocks(self) -> list[tuple[int, str]]:
        return [(row.number, row.hash) for row in self.session.execute(_BLOCKS)]

    def forget_blocks_above(self, number: int) -> None:
        """Undo what was recorded from blocks above a number, after a reorganization removed them.

        Events that the new blocks contain again are recorded as new ones.
        """
        is_locked = CaseRow.state == CaseState.LOCKED
        self.session.execute(delete(CaseRow).where(CaseRow.block_number > number, is_locked))
        closed = update(CaseRow).where(CaseRow.block_number > number, ~is_locked)
        self.session.execute(closed.values(state=CaseState.LOCKED, block_number=number))
        self.session.execute(update(EpochRow).where(EpochRow.posted_block > number).values(posted_block=None))
        if self.get_fact("ended") > number:
            self.set_fact("ended", 0)
        self._forget_challenges_above(number)
        self.session.flush()

    def replace_blocks(self, blocks: Sequence[tuple[int, str]]) -> None:
        """Replace the followed blocks, which are the follower's cursor."""
        before = set(self.list_blocks())
        gone = [number for number, _ in before.difference(blocks)]
        self.session.execute(delete(BlockRow).where(BlockRow.number.in_(gone)))
        self.session.add_all(
            BlockRow(number=number, hash=digest) for number, digest in blocks if (number, digest) not in before
        )
        self.session.flush()

    # -- the outbox

    def count_pending_intents(self) -> int:
        """Return the number of transactions that are not mined yet."""
        is_pending = IntentRow.state.in_((IntentState.UNSENT, IntentState.SIGNED))
        return self.session.scalar(select(func.count()).select_from(IntentRow).where(is_pending)) or 0

    def get_intent(self, key: str) -> IntentRow | None:
        return self.session.scalars(select(IntentRow).where(IntentRow.key == key)).first()

    def list_intents(self, *states: str) -> Sequence[IntentRow]:
        return self.session.scalars(
            select(IntentRow).where(IntentRow.state.in_(states)).order_by(IntentRow.position)
        ).all()

    def list_provisional_intents(self) -> Sequence[IntentRow]:
        """Return the intents that were mined in a block that is not final yet."""
        return self.session.scalars(select(IntentRow).where(_IS_PROVISIONAL).order_by(IntentRow.position)).all()

    def list_signed_intents(self, block_number: int) -> Sequence[IntentRow]:
        """Return the intents that were last signed at this block or later."""
        return self.session.scalars(select(IntentRow).where(IntentRow.offered_at >= block_number)).all()

    def list_nonces(self) -> set[int]:
        """Return the nonces of all intents that are signed, or mined in a block that is not final yet."""
        is_signed = IntentRow.state == IntentState.SIGNED
        found = self.session.scalars(select(IntentRow.nonce).where(or_(is_signed, _IS_PROVISIONAL)))
        return {nonce for nonce in found if nonce is not None}

    def mark_intents_final(self, block_number: int) -> None:
        is_below = IntentRow.block_number <= block_number
        self.session.execute(update(IntentRow).where(is_below, ~IntentRow.is_final).values(is_final=True))
