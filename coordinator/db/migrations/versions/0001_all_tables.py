"""All tables. Later migrations follow this one."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TABLES = (
    "attestations",
    "blocks",
    "cases",
    "contributors",
    "epochs",
    "facts",
    "identity",
    "intents",
    "minutes",
    "nodes",
    "step_points",
    "steps",
    "validators",
    "rewards",
    "running_sums",
    "tasks",
    "submissions",
    "challenges",
    "judgements",
)
"""Names of the tables. Each comes after those that it refers to."""


def upgrade() -> None:
    op.create_table(
        "attestations",
        sa.Column("epoch", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("validator", sa.String(length=42), nullable=False),
        sa.Column("header_hash", sa.String(length=66), nullable=False),
        sa.Column("signature", sa.String(length=132), nullable=False),
        sa.PrimaryKeyConstraint("epoch", "validator", name=op.f("pk_attestations")),
    )
    op.create_table(
        "blocks",
        sa.Column("number", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("hash", sa.String(length=66), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_blocks")),
    )
    op.create_table(
        "cases",
        sa.Column("receipt_hash", sa.String(length=66), nullable=False),
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("contributor", sa.String(length=42), nullable=False),
        sa.Column(
            "state",
            sa.Enum("LOCKED", "VETOED", "LAPSED", "SLASHED", name="casestate", native_enum=False, length=16),
            nullable=False,
        ),
        sa.Column("block_number", _NUMBER, nullable=False),
        sa.Column("transaction_hash", sa.String(length=66), nullable=False),
        sa.Column("reason", sa.Integer(), nullable=False),
        sa.Column("amount", sa.String(length=78), nullable=True),
        sa.Column("veto_until", _NUMBER, nullable=True),
        sa.Column("opened_transaction", sa.String(length=66), nullable=True),
        sa.PrimaryKeyConstraint("receipt_hash", name=op.f("pk_cases")),
    )
    op.create_table(
        "contributors",
        sa.Column("address", sa.String(length=42), nullable=False),
        sa.Column("strikes", sa.Integer(), nullable=False),
        sa.Column("accepted_since", sa.Integer(), nullable=False),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("dropped", sa.Integer(), nullable=False),
        sa.Column("suspended", sa.String(length=32), nullable=False),
        sa.Column("pardons", sa.Integer(), nullable=False),
        sa.Column("staked", sa.String(length=78), nullable=True),
        sa.Column("locked", sa.String(length=78), nullable=True),
        sa.Column("claimed", sa.String(length=78), nullable=True),
        sa.Column("stake_block", _NUMBER, nullable=True),
        sa.PrimaryKeyConstraint("address", name=op.f("pk_contributors")),
    )
    op.create_table(
        "epochs",
        sa.Column("number", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("work_root", sa.String(length=66), nullable=False),
        sa.Column("reward_root", sa.String(length=66), nullable=False),
        sa.Column("data_hash", sa.String(length=66), nullable=False),
        sa.Column("leaf_count", sa.Integer(), nullable=False),
        sa.Column("units", _NUMBER, nullable=False),
        sa.Column("verdicts", _NUMBER, nullable=False),
        sa.Column("previous_hash", sa.String(length=66), nullable=False),
        sa.Column("closed_at", sa.Double(), nullable=False),
        sa.Column("header_hash", sa.String(length=66), nullable=True),
        sa.Column("final_at", _NUMBER, nullable=True),
        sa.Column("reward", sa.String(length=78), nullable=True),
        sa.Column("cumulative", sa.String(length=78), nullable=True),
        sa.Column("posted_block", _NUMBER, nullable=True),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_epochs")),
    )
    op.create_table(
        "facts",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_facts")),
    )
    op.create_table(
        "identity",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_identity")),
    )
    op.create_table(
        "intents",
        sa.Column("position", _NUMBER, nullable=False),
        sa.Column("key", sa.String(length=96), nullable=False),
        sa.Column("recipient", sa.String(length=42), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("value", sa.String(length=78), nullable=False),
        sa.Column("label", sa.String(length=96), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("nonce", _NUMBER, nullable=True),
        sa.Column("attempts", sa.JSON(), nullable=False),
        sa.Column("offered_at", _NUMBER, nullable=True),
        sa.Column("block_number", _NUMBER, nullable=True),
        sa.Column("block_hash", sa.String(length=66), nullable=True),
        sa.Column("transaction_hash", sa.String(length=66), nullable=True),
        sa.Column("is_final", sa.Boolean(), nullable=False),
        sa.Column("refused_first", _NUMBER, nullable=True),
        sa.Column("refused_last", _NUMBER, nullable=True),
        sa.Column("refused_heads", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_intents")),
        sa.UniqueConstraint("key", name=op.f("uq_intents_key")),
    )
    op.create_index(op.f("ix_intents_state"), "intents", ["state"], unique=False)
    op.create_table(
        "minutes",
        sa.Column("start", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("submitted", sa.Integer(), nullable=False),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("rejected", sa.Integer(), nullable=False),
        sa.Column("void", sa.Integer(), nullable=False),
        sa.Column("units", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("start", name=op.f("pk_minutes")),
    )
    op.create_table(
        "nodes",
        sa.Column("address", sa.String(length=42), nullable=False),
        sa.Column("contributor", sa.String(length=42), nullable=False),
        sa.Column("instance", sa.String(length=32), nullable=False),
        sa.Column("contract", sa.String(length=66), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("waiting_until", sa.Double(), nullable=False),
        sa.Column("free_slots", sa.Integer(), nullable=False),
        sa.Column("cached_version", _NUMBER, nullable=True),
        sa.Column("policy_seconds", sa.Double(), nullable=True),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("dropped", sa.Integer(), nullable=False),
        sa.Column("cooldown_until", sa.Double(), nullable=False),
        sa.Column("suspended", sa.String(length=32), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("registered_block", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("address", name=op.f("pk_nodes")),
    )
    op.create_index(op.f("ix_nodes_contributor"), "nodes", ["contributor"], unique=False)
    op.create_index(op.f("ix_nodes_waiting_until"), "nodes", ["waiting_until"], unique=False)
    op.create_table(
        "step_points",
        sa.Column("step", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("reported_at", sa.Double(), nullable=False),
        sa.Column("reward_mean", sa.Double(), nullable=False),
        sa.Column("reward_std", sa.Double(), nullable=False),
        sa.Column("live_share", sa.Double(), nullable=False),
        sa.Column("truncated_share", sa.Double(), nullable=False),
        sa.Column("staleness_mean", sa.Double(), nullable=False),
        sa.Column("tokens_per_second", sa.Double(), nullable=False),
        sa.Column("wait_seconds", sa.Double(), nullable=False),
        sa.Column("step_seconds", sa.Double(), nullable=False),
        sa.Column("task_types", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("step", name=op.f("pk_step_points")),
    )
    op.create_table(
        "steps",
        sa.Column("number", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("record_hash", sa.String(length=66), nullable=False),
        sa.Column("block_number", _NUMBER, nullable=False),
        sa.Column(
            "state", sa.Enum("OPEN", "READY", "TRAINED", name="stepstate", native_enum=False, length=16), nullable=False
        ),
        sa.Column("packed_groups", sa.Integer(), nullable=False),
        sa.Column("packed_live_groups", sa.Integer(), nullable=False),
        sa.Column("accepted_groups", sa.Integer(), nullable=False),
        sa.Column("announced_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_steps")),
    )
    op.create_table(
        "validators",
        sa.Column("address", sa.String(length=42), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("contract", sa.String(length=66), nullable=False),
        sa.Column("active_at", sa.Double(), nullable=False),
        sa.Column("passed_at", sa.Double(), nullable=False),
        sa.Column("passes", sa.Integer(), nullable=False),
        sa.Column("lapsed", sa.Integer(), nullable=False),
        sa.Column("slow", sa.Integer(), nullable=False),
        sa.Column("contradicted", sa.Integer(), nullable=False),
        sa.Column("judged", sa.Integer(), nullable=False),
        sa.Column("failed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("address", name=op.f("pk_validators")),
    )
    op.create_table(
        "rewards",
        sa.Column("epoch", _NUMBER, nullable=False),
        sa.Column("contributor", sa.String(length=42), nullable=False),
        sa.Column("cumulative", sa.String(length=78), nullable=False),
        sa.Column("verdicts", _NUMBER, nullable=False),
        sa.ForeignKeyConstraint(["epoch"], ["epochs.number"], name=op.f("fk_rewards_epoch_epochs")),
        sa.PrimaryKeyConstraint("epoch", "contributor", name=op.f("pk_rewards")),
    )
    op.create_table(
        "running_sums",
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("submissions", sa.Integer(), nullable=False),
        sa.Column("by_validator", sa.JSON(), nullable=False),
        sa.Column("above", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["nodes.address"], name=op.f("fk_running_sums_node_nodes")),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_running_sums")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("policy_version", _NUMBER, nullable=False),
        sa.Column("groups", sa.Integer(), nullable=False),
        sa.Column(
            "state",
            sa.Enum("PENDING", "ASSIGNED", "SUBMITTED", "EXPIRED", name="taskstate", native_enum=False, length=16),
            nullable=False,
        ),
        sa.Column("node", sa.String(length=42), nullable=True),
        sa.Column("lease", _NUMBER, nullable=True),
        sa.Column("offered_until", sa.Double(), nullable=False),
        sa.Column("collected_at", sa.Double(), nullable=True),
        sa.Column("ends_at", sa.Double(), nullable=True),
        sa.Column("contract", sa.String(length=66), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["nodes.address"], name=op.f("fk_tasks_node_nodes")),
        sa.ForeignKeyConstraint(["policy_version"], ["steps.number"], name=op.f("fk_tasks_policy_version_steps")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("lease", name=op.f("uq_tasks_lease")),
    )
    op.create_index("ix_tasks_state_collected_at", "tasks", ["state", "collected_at", "node"], unique=False)
    op.create_index("ix_tasks_state_node", "tasks", ["state", "node"], unique=False)
    op.create_index("ix_tasks_state_policy_version", "tasks", ["state", "policy_version", "id"], unique=False)
    op.create_table(
        "submissions",
        sa.Column("receipt_hash", sa.String(length=66), nullable=False),
        sa.Column("task", _NUMBER, nullable=False),
        sa.Column("lease", _NUMBER, nullable=False),
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("contributor", sa.String(length=42), nullable=False),
        sa.Column("policy_version", _NUMBER, nullable=False),
        sa.Column("work_key", sa.String(length=66), nullable=False),
        sa.Column("groups", sa.Integer(), nullable=False),
        sa.Column("units", _NUMBER, nullable=False),
        sa.Column("deadline", _NUMBER, nullable=False),
        sa.Column("signature", sa.String(length=132), nullable=False),
        sa.Column("receipt_units", _NUMBER, nullable=False),
        sa.Column("signed_at", _NUMBER, nullable=False),
        sa.Column("due_by", _NUMBER, nullable=False),
        sa.Column("countersignature", sa.String(length=132), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "SUBMITTED",
                "ACCEPTED",
                "REJECTED",
                "VOID",
                "SETTLED",
                name="submissionstate",
                native_enum=False,
                length=16,
            ),
            nullable=False,
        ),
        sa.Column("draw", sa.String(length=66), nullable=True),
        sa.Column("draw_block", _NUMBER, nullable=True),
        sa.Column("audited", sa.Boolean(), nullable=True),
        sa.Column("confirmed", sa.Boolean(), nullable=False),
        sa.Column("decision", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Integer(), nullable=False),
        sa.Column("evidence_hash", sa.String(length=66), nullable=False),
        sa.Column("decided_at", sa.Double(), nullable=True),
        sa.Column("step", _NUMBER, nullable=True),
        sa.Column("epoch", _NUMBER, nullable=True),
        sa.Column("contract", sa.String(length=66), nullable=False),
        sa.Column("canary", sa.Integer(), nullable=False),
        sa.Column("consent", sa.String(length=132), nullable=False),
        sa.Column("live_groups", sa.Integer(), nullable=False),
        sa.Column("next_check_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["epoch"], ["epochs.number"], name=op.f("fk_submissions_epoch_epochs")),
        sa.ForeignKeyConstraint(["node"], ["nodes.address"], name=op.f("fk_submissions_node_nodes")),
        sa.ForeignKeyConstraint(["policy_version"], ["steps.number"], name=op.f("fk_submissions_policy_version_steps")),
        sa.ForeignKeyConstraint(["step"], ["steps.number"], name=op.f("fk_submissions_step_steps")),
        sa.ForeignKeyConstraint(["task"], ["tasks.id"], name=op.f("fk_submissions_task_tasks")),
        sa.PrimaryKeyConstraint("receipt_hash", name=op.f("pk_submissions")),
        sa.UniqueConstraint("task", "lease", name=op.f("uq_submissions_task")),
        sa.UniqueConstraint("work_key", name=op.f("uq_submissions_work_key")),
    )
    op.create_index(
        "ix_submissions_canary",
        "submissions",
        ["canary"],
        unique=False,
        sqlite_where=sa.text("canary > 0"),
        postgresql_where=sa.text("canary > 0"),
    )
    op.create_index("ix_submissions_contributor", "submissions", ["contributor", "epoch", "units"], unique=False)
    op.create_index("ix_submissions_contributor_signed_at", "submissions", ["contributor", "signed_at"], unique=False)
    op.create_index("ix_submissions_contributor_task", "submissions", ["contributor", "task"], unique=False)
    op.create_index("ix_submissions_epoch_task", "submissions", ["epoch", "task"], unique=False)
    op.create_index(op.f("ix_submissions_node"), "submissions", ["node"], unique=False)
    op.create_index("ix_submissions_node_task", "submissions", ["node", "task"], unique=False)
    op.create_index("ix_submissions_policy_version_task", "submissions", ["policy_version", "task"], unique=False)
    op.create_index(
        "ix_submissions_refused",
        "submissions",
        ["reason"],
        unique=False,
        sqlite_where=sa.text("reason > 0"),
        postgresql_where=sa.text("reason > 0"),
    )
    op.create_index("ix_submissions_state", "submissions", ["state", "next_check_at"], unique=False)
    op.create_index("ix_submissions_state_task", "submissions", ["state", "task"], unique=False)
    op.create_index(op.f("ix_submissions_step"), "submissions", ["step"], unique=False)
    op.create_index(op.f("ix_submissions_task"), "submissions", ["task"], unique=False)
    op.create_table(
        "challenges",
        sa.Column("receipt_hash", sa.String(length=66), nullable=False),
        sa.Column("block_number", _NUMBER, nullable=False),
        sa.Column("decided_block", _NUMBER, nullable=True),
        sa.Column("is_upheld", sa.Boolean(), nullable=False),
        sa.Column("is_paid", sa.Boolean(), nullable=False),
        sa.Column("netted_block", _NUMBER, nullable=True),
        sa.Column("answer", sa.String(length=96), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["receipt_hash"], ["submissions.receipt_hash"], name=op.f("fk_challenges_receipt_hash_submissions")
        ),
        sa.PrimaryKeyConstraint("receipt_hash", name=op.f("pk_challenges")),
    )
    op.create_table(
        "judgements",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("receipt_hash", sa.String(length=66), nullable=False),
        sa.Column("validator", sa.String(length=42), nullable=True),
        sa.Column("full", sa.Boolean(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=False),
        sa.Column("commitment", sa.String(length=66), nullable=True),
        sa.Column("verdict", sa.JSON(), nullable=True),
        sa.Column("signature", sa.String(length=132), nullable=True),
        sa.Column("live_groups", sa.Integer(), nullable=True),
        sa.Column("drawn_rows_false", sa.Boolean(), nullable=False),
        sa.Column("drew_other_rows", sa.Boolean(), nullable=False),
        sa.Column("sums", sa.JSON(), nullable=True),
        sa.Column("lapsed", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["receipt_hash"], ["submissions.receipt_hash"], name=op.f("fk_judgements_receipt_hash_submissions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_judgements")),
    )
    op.create_index(
        "ix_judgements_open",
        "judgements",
        ["validator", "id"],
        unique=False,
        sqlite_where=sa.text("verdict IS NULL AND lapsed IS 0"),
        postgresql_where=sa.text("verdict IS NULL AND lapsed IS false"),
    )
    op.create_index(op.f("ix_judgements_receipt_hash"), "judgements", ["receipt_hash"], unique=False)
    op.create_index("ix_judgements_validator_id", "judgements", ["validator", "id"], unique=False)


def downgrade() -> None:
    for name in reversed(_TABLES):
        op.drop_table(name)
