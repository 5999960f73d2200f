"""What runs took of their devices: time, energy and its source, and what that cost."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0008", "0007"
_COLUMNS = {"device_s": sa.Double, "energy_j": sa.Double, "energy_from": sa.Text, "cost": sa.Double}


def upgrade() -> None:
    """Of rows that are there nobody has measured it."""
    for name, kind in _COLUMNS.items():
        op.add_column("prefect_gpu_runs", sa.Column(name, kind))


def downgrade() -> None:
    """Forget it."""
    for name in reversed(_COLUMNS):
        op.drop_column("prefect_gpu_runs", name)
