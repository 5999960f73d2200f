"""What pre-scheduling, sharing, demotion and the tuning of cores did to a run."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0003", "0002"

_NUMBERS = ("gate_wait_s", "device_idle_s", "demoted_s")


def upgrade() -> None:
    """Rows that are there have none of it."""
    op.add_column(
        "prefect_gpu_runs", sa.Column("prepared_behind", sa.Boolean, nullable=False, server_default=sa.false())
    )
    for name in _NUMBERS:
        op.add_column("prefect_gpu_runs", sa.Column(name, sa.Double))
    op.add_column("prefect_gpu_runs", sa.Column("slowdowns", sa.JSON))
    op.add_column("prefect_gpu_runs", sa.Column("cores", sa.BigInteger))
    op.execute("UPDATE prefect_gpu_schema SET version = 3")


def downgrade() -> None:
    """Forget it."""
    for name in (*_NUMBERS, "prepared_behind", "slowdowns", "cores"):
        op.drop_column("prefect_gpu_runs", name)
    op.execute("UPDATE prefect_gpu_schema SET version = 2")
