"""The history's tables, made from the rows' own fields; older databases become today's by ``migrations``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, Field, fields
from types import UnionType
from typing import Any, get_args, get_type_hints

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    false,
    inspect,
    select,
    text,
)

from prefect_gpu.storage.migrations import REVISIONS, migrate, read_revision, revision_table
from prefect_gpu.storage.row import ContentionRow, HistoryRow, Outcome, StayRow

SCHEMA_VERSION = 5
"""The revision from which on a prefect-gpu can use today's tables, if it ignores what it does not know.

A new column does not raise it. A migration that older versions could not work with does, here and in the database.
"""

_TYPES: dict[Any, Any] = {bool: Boolean, int: BigInteger, float: Double, str: Text, Outcome: Text}  # else: JSON


def _column(field: Field[Any], hint: Any, key: bool) -> Column[Any]:
    """A field as a column. A field with a default may be empty, since rows that are older than it are."""
    kind = get_args(hint)[0] if isinstance(hint, UnionType) else hint
    has_default = field.default is not MISSING or field.default_factory is not MISSING
    return Column(
        field.name,
        _TYPES.get(kind, JSON(none_as_null=True)),
        primary_key=key,
        autoincrement=False,
        nullable=has_default and kind is not bool and not key,
        server_default=false() if kind is bool else None,
    )


def _columns(row: type, keys: Collection[str]) -> list[Column[Any]]:
    hints = get_type_hints(row)
    return [_column(field, hints[field.name], field.name in keys) for field in fields(row)]


metadata = MetaData()

# Names carry the project's, so that a PostgreSQL database may be shared with others.
version_table = Table("prefect_gpu_schema", metadata, Column("version", Integer, primary_key=True))

runs_table = Table(
    "prefect_gpu_runs",
    metadata,
    *_columns(HistoryRow, ("run_id", "attempt")),
    Index("prefect_gpu_runs_ended_at", "ended_at"),
    Index("prefect_gpu_runs_flow_name", "flow_name", "ended_at"),
)

contention_table = Table(
    "prefect_gpu_contention",
    metadata,
    *_columns(ContentionRow, ("run_id", "gpus", "nodes", "beside", "beside_gpus", "beside_nodes")),
    Index("prefect_gpu_contention_measured_at", "measured_at"),
)

stays_table = Table(
    "prefect_gpu_stays",
    metadata,
    *_columns(StayRow, ("run_id", "launch")),
    Index("prefect_gpu_stays_ended_at", "pool", "ended_at"),
)

_ADVISORY_LOCK = 0x67707568  # "gpuh": one number that all workers agree on


class NewerSchema(Exception):
    """The database was written by a newer version of prefect-gpu, and cannot be used by this one."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def bring_up_to_date(connection: Connection) -> None:
    """Create the tables, or migrate those of an older version, in the open writing transaction of `connection`.

    A database of a newer version is left as it is, if that has only added to the tables: its columns are ignored.

    Workers that start at the same time take turns: on SQLite by the write lock that the transaction already holds,
    on PostgreSQL by an advisory lock that ends with it.

    Raises:
        NewerSchema: The database was written by a newer version, and cannot be used by this one; nothing was changed.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    version = check_version(connection)
    if version is None:
        metadata.create_all(connection)
        revision_table.create(connection, checkfirst=True)
        connection.execute(version_table.insert().values(version=SCHEMA_VERSION))
        connection.execute(revision_table.delete())
        connection.execute(revision_table.insert().values(version_num=REVISIONS[-1]))
        return
    # Versions before Alembic counted by themselves, and knew nothing of revisions.
    stamped, counted = read_revision(connection), f"{version:04}"
    found = max(stamped or counted, counted)
    if found in REVISIONS and stamped != REVISIONS[-1]:
        migrate(connection, found)


def check_version(connection: Connection) -> int | None:
    """The database's schema version, or None if it has no history yet.

    Raises:
        NewerSchema: The database was written by a newer version.
    """
    found = read_version(connection)
    if found is not None and found > SCHEMA_VERSION:
        raise NewerSchema(found)
    return found


def refusal(connection: Connection) -> str:
    """What PostgreSQL would say to a worker of this user that opens the history and writes rows; empty: nothing.

    It is only asked what the user may do. Other databases have no such rights.
    """
    if connection.dialect.name != "postgresql":
        return ""
    if connection.scalar(_TAKES_NO_CHANGES):
        return "cannot write in a read-only transaction"
    up_to_date = read_version(connection) is not None and (read_revision(connection) or "") >= REVISIONS[-1]
    for table in (*metadata.sorted_tables, revision_table):
        if not inspect(connection).has_table(table.name):
            if not connection.scalar(text("SELECT has_schema_privilege(current_schema(), 'CREATE')")):
                return f"permission denied for schema {connection.scalar(text('SELECT current_schema()'))}"
            continue
        needed = ("SELECT", "INSERT") if "run_id" in table.columns else ("SELECT",)
        name = {"name": table.name}
        if not all(connection.scalar(_MAY, {**name, "what": what}) for what in needed):
            return f"permission denied for table {table.name}"
        if not up_to_date and not connection.scalar(_OWNS, name):
            return f"must be owner of table {table.name}"
    return ""


_TAKES_NO_CHANGES = text("SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on'")
_MAY = text("SELECT has_table_privilege(:name, :what)")
_OWNS = text("SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(:name)")


def columns_there(connection: Connection, table: Table) -> list[Column[Any]]:
    """Those columns of a table that the database has; empty if it has no such table."""
    if not inspect(connection).has_table(table.name):
        return []
    there = {column["name"] for column in inspect(connection).get_columns(table.name)}
    return [column for column in table.columns if column.name in there]


def read_version(connection: Connection) -> int | None:
    """The database's schema version, or None if it has no history yet."""
    if not inspect(connection).has_table(version_table.name):
        return None
    return connection.execute(select(version_table.c.version)).scalar_one_or_none()
