"""From a URL to an engine that is set up for several writers, and from its errors to plain words."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path
from shlex import quote
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool, StaticPool

#: How long a writer waits for another one (SQLite), and a connection for its server (PostgreSQL), in seconds.
BUSY_TIMEOUT_S = 30
CONNECT_TIMEOUT_S = 5

# A server that loses its power, or the way to it, must not keep a writer waiting for hours: libpq's own defaults do.
_POSTGRESQL = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,  # ms
}

_AS_THESE = (
    "Write it like one of these: `export PREFECT_INTEGRATIONS_GPU_HISTORY_URL=sqlite:///$HOME/history.db`, "
    "`export PREFECT_INTEGRATIONS_GPU_HISTORY_URL=postgresql://user:password@host/database`."
)
_ANEW = (
    "Its tables were removed or replaced while it was in use. Start what uses it anew, which creates or migrates them: "
    "`prefect worker start --pool NAME`."
)
_LONGEST_REFUSAL = 300  # characters: some databases repeat the value

# Prefect's own URLs name asynchronous drivers, and hosting services write "postgres://": take what people paste.
_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+aiosqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+asyncpg": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}


class HistoryError(RuntimeError):
    """The history cannot be used. The message names the database, its password masked, and the remedy.

    Args:
        what: What is wrong, a sentence.
        remedy: What to do about it, with the command in backquotes.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what} {remedy}".rstrip())
        self.what, self.remedy = what, remedy


def masked(url: str) -> str:
    """The URL as it may be shown: without its password.

    Example:
        >>> masked("postgresql://me:secret@db/runs?password=x")
        'postgresql://me:***@db/runs?password=***'
    """
    hidden = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)([?&](?:\w*password|sslkey)=)[^&]*", r"\1***", hidden)


