"""stake of contributors, an index of offered leases, and no nonces: these are kept in memory"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_IS_OFFERED = sa.text("state = 'ASSIGNED' AND collected_at IS NULL")


def upgrade() -> None:
    op.drop_table("nonces")
    op.add_column("contributors", sa.Column("staked", sa.String(78)))
    op.add_column("contributors", sa.Column("locked", sa.String(78)))
    op.add_column("contributors", sa.Column("stake_block", sa.BigInteger().with_variant(sa.Integer, "sqlite")))
    op.execute(
        "INSERT INTO contributors (address, strikes) SELECT DISTINCT contributor, 0 FROM nodes"
        " WHERE contributor NOT IN (SELECT address FROM contributors)"
    )
    op.create_index("ix_tasks_offered", "tasks", ["node"], sqlite_where=_IS_OFFERED, postgresql_where=_IS_OFFERED)


def downgrade() -> None:
    op.drop_index("ix_tasks_offered", "tasks")
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
