"""turns are drawn, and validators have a record

Submissions of before belong to pools of an older protocol, which this version does not serve: they count as drawn at
the time of the migration's default, and nothing depends on it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "validators",
        sa.Column("address", sa.String(42), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.Column("lapsed", sa.Integer(), nullable=False),
        sa.Column("contradicted", sa.Integer(), nullable=False),
        sa.Column("failed_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("address", name=op.f("pk_validators")),
    )
    op.add_column("submissions", sa.Column("draw", sa.String(66), nullable=True))
    op.add_column("submissions", sa.Column("confirmed", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("submissions", sa.Column("signed_at", NUMBER, nullable=False, server_default="0"))
    op.drop_column("submissions", "block_number")
    op.add_column("judgements", sa.Column("full", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("judgements", sa.Column("opened_at", sa.Float(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("judgements", "opened_at")
    op.drop_column("judgements", "full")
    op.add_column("submissions", sa.Column("block_number", NUMBER, nullable=False, server_default="0"))
    op.drop_column("submissions", "signed_at")
    op.drop_column("submissions", "confirmed")
    op.drop_column("submissions", "draw")
    op.drop_table("validators")
