"""counters of validators and steps, which epochs are settled, and indexes of what is rare"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_PARTIAL = {
    "ix_submissions_refused": (["reason"], "reason > 0"),
    "ix_submissions_canary": (["canary"], "canary > 0"),
}


def upgrade() -> None:
    op.add_column("validators", sa.Column("judged", sa.Integer(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE validators SET judged = (SELECT COUNT(*) FROM judgements JOIN submissions"
        " ON submissions.receipt_hash = judgements.receipt_hash WHERE judgements.validator = validators.address"
        " AND judgements.verdict IS NOT NULL AND submissions.state <> 'SUBMITTED')"
    )
    op.add_column("steps", sa.Column("accepted_groups", sa.Integer(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE steps SET accepted_groups = (SELECT COALESCE(SUM(groups), 0) FROM submissions"
        " WHERE submissions.policy_version = steps.number AND submissions.decision = 1)"
    )
    op.add_column("epochs", sa.Column("settled", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute("UPDATE epochs SET settled = (posted_block IS NOT NULL)")
    for name, (columns, where) in _PARTIAL.items():
        op.create_index(name, "submissions", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def downgrade() -> None:
    for name in _PARTIAL:
        op.drop_index(name, "submissions")
    for table, column in (("epochs", "settled"), ("steps", "accepted_groups"), ("validators", "judged")):
        op.drop_column(table, column)
