"""Rates of each minute, metrics of each step, and indexes for pages. Everything before stays as it is."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "minutes",
        sa.Column("start", _NUMBER, autoincrement=False, nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("submitted", "accepted", "rejected", "void")),
        sa.Column("units", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("start", name=op.f("pk_minutes")),
    )
    metrics = ("reward_mean", "reward_std", "live_share", "truncated_share", "staleness_mean", "tokens_per_second")
    op.create_table(
        "step_points",
        sa.Column("step", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("reported_at", sa.Double(), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=False) for name in (*metrics, "wait_seconds", "step_seconds")),
        sa.PrimaryKeyConstraint("step", name=op.f("pk_step_points")),
    )
    op.create_index("ix_submissions_epoch_task", "submissions", ["epoch", "task"])
    op.create_index("ix_submissions_policy_version_task", "submissions", ["policy_version", "task"])
    op.create_index("ix_judgements_validator_id", "judgements", ["validator", "id"])
    op.drop_index("ix_submissions_epoch", "submissions")  # The longer ones serve the same queries.
    op.drop_index("ix_judgements_validator", "judgements")


def downgrade() -> None:
    op.create_index("ix_judgements_validator", "judgements", ["validator"])
    op.create_index("ix_submissions_epoch", "submissions", ["epoch"])
    op.drop_index("ix_judgements_validator_id", "judgements")
    op.drop_index("ix_submissions_policy_version_task", "submissions")
    op.drop_index("ix_submissions_epoch_task", "submissions")
    op.drop_table("step_points")
    op.drop_table("minutes")
