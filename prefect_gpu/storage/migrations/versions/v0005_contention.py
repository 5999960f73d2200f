"""What runs on several nodes do to each other. All later versions can be used by a prefect-gpu that knows this one."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0005", "0004"

_WHOLE = ("gpus", "nodes", "beside_gpus", "beside_nodes")


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "prefect_gpu_contention",
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("run_id", "beside")),
        *(sa.Column(name, sa.BigInteger, primary_key=True, autoincrement=False) for name in _WHOLE),
        sa.Column("program", sa.Text, nullable=False),
        *(sa.Column(name, sa.Double, nullable=False) for name in ("slowdown", "measured_at")),
    )
    op.create_index("prefect_gpu_contention_measured_at", "prefect_gpu_contention", ["measured_at"])
    op.execute("UPDATE prefect_gpu_schema SET version = 5")


def downgrade() -> None:
    """Forget it."""
    op.drop_table("prefect_gpu_contention")
    op.execute("UPDATE prefect_gpu_schema SET version = 4")
