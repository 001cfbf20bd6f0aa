"""whether a verdict is about the drawn rows; nothing is known of earlier ones"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("judgements", sa.Column("on_drawn_rows", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("judgements", "on_drawn_rows")
