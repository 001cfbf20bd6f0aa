"""accepted work that takes strikes back, and pardons of the operator"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_COLUMNS = ("accepted_since", "pardons")


def upgrade() -> None:
    for column in _COLUMNS:
        op.add_column("contributors", sa.Column(column, sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    for column in _COLUMNS:
        op.drop_column("contributors", column)
