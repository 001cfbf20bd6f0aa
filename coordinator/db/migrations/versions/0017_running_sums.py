"""running sums of nodes, and the sums in the evidence of verdicts"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("judgements", sa.Column("sums", sa.JSON(), nullable=True))
    op.create_table(
        "running_sums",
        sa.Column("node", sa.String(length=42), sa.ForeignKey("nodes.address"), primary_key=True),
        sa.Column("submissions", sa.Integer(), nullable=False),
        sa.Column("by_validator", sa.JSON(), nullable=False),
        sa.Column("above", sa.String(length=16), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("running_sums")
    op.drop_column("judgements", "sums")
