"""Epochs count the verdicts that they pay, in all and by validator."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TABLES = ("epochs", "rewards")


def upgrade() -> None:
    for name in _TABLES:
        with op.batch_alter_table(name) as table:
            table.add_column(sa.Column("verdicts", _NUMBER, nullable=False, server_default="0"))


def downgrade() -> None:
    for name in reversed(_TABLES):
        with op.batch_alter_table(name) as table:
            table.drop_column("verdicts")
