"""groups whose rewards are not all equal

Those of accepted work of before count whole, as they did: no pool of before has the online filter.  Columns are added
and dropped in place, not by copying tables to which others point.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("judgements", sa.Column("live_groups", sa.Integer(), nullable=True))
    op.add_column("submissions", sa.Column("live_groups", sa.Integer(), nullable=False, server_default="0"))
    op.execute("UPDATE submissions SET live_groups = groups WHERE state IN ('ACCEPTED', 'SETTLED') AND reason = 0")


def downgrade() -> None:
    op.drop_column("submissions", "live_groups")
    op.drop_column("judgements", "live_groups")
