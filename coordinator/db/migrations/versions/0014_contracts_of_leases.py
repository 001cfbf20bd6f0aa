"""execution contracts of leases"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("contract", sa.String(length=66), nullable=False, server_default=""))
    # The files of these leases were made under the contracts that their nodes have.
    op.execute(
        "UPDATE tasks SET contract = (SELECT nodes.contract FROM nodes WHERE nodes.address = tasks.node) "
        "WHERE state = 'ASSIGNED' AND node IS NOT NULL"
    )


def downgrade() -> None:
    op.drop_column("tasks", "contract")
