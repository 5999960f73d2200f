"""Where each instance of a gang was."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0004", "0003"


def upgrade() -> None:
    """Rows that are there have the devices of the first instance only."""
    op.add_column("prefect_gpu_runs", sa.Column("parts", sa.JSON))
    op.execute("UPDATE prefect_gpu_schema SET version = 4")


def downgrade() -> None:
    """Forget it."""
    op.drop_column("prefect_gpu_runs", "parts")
    op.execute("UPDATE prefect_gpu_schema SET version = 3")
