"""Finished runs, a row for each attempt."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None

_TEXTS = ("run_name", "deployment", "pool", "worker", "category", "node", "device_kind", "message")
_NUMBERS = (
    *("requested_gpus", "requested_cpus", "submitted_at", "granted_at", "started_at", "waited_s", "prepared_s"),
    *("trained_s", "saved_s", "final_loss", "best_loss", "device_util_mean", "device_util_peak", "cpu_mean"),
    "net_mean_bytes_per_s",
)
_WHOLE = ("requested_gpu_memory_bytes", "steps_done", "device_memory_peak_bytes", "rss_peak_bytes", "exit_code")


def upgrade() -> None:
    """Make the tables."""
    op.create_table("prefect_gpu_schema", sa.Column("version", sa.Integer, primary_key=True))
    op.create_table(
        "prefect_gpu_runs",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("attempt", sa.BigInteger, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("flow_name", "outcome")),
        sa.Column("ended_at", sa.Double, nullable=False),
        *(sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false()) for name in ("virtual", "warm_start")),
        *(sa.Column(name, sa.Text) for name in _TEXTS),
        *(sa.Column(name, sa.Double) for name in _NUMBERS),
        *(sa.Column(name, sa.BigInteger) for name in _WHOLE),
        *(sa.Column(name, sa.JSON) for name in ("parameters", "features", "devices")),
    )
    op.create_index("prefect_gpu_runs_ended_at", "prefect_gpu_runs", ["ended_at"])
    op.create_index("prefect_gpu_runs_flow_name", "prefect_gpu_runs", ["flow_name", "ended_at"])
    op.execute("INSERT INTO prefect_gpu_schema VALUES (1)")


def downgrade() -> None:
    """Remove all that is known."""
    op.drop_table("prefect_gpu_runs")
    op.drop_table("prefect_gpu_schema")
