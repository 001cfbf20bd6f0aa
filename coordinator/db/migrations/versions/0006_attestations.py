"""Signatures of validators over headers of epochs that are not posted yet."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "attestations",
        sa.Column("epoch", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("validator", sa.String(42), nullable=False),
        sa.Column("header_hash", sa.String(66), nullable=False),
        sa.Column("signature", sa.String(132), nullable=False),
        sa.PrimaryKeyConstraint("epoch", "validator", name=op.f("pk_attestations")),
    )


def downgrade() -> None:
    op.drop_table("attestations")
