"""Whose a run was, and how urgent; and what each launch held: what owners have had is counted from that."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0007", "0006"

_NUMBERS = ("devices", "submitted_at", "granted_at", "ended_at")


def upgrade() -> None:
    """Of rows that are there nobody knows it. Older versions leave the new table alone."""
    op.add_column("prefect_gpu_runs", sa.Column("owner", sa.Text))
    op.add_column("prefect_gpu_runs", sa.Column("priority", sa.BigInteger))
    op.create_table(
        "prefect_gpu_stays",
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("run_id", "launch")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("pool", "owner")),
        *(sa.Column(name, sa.Double, nullable=False) for name in _NUMBERS),
    )
    op.create_index("prefect_gpu_stays_ended_at", "prefect_gpu_stays", ["pool", "ended_at"])


def downgrade() -> None:
    """Forget all of it."""
    op.drop_table("prefect_gpu_stays")
    op.drop_column("prefect_gpu_runs", "priority")
    op.drop_column("prefect_gpu_runs", "owner")
