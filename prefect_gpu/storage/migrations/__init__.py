"""How the history's tables became what they are, one step a file in ``versions``, carried out by Alembic."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Column, Connection, MetaData, String, Table, inspect, select

if TYPE_CHECKING:
    from alembic.config import Config

_FOLDER = Path(__file__).parent
_ALONE = threading.Lock()  # Alembic has one environment for all threads

REVISIONS = tuple(sorted(path.stem[1:5] for path in (_FOLDER / "versions").glob("v[0-9]*.py")))
"""All that this version knows, the oldest first: ``versions/v0006_launch.py`` is revision 0006."""

revision_table = Table("prefect_gpu_revision", MetaData(), Column("version_num", String(32), primary_key=True))
"""Where Alembic keeps the revision of a database."""


def read_revision(connection: Connection) -> str | None:
    """The database's revision; None if Alembic has never seen it."""
    if not inspect(connection).has_table(revision_table.name):
        return None
    return connection.execute(select(revision_table.c.version_num)).scalar_one_or_none()


def migrate(connection: Connection, since: str, to: str = REVISIONS[-1]) -> None:
    """Bring a database from one revision to another, in the open transaction of `connection`.

    Args:
        since: What it has now, whatever Alembic believes; empty: nothing.
        to: May be older: what it did not have is lost.
    """
    from alembic import command  # not worth its time where there is nothing to do

    config = _config(connection)
    with _ALONE:
        command.stamp(config, since or "base", purge=True)
        (command.upgrade if to >= since else command.downgrade)(config, to or "base")


def _config(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return config
