"""The table of the outbox: transactions that are to be sent, or were."""

from sqlalchemy import JSON, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from coordinator.db.column_types import Number
from coordinator.db.models import Base


class IntentRow(Base):
    """A transaction in the outbox, added in the same database transaction as the state that requires it."""

    __tablename__ = "intents"
    position: Mapped[int] = mapped_column(Number, primary_key=True)
    key: Mapped[str] = mapped_column(String(96), unique=True)
    recipient: Mapped[str] = mapped_column(String(42))
    data: Mapped[str] = mapped_column(Text)
    value: Mapped[str] = mapped_column(String(78))
    label: Mapped[str] = mapped_column(String(96))
    state: Mapped[str] = mapped_column(String(8), index=True)
    """Value of an `IntentState`."""
    nonce: Mapped[int | None] = mapped_column(Number)
    attempts: Mapped[list[dict[str, str | int]]] = mapped_column(JSON, default=list)
    """Signed transactions of this intent, oldest first, all with the same nonce."""
    offered_at: Mapped[int | None] = mapped_column(Number)
    """Number of the newest block when the intent was last signed, or found to be dropped by a reorganization."""
    block_number: Mapped[int | None] = mapped_column(Number)
    """Number of the block in which the transaction was mined. This and both hashes are None while it is in no block."""
    block_hash: Mapped[str | None] = mapped_column(String(66))
    transaction_hash: Mapped[str | None] = mapped_column(String(66))
    is_final: Mapped[bool] = mapped_column(default=False)
    """Whether the block of the transaction is final. A final intent is never checked again."""
    refused_first: Mapped[int | None] = mapped_column(Number)
    """Field `first_at` of an unsigned intent's `Refusal`. The `refused` columns are None if it was not refused."""
    refused_last: Mapped[int | None] = mapped_column(Number)
    refused_heads: Mapped[int | None]
    reason: Mapped[str] = mapped_column(Text, default="")
