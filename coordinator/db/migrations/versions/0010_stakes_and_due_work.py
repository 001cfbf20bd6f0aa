"""stake of contributors, when to look at a submission, counters of batches, indexes, and no nonces"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_INDEXES = {
    "ix_nodes_waiting_until": ("nodes", ["waiting_until"]),
    "ix_tasks_state_collected_at": ("tasks", ["state", "collected_at", "node"]),
    "ix_tasks_state_policy_version": ("tasks", ["state", "policy_version", "id"]),
    "ix_submissions_state": ("submissions", ["state", "look_at"]),
    "ix_submissions_contributor": ("submissions", ["contributor", "epoch", "units"]),
    "ix_submissions_contributor_task": ("submissions", ["contributor", "task"]),
    "ix_submissions_node_task": ("submissions", ["node", "task"]),
    "ix_submissions_state_task": ("submissions", ["state", "task"]),
    "ix_submissions_contributor_signed_at": ("submissions", ["contributor", "signed_at"]),
}


def upgrade() -> None:
    op.drop_table("nonces")
    op.add_column("contributors", sa.Column("staked", sa.String(78)))
    op.add_column("contributors", sa.Column("locked", sa.String(78)))
    op.add_column("contributors", sa.Column("stake_block", sa.BigInteger().with_variant(sa.Integer, "sqlite")))
    op.execute(
        "INSERT INTO contributors (address, strikes) SELECT DISTINCT contributor, 0 FROM nodes"
        " WHERE contributor NOT IN (SELECT address FROM contributors)"
    )
    op.add_column("submissions", sa.Column("look_at", sa.Float(), nullable=False, server_default="0"))
    for name in ("groups", "live_groups"):
        op.add_column("steps", sa.Column(f"packed_{name}", sa.Integer(), nullable=False, server_default="0"))
        op.execute(
            f"UPDATE steps SET packed_{name} ="  # noqa: S608
            f" (SELECT COALESCE(SUM({name}), 0) FROM submissions WHERE submissions.step = steps.number)"
        )
    for column in ("state", "contributor"):
        op.drop_index(f"ix_submissions_{column}", "submissions")
    for index, (table, columns) in _INDEXES.items():
        op.create_index(index, table, columns)
    op.create_index(
        "ix_judgements_open",
        "judgements",
        ["validator", "id"],
        sqlite_where=sa.text("verdict IS NULL AND lapsed IS 0"),
        postgresql_where=sa.text("verdict IS NULL AND lapsed IS false"),
    )


def downgrade() -> None:
    op.drop_index("ix_judgements_open", "judgements")
    for index, (table, _) in _INDEXES.items():
        op.drop_index(index, table)
    for column in ("state", "contributor"):
        op.create_index(f"ix_submissions_{column}", "submissions", [column])
    for table, name in (("submissions", "look_at"), ("steps", "packed_groups"), ("steps", "packed_live_groups")):
        op.drop_column(table, name)
    for name in ("staked", "locked", "stake_block"):
        op.drop_column("contributors", name)
    op.create_table(
        "nonces",
        sa.Column("signer", sa.String(42), nullable=False),
        sa.Column("nonce", sa.String(64), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("signer", "nonce", name="pk_nonces"),
    )
    op.create_index("ix_nonces_expires", "nonces", ["expires"])
