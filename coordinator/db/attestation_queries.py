"""Signatures of validators over headers of epochs, and the queries about them.

They are methods of `coordinator.db.repository.Repository`.
"""

from sqlalchemy import String, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from coordinator.db.column_types import Number
from coordinator.db.models import Base
from covey.protocol.ids import Address, Hash


class AttestationRow(Base):
    """A validator's signature over the header of an epoch that is not posted yet. There is one for each validator."""

    __tablename__ = "attestations"
    epoch: Mapped[int] = mapped_column(Number, primary_key=True, autoincrement=False)
    validator: Mapped[str] = mapped_column(String(42), primary_key=True)
    header_hash: Mapped[str] = mapped_column(String(66))
    """Hash of the signed header. The signature counts only while the epoch has this header."""
    signature: Mapped[str] = mapped_column(String(132))


class AttestationQueries:
    """Repository queries about attestations."""

    session: Session

    def find_attestations(self, epoch: int, header_hash: Hash) -> dict[Address, str]:
        """Return the signatures over a header by their signers."""
        query = select(AttestationRow.validator, AttestationRow.signature).where(
            AttestationRow.epoch == epoch, AttestationRow.header_hash == header_hash
        )
        return {Address(row[0]): row[1] for row in self.session.execute(query)}

    def put_attestation(self, epoch: int, header_hash: Hash, validator: Address, signature: str) -> None:
        """Store a validator's signature over the header of an epoch, instead of its earlier one."""
        self.session.merge(
            AttestationRow(epoch=epoch, validator=validator, header_hash=header_hash, signature=signature)
        )
        self.session.flush()

    def clear_attestations(self, until: int) -> None:
        """Delete the signatures over the headers of epochs up to `until`."""
        self.session.execute(delete(AttestationRow).where(AttestationRow.epoch <= until))
