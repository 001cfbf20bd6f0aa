"""the column of a policy's hash has the name of what is hashed: the policy's record"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("steps", "manifest_hash", new_column_name="record_hash")


def downgrade() -> None:
    op.alter_column("steps", "record_hash", new_column_name="manifest_hash")
