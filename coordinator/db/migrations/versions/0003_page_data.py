"""What pages show of policies, claims, cases and types of tasks. Earlier rows have no value in the new columns."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_COLUMNS: tuple[tuple[str, sa.Column[Any]], ...] = (
    ("steps", sa.Column("announced_at", sa.Double(), nullable=True)),
    ("nodes", sa.Column("policy_seconds", sa.Double(), nullable=True)),
    ("contributors", sa.Column("claimed", sa.String(78), nullable=True)),
    ("cases", sa.Column("reason", sa.Integer(), nullable=False, server_default="0")),
    ("cases", sa.Column("amount", sa.String(78), nullable=True)),
    ("cases", sa.Column("veto_until", _NUMBER, nullable=True)),
    ("cases", sa.Column("opened_transaction", sa.String(66), nullable=True)),
    ("step_points", sa.Column("task_types", sa.JSON(), nullable=True)),
)


def upgrade() -> None:
    for table, column in _COLUMNS:
        op.add_column(table, column)
    op.execute("UPDATE contributors SET stake_block = NULL")  # The chain is read again, with what was claimed.


def downgrade() -> None:
    for table, column in reversed(_COLUMNS):
        op.drop_column(table, column.name)
