"""what a reorganisation takes back: places of intents, challenges

Intents of before that are mined or refused are final: their blocks are not known.  An open challenge of before counts
as opened in block 0, so no reorganisation drops it; it is answered again, which changes nothing where it was answered.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NEW = ("offered_at", "block_hash", "is_final", "refused_first", "refused_last", "refused_heads")


def upgrade() -> None:
    op.add_column("intents", sa.Column("offered_at", NUMBER, nullable=True))
    op.add_column("intents", sa.Column("block_hash", sa.String(length=66), nullable=True))
    op.add_column("intents", sa.Column("is_final", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("intents", sa.Column("refused_first", NUMBER, nullable=True))
    op.add_column("intents", sa.Column("refused_last", NUMBER, nullable=True))
    op.add_column("intents", sa.Column("refused_heads", sa.Integer(), nullable=True))
    op.execute(sa.text("UPDATE intents SET is_final = :yes WHERE state IN ('mined', 'reverted')").bindparams(yes=True))
    op.create_table(
        "challenges",
        sa.Column("receipt_hash", sa.String(length=66), nullable=False),
        sa.Column("block_number", NUMBER, nullable=False),
        sa.Column("decided_block", NUMBER, nullable=True),
        sa.Column("answer", sa.String(length=96), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["receipt_hash"], ["submissions.receipt_hash"], name=op.f("fk_challenges_receipt_hash_submissions")
        ),
        sa.PrimaryKeyConstraint("receipt_hash", name=op.f("pk_challenges")),
    )
    op.execute(
        sa.text(
            "INSERT INTO challenges (receipt_hash, block_number, tries)"
            " SELECT receipt_hash, 0, 0 FROM submissions WHERE challenged"
        )
    )
    op.drop_column("submissions", "challenged")


def downgrade() -> None:
    op.add_column("submissions", sa.Column("challenged", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(
        sa.text(
            "UPDATE submissions SET challenged = :yes WHERE receipt_hash IN"
            " (SELECT receipt_hash FROM challenges WHERE decided_block IS NULL)"
        ).bindparams(yes=True)
    )
    op.drop_table("challenges")
    for name in NEW:
        op.drop_column("intents", name)
