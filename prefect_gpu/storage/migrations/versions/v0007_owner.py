"""Whose a run was, and how urgent: what owners have had is counted from the rows."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0007", "0006"


def upgrade() -> None:
    """Of rows that are there nobody knows it."""
    op.add_column("prefect_gpu_runs", sa.Column("owner", sa.Text))
    op.add_column("prefect_gpu_runs", sa.Column("priority", sa.BigInteger))


def downgrade() -> None:
    """Forget both."""
    op.drop_column("prefect_gpu_runs", "priority")
    op.drop_column("prefect_gpu_runs", "owner")
