"""Deadlines, and with which probability they were promised."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0009", "0008"


def upgrade() -> None:
    """Runs that are there had none."""
    op.add_column("prefect_gpu_runs", sa.Column("deadline_at", sa.Double))
    op.add_column("prefect_gpu_runs", sa.Column("promised", sa.Double))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("prefect_gpu_runs", "promised")
    op.drop_column("prefect_gpu_runs", "deadline_at")
