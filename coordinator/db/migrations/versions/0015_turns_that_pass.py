"""which validators answer turns of their execution contract"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TIMES = ("active_at", "passed_at")


def upgrade() -> None:
    for name in _TIMES:
        op.add_column("validators", sa.Column(name, sa.Float(), nullable=False, server_default="0"))
    op.add_column("validators", sa.Column("passes", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    for name in (*_TIMES, "passes"):
        op.drop_column("validators", name)
