"""records of epochs; challenged submissions; cases are known by their receipt

A pool of the contracts before has no records: its epochs keep empty ones.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
STATES = sa.Enum("LOCKED", "VETOED", "LAPSED", "SLASHED", name="casestate", native_enum=False, length=16)


def upgrade() -> None:
    zero = sa.text("'0x" + "00" * 32 + "'")
    with op.batch_alter_table("epochs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("previous_hash", sa.String(length=66), nullable=False, server_default=zero))
        batch_op.add_column(sa.Column("header_hash", sa.String(length=66), nullable=True))
        batch_op.add_column(sa.Column("final_at", NUMBER, nullable=True))
        batch_op.add_column(sa.Column("reward", sa.String(length=78), nullable=True))
        batch_op.add_column(sa.Column("cumulative", sa.String(length=78), nullable=True))
    with op.batch_alter_table("submissions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("challenged", sa.Boolean(), nullable=False, server_default=sa.false()))
    _rebuild_cases("receipt_hash")


def downgrade() -> None:
    _rebuild_cases("id")
    with op.batch_alter_table("submissions", schema=None) as batch_op:
        batch_op.drop_column("challenged")
    with op.batch_alter_table("epochs", schema=None) as batch_op:
        for name in ("cumulative", "reward", "final_at", "header_hash", "previous_hash"):
            batch_op.drop_column(name)


def _rebuild_cases(key: str) -> None:
    """Empty: the cases of a court that numbered them are not those of one that does not, and the other way round."""
    op.drop_table("cases")
    columns = [] if key == "receipt_hash" else [sa.Column("id", NUMBER, autoincrement=False, nullable=False)]
    op.create_table(
        "cases",
        *columns,
        sa.Column("receipt_hash", sa.String(length=66), nullable=False),
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("contributor", sa.String(length=42), nullable=False),
        sa.Column("state", STATES, nullable=False),
        sa.Column("block_number", NUMBER, nullable=False),
        sa.Column("transaction_hash", sa.String(length=66), nullable=False),
        sa.PrimaryKeyConstraint(key, name=op.f("pk_cases")),
    )
    if key == "id":
        op.create_index(op.f("ix_cases_receipt_hash"), "cases", ["receipt_hash"], unique=False)
