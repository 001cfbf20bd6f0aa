"""execution contracts of nodes, submissions and validators"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_TABLES = ("nodes", "submissions", "validators")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("contract", sa.String(length=66), nullable=False, server_default=""))


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "contract")
