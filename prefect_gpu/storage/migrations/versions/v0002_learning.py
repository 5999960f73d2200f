"""What is learned from."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"

_JSON = ("neighbours", "estimate", "pace")


def upgrade() -> None:
    """Rows that are there have none of it."""
    op.add_column("prefect_gpu_runs", sa.Column("device_util_std", sa.Double))
    op.add_column("prefect_gpu_runs", sa.Column("out_of_memory", sa.Boolean, nullable=False, server_default=sa.false()))
    for name in _JSON:
        op.add_column("prefect_gpu_runs", sa.Column(name, sa.JSON))
    op.execute("UPDATE prefect_gpu_schema SET version = 2")


def downgrade() -> None:
    """Forget it."""
    for name in (*_JSON, "out_of_memory", "device_util_std"):
        op.drop_column("prefect_gpu_runs", name)
    op.execute("UPDATE prefect_gpu_schema SET version = 1")
