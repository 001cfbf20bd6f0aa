"""standing of contributors, when nodes registered, drawing blocks, slow verdicts and consents"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_SUM = (
    "UPDATE contributors SET {0} = (SELECT COALESCE(SUM(nodes.{0}), 0) FROM nodes"
    " WHERE nodes.contributor = contributors.address)"
)
_SUSPEND = (
    "UPDATE contributors SET suspended = '{0}' WHERE address IN (SELECT contributor FROM nodes WHERE suspended = '{0}')"
)


def upgrade() -> None:
    op.add_column("nodes", sa.Column("registered_block", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("validators", sa.Column("slow", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("submissions", sa.Column("consent", sa.String(length=132), nullable=False, server_default=""))
    op.add_column("submissions", sa.Column("draw_block", sa.BigInteger(), nullable=True))
    for name in ("accepted", "dropped"):
        op.add_column("contributors", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
        op.execute(_SUM.format(name))
    op.add_column("contributors", sa.Column("suspended", sa.String(length=32), nullable=False, server_default=""))
    # They were numbers of blocks, and are times now.
    op.execute("UPDATE intents SET refused_first = NULL, refused_last = NULL, refused_heads = NULL")
    for reason in ("strikes", "faults", "rejected", "case", "equivocation"):  # the gravest one comes last
        op.execute(_SUSPEND.format(reason))


def downgrade() -> None:
    for name in ("suspended", "dropped", "accepted"):
        op.drop_column("contributors", name)
    op.drop_column("submissions", "draw_block")
    op.drop_column("submissions", "consent")
    op.drop_column("validators", "slow")
    op.drop_column("nodes", "registered_block")
