"""Which launch of its run a row is of, so that none is written twice, whatever the clock says meanwhile."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0006", "0005"


def upgrade() -> None:
    """Rows that are there are told apart by the time of their grant."""
    op.add_column("prefect_gpu_runs", sa.Column("launch", sa.Text))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("prefect_gpu_runs", "launch")
