"""The history's tables, and how an older database becomes one of today's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
    String,
    Table,
    Text,
    false,
    inspect,
    select,
    text,
)
from sqlalchemy.schema import CreateColumn

SCHEMA_VERSION = 5

metadata = MetaData()

# Names carry the project's, so that a PostgreSQL database may be shared with others.
version_table = Table("prefect_gpu_schema", metadata, Column("version", Integer, primary_key=True))

runs_table = Table(
    "prefect_gpu_runs",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("flow_name", Text, nullable=False),
    Column("run_name", Text),
    Column("deployment", Text),
    Column("pool", Text),
    Column("worker", Text),
    Column("category", Text),
    Column("parameters", JSON(none_as_null=True)),
    Column("features", JSON(none_as_null=True)),
    Column("requested_gpus", Double),
    Column("requested_gpu_memory_bytes", BigInteger),
    Column("requested_cpus", Double),
    Column("node", Text),
    Column("devices", JSON(none_as_null=True)),
    Column("device_kind", Text),
    Column("virtual", Boolean, nullable=False),
    Column("submitted_at", Double),
    Column("granted_at", Double),
    Column("started_at", Double),
    Column("ended_at", Double, nullable=False),
    Column("waited_s", Double),
    Column("prepared_s", Double),
    Column("trained_s", Double),
    Column("saved_s", Double),
    Column("steps_done", BigInteger),
    Column("final_loss", Double),
    Column("best_loss", Double),
    Column("device_util_mean", Double),
    Column("device_util_peak", Double),
    Column("device_memory_peak_bytes", BigInteger),
    Column("cpu_mean", Double),
    Column("rss_peak_bytes", BigInteger),
    Column("net_mean_bytes_per_s", Double),
    Column("device_util_std", Double),
    Column("outcome", String(16), nullable=False),
    Column("exit_code", Integer),
    Column("message", Text),
    Column("warm_start", Boolean, nullable=False),
    Column("out_of_memory", Boolean, nullable=False, server_default=false()),
    Column("neighbours", JSON(none_as_null=True)),
    Column("estimate", JSON(none_as_null=True)),
    Column("pace", JSON(none_as_null=True)),
    Column("prepared_behind", Boolean, nullable=False, server_default=false()),
    Column("gate_wait_s", Double),
    Column("device_idle_s", Double),
    Column("slowdowns", JSON(none_as_null=True)),
    Column("demoted_s", Double),
    Column("cores", Integer),
    Column("parts", JSON(none_as_null=True)),
    Index("prefect_gpu_runs_ended_at", "ended_at"),
    Index("prefect_gpu_runs_flow_name", "flow_name", "ended_at"),
)

contention_table = Table(
    "prefect_gpu_contention",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("gpus", Integer, primary_key=True, autoincrement=False),
    Column("nodes", Integer, primary_key=True, autoincrement=False),
    Column("beside", String(512), primary_key=True),
    Column("beside_gpus", Integer, primary_key=True, autoincrement=False),
    Column("beside_nodes", Integer, primary_key=True, autoincrement=False),
    Column("program", Text, nullable=False),
    Column("slowdown", Double, nullable=False),
    Column("measured_at", Double, nullable=False),
    Index("prefect_gpu_contention_measured_at", "measured_at"),
)

_ADDED_IN_2 = ("device_util_std", "out_of_memory", "neighbours", "estimate", "pace")
_ADDED_IN_3 = ("prepared_behind", "gate_wait_s", "device_idle_s", "slowdowns", "demoted_s", "cores")

_ADDED_IN_4 = ("parts",)


def _to_2(connection: Connection) -> None:
    """What the learning side needs. Older rows keep the defaults."""
    _add_columns(connection, _ADDED_IN_2)


def _to_3(connection: Connection) -> None:
    """What pre-scheduling, sharing, demotion and core tuning did to a run. Older rows keep the defaults."""
    _add_columns(connection, _ADDED_IN_3)


def _to_4(connection: Connection) -> None:
    """Where each instance of a gang was. Older rows have the first one's devices only."""
    _add_columns(connection, _ADDED_IN_4)


def _to_5(connection: Connection) -> None:
    """What runs on several nodes do to each other."""
    contention_table.create(connection, checkfirst=True)


def _add_columns(connection: Connection, names: tuple[str, ...]) -> None:
    for name in names:
        column = CreateColumn(runs_table.c[name]).compile(dialect=connection.dialect)
        connection.execute(text(f"ALTER TABLE {runs_table.name} ADD COLUMN {column}"))


#: ``MIGRATIONS[n]`` brings a database of version n to version n + 1, inside the caller's transaction.
MIGRATIONS: dict[int, Callable[[Connection], None]] = {1: _to_2, 2: _to_3, 3: _to_4, 4: _to_5}

_ADVISORY_LOCK = 0x67707568  # "gpuh": one number that all workers agree on


class NewerSchema(Exception):
    """The database was written by a newer version of prefect-gpu."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def bring_up_to_date(
    connection: Connection,
    *,
    version: int = SCHEMA_VERSION,
    migrations: Mapping[int, Callable[[Connection], None]] = MIGRATIONS,
) -> None:
    """Create the tables, or migrate older ones, in the open writing transaction of `connection`.

    Workers that start at the same time take turns: on SQLite by the write lock that the transaction already holds,
    on PostgreSQL by an advisory lock that ends with it.

    Args:
        version: What the database shall have afterwards.
        migrations: One step for each older version.

    Raises:
        NewerSchema: The database is ahead of `version`; nothing was changed.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    found = read_version(connection)
    if found == version:
        return
    if found is None:
        metadata.create_all(connection)
        connection.execute(version_table.insert().values(version=version))
        return
    if found > version:
        raise NewerSchema(found)
    for step in range(found, version):
        migrations[step](connection)
    connection.execute(version_table.update().values(version=version))


def read_version(connection: Connection) -> int | None:
    """The database's schema version, or None if it has no history yet."""
    if not inspect(connection).has_table(version_table.name):
        return None
    return connection.execute(select(version_table.c.version)).scalar_one_or_none()
