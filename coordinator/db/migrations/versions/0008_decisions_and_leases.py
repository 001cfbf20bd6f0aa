"""decisions of submissions, and a lease with times of its own

The decision of earlier submissions follows from state and reason, as it was read until now.  The deadline of an earlier
lease becomes the end of the lease where it was collected, else the end of the offer.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

ACCEPT, REJECT, UNKNOWN = 1, 2, 3
UNDECIDED, CANARY = 41, 43


def upgrade() -> None:
    op.add_column("submissions", sa.Column("decision", sa.Integer(), nullable=True))
    op.execute(
        sa.text(
            "UPDATE submissions SET decision = CASE WHEN reason = 0 THEN :accept"
            " WHEN reason IN (:undecided, :canary) THEN :unknown ELSE :reject END WHERE state != 'SUBMITTED'"
        ).bindparams(accept=ACCEPT, reject=REJECT, unknown=UNKNOWN, undecided=UNDECIDED, canary=CANARY)
    )
    op.add_column("tasks", sa.Column("offered_until", sa.Float(), nullable=False, server_default="0"))
    op.add_column("tasks", sa.Column("collected_at", sa.Float(), nullable=True))
    op.add_column("tasks", sa.Column("ends_at", sa.Float(), nullable=True))
    op.execute("UPDATE tasks SET offered_until = deadline")
    op.execute("UPDATE tasks SET collected_at = 0, ends_at = deadline WHERE collected")
    op.drop_column("tasks", "deadline")
    op.drop_column("tasks", "collected")


def downgrade() -> None:
    op.add_column("tasks", sa.Column("collected", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("tasks", sa.Column("deadline", sa.Float(), nullable=False, server_default="0"))
    op.execute(sa.text("UPDATE tasks SET collected = :yes WHERE collected_at IS NOT NULL").bindparams(yes=True))
    op.execute("UPDATE tasks SET deadline = COALESCE(ends_at, offered_until)")
    for name in ("ends_at", "collected_at", "offered_until"):
        op.drop_column("tasks", name)
    op.drop_column("submissions", "decision")