def parse_url(url: str) -> URL:
    """Read a history URL.

    Raises:
        HistoryError: It is no URL, or of a kind of database that the history does not know.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise HistoryError(
            f"The history URL {masked(url)!r} cannot be read.",
            f"{_AS_THESE} Special characters in a password are percent-encoded.",
        ) from error
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise HistoryError(
            f"The history URL {masked(url)} names {parsed.drivername!r}, a kind of database that the history does "
            "not work with.",
            _AS_THESE,
        )
    return parsed.set(drivername=driver)


def sqlite_path(url: str) -> Path | None:
    """The file of an SQLite URL; None for one in memory and for other databases.

    Raises:
        HistoryError: The URL cannot be read.
    """
    parsed = parse_url(url)
    if parsed.drivername != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    return Path(str(parsed.database))


def open_engine(url: str, *, read_only: bool = False) -> Engine:
    """An engine for `url`. A missing folder of an SQLite file is created; nothing else is touched yet.

    Args:
        read_only: Change nothing, nor let a caller do so. An SQLite file that is not there is read as an empty one.

    Raises:
        HistoryError: The URL is unusable, its driver is not installed, or the folder cannot be created.
    """
    parsed = parse_url(url)
    if parsed.drivername == "sqlite":
        return _read_sqlite(url, parsed) if read_only else _open_sqlite(url, parsed)
    options = {name: value for name, value in _POSTGRESQL.items() if name not in parsed.query}
    try:
        engine = create_engine(parsed, connect_args=options, pool_pre_ping=True)
        return engine.execution_options(postgresql_readonly=True) if read_only else engine
    except (ImportError, NoSuchModuleError) as error:
        raise HistoryError(
            f"The history {masked(url)} needs the PostgreSQL driver psycopg, which cannot be loaded here ({error}).",
            "Install it: `pip install 'prefect-gpu[postgres]'`.",
        ) from error


def writing(engine: Engine) -> Engine:
    """The same engine for transactions that write: on SQLite they take the write lock when they begin.

    A transaction that first reads and then wants to write can fail at once, however long the busy timeout, if
    another writer came between; one that begins as a writer waits its turn.
    """
    return engine.execution_options(prefect_gpu_writes=True)


class RowRefused(HistoryError):
    """The database works, and does not take this row."""


def explain(url: str, error: Exception) -> HistoryError:
    """An error of the database or its driver, as a sentence with a remedy."""
    return HistoryError(
        f"The history {masked(url)} cannot be used: {_said(url, error)}.", _remedy(url, _words(error).lower())
    )


def refused(url: str, error: Exception) -> RowRefused:
    """An error that the database has with one row, which may be long, as a sentence."""
    return RowRefused(f"The history {masked(url)} does not take it: {_said(url, error)[:_LONGEST_REFUSAL]}")


def _said(url: str, error: Exception) -> str:
    secret = make_url(url).password
    return _words(error).replace(str(secret), "***") if secret else _words(error)


def _words(error: Exception) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())


def _remedy(url: str, said: str) -> str:
    path = sqlite_path(url)
    if path is not None:
        if "not a database" in said or "malformed" in said:
            return f"It is damaged or is no history: move it away: `mv {quote(str(path))} {quote(f'{path}.damaged')}`."
        if "locked" in said or "busy" in said:
            return f"Another program has locked it. See which one has the file open: `fuser -v {quote(str(path))}`."
        if "no such table" in said or "no such column" in said or "has no column" in said:
            return _ANEW
        if "disk i/o" in said:
            return (
                "Its disk, or the network share that it is on, fails: `dmesg --level err,warn` shows "
                "errors of disks. A share is no place for SQLite: set history_url to another one."
            )
        if "full" in said:
            return f"Make room on its disk: `df -h {quote(str(path.parent))}` shows how full it is."
        return (
            "Let this user write the file and the folder that it is in, or set history_url. "
            f"`ls -ld {quote(str(path.parent))} {quote(str(path))}` shows who may."
        )
    known = make_url(url)  # without its password: psql would take the stars in its place for one
    place = quote(str(URL.create("postgresql", known.username, None, known.host, known.port, known.database)))
    if "too many clients" in said or "connection slots" in said:
        ask = quote("SELECT usename, application_name, count(*) FROM pg_stat_activity GROUP BY 1, 2")
        return (
            "That server gives no more connections: end some, or raise its max_connections. "
            f"`psql -c {ask} {place}` shows whose they are."
        )
    if "password" in said or "authentication" in said or "pg_hba" in said or "role" in said:
        return f"Check the user and the password in history_url: `psql {place}` asks for the password."
    if "must be owner" in said:
        return (
            "Let the owner of its tables start a worker once, which migrates them, or make this user their owner. "
            f"`psql -c '\\dt' {place}` shows who that is."
        )
    if "no space left" in said or "disk full" in said:
        return f"Make room on the disk of the PostgreSQL server: `psql -c 'SHOW data_directory' {place}` says which."
    if "read-only transaction" in said:
        return "That server takes no changes: it is a standby, or was made read-only. Name the primary in history_url."
    if "does not exist" in said and ("relation " in said or "column " in said):
        return _ANEW
    if "does not exist" in said:
        database = quote(known.database or "prefect_gpu")
        return f"Create that database on the server (`createdb {database}`), or correct its name in history_url."
    if "permission denied" in said:
        user = known.username or "USER"
        if "for table" in said or "for relation" in said:
            grant = f'GRANT ALL ON ALL TABLES IN SCHEMA public TO "{user}"'
            return f"Let the user read and write its tables: `psql -c {quote(grant)}` as their owner."
        return (
            f"Let the user create tables there: `psql -c 'GRANT CREATE ON SCHEMA public TO \"{user}\"'` as its owner."
        )
    at = f"-h {quote(known.host or 'localhost')} -p {known.port or 5432}"
    return f"Check that the PostgreSQL server runs and can be reached from here: `pg_isready {at}`."


def _open_sqlite(url: str, parsed: URL) -> Engine:
    path = sqlite_path(url)
    if path is None:
        # One connection for all, or every thread would have a database of its own.
        engine = create_engine(parsed, poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HistoryError(
                f"The history {masked(url)} cannot be used: its folder {path.parent} cannot be created "
                f"({error.strerror}).",
                "Create it and let this user write there, or set history_url to another place: "
                "`export PREFECT_INTEGRATIONS_GPU_HISTORY_URL=sqlite:///$HOME/history.db`.",
            ) from error
        engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _read_sqlite(url: str, parsed: URL) -> Engine:
    path = sqlite_path(url)
    if path is None:
        return _open_sqlite(url, parsed)

    def connect() -> sqlite3.Connection:
        where = _read_only_uri(path) if path.exists() else ":memory:"
        return sqlite3.connect(where, timeout=BUSY_TIMEOUT_S, uri=True, isolation_level=None)

    engine = create_engine(parsed, creator=connect, poolclass=NullPool)  # whether it is in use may change between looks
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _read_only_uri(path: Path) -> str:
    """A database with a log of changes (WAL) is in use while there is that file; SQLite would make one to read, too.

    What it makes would stay, belong to whoever looked, and be in the way of a worker that is another user.
    """
    with path.open("rb") as file:
        keeps_log = file.read(20)[18:] == b"\x02\x02"
    in_use = not keeps_log or path.with_name(f"{path.name}-wal").exists()
    return f"{path.absolute().as_uri()}?mode=ro{'' if in_use else '&immutable=1'}"


def _set_up_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # Python's module would begin transactions by itself, and too late; _begin_sqlite does it instead.
    connection.isolation_level = None
    _keep_a_log(connection)
    connection.execute("PRAGMA synchronous=FULL")  # a row that was taken is not lost with the power


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """Let readers never wait for a writer (WAL). Once one connection has changed the file so, all have it.

    Where that is impossible (some network file systems), SQLite stays as it was, which is slower and just as right.
    """
    until = time.monotonic() + BUSY_TIMEOUT_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            # The change fails at once if another connection uses the file, whatever the busy timeout: SQLite would
            # have to wait with a lock in its hand. A transaction does wait, until it has the file for itself.
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("COMMIT")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("prefect_gpu_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
