"""Promises have a time instead of an epoch, and upheld challenges are deducted from rewards."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    with op.batch_alter_table("submissions") as submissions:
        submissions.alter_column("latest_epoch", new_column_name="due_by")
    with op.batch_alter_table("challenges") as challenges:
        challenges.add_column(sa.Column("is_upheld", sa.Boolean(), nullable=False, server_default=sa.false()))
        challenges.add_column(sa.Column("netted_block", _NUMBER, nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("challenges") as challenges:
        challenges.drop_column("netted_block")
        challenges.drop_column("is_upheld")
    with op.batch_alter_table("submissions") as submissions:
        submissions.alter_column("due_by", new_column_name="latest_epoch")
