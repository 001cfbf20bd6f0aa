"""strikes of contributors, removed nodes, instances of nodes, and the network that a database belongs to

Strikes of nodes are added up for their contributors.  Whether a node that was removed had been suspended before is
known no more.  Columns are added and dropped in place, not by copying tables to which others point.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "contributors",
        sa.Column("address", sa.String(length=42), nullable=False),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("address", name="pk_contributors"),
    )
    op.execute(
        "INSERT INTO contributors (address, strikes)"
        " SELECT contributor, SUM(strikes) FROM nodes GROUP BY contributor HAVING SUM(strikes) > 0"
    )
    op.drop_column("nodes", "strikes")
    op.add_column("nodes", sa.Column("removed", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute("UPDATE nodes SET removed = (1 = 1), suspended = '' WHERE suspended = 'removed'")
    op.add_column("nodes", sa.Column("instance", sa.String(length=32), nullable=False, server_default=""))
    op.create_table(
        "identity",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_identity"),
    )
    op.create_index("ix_submissions_contributor", "submissions", ["contributor"])


def downgrade() -> None:
    op.drop_index("ix_submissions_contributor", table_name="submissions")
    op.drop_table("identity")
    op.execute("UPDATE nodes SET suspended = 'removed' WHERE removed AND suspended = ''")
    op.drop_column("nodes", "instance")
    op.drop_column("nodes", "removed")
    op.add_column("nodes", sa.Column("strikes", sa.Integer(), nullable=False, server_default="0"))
    op.drop_table("contributors")
