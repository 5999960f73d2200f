"""The history: one row per finished run, per launch, and per pair of runs that slowed each other down on a network.

What is learned is learned from here, and nothing else is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Engine, Select, Table, func, select, tuple_
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from prefect_gpu.storage.engine import (
    HistoryError,
    RowRefused,
    explain,
    masked,
    open_engine,
    refused,
    sqlite_path,
    writing,
)
from prefect_gpu.storage.row import OUTCOMES, ContentionRow, HistoryRow, Outcome, StayRow
from prefect_gpu.storage.schema import (
    SCHEMA_VERSION,
    NewerSchema,
    bring_up_to_date,
    check_version,
    columns_there,
    contention_table,
    refusal,
    runs_table,
    stays_table,
)

__all__ = [
    "OUTCOMES",
    "ContentionRow",
    "History",
    "HistoryError",
    "HistoryRow",
    "Outcome",
    "RowRefused",
    "StayRow",
    "masked",
    "sqlite_path",
]


T = TypeVar("T")
_TRIES = 10  # to write a row that other processes write, too
_BLOCK = 400  # rows read at once where some cannot be read

logger = logging.getLogger("prefect_gpu.history")


class History:
    """The finished runs in a database: SQLite (several workers of one machine may write) or PostgreSQL.

    Opening it creates or migrates the tables. It may be used from several threads.

    Args:
        url: A SQLAlchemy URL: ``sqlite:////var/lib/gpu/history.db``, ``postgresql://user:password@host/database``.
        read_only: Only look: nothing is created, migrated or written. A database of an earlier version is read as it
            is, and one that is not there as an empty one.

    Raises:
        HistoryError: The database cannot be used; the message says why and what to do. So do all methods.

    Example:
        >>> with History("sqlite://") as history:
        ...     history.record(HistoryRow("id-1", "train", "completed", ended_at=100.0))
        ...     history.rows(flow_name="train")[0].outcome
        True
        'completed'
    """

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self._url = url
        self._read_only = read_only
        self._unreadable: set[tuple[str, int]] = set()  # rows that a warning was given of
        self._engine: Engine = open_engine(url, read_only=read_only)
        self._writer = writing(self._engine)
        try:
            with self._transaction(self._engine if read_only else self._writer) as connection:
                check_version(connection) if read_only else bring_up_to_date(connection)
        except NewerSchema as newer:
            self._engine.dispose()
            raise HistoryError(
                f"The history {masked(url)} has schema version {newer.version}, and this prefect-gpu knows versions "
                f"up to {SCHEMA_VERSION}.",
                "Upgrade it here (`pip install --upgrade prefect-gpu`), or set history_url to another database.",
            ) from newer
        except HistoryError:
            self._engine.dispose()
            raise

    def record(self, row: HistoryRow) -> bool:
        """Keep a finished run. A row once written stays as it is: recording it again changes nothing.

        Prefect counts a run's tries by its entries into RUNNING. One that crashed before that and is run again has the
        same number again: it was granted its place at another time, and gets the next number that is free.

        Returns:
            Whether it is new. False if this attempt of this run was recorded before.
        """

        def write(connection: Connection) -> bool:
            attempt = _free_attempt(connection, row)
            if attempt is not None:
                connection.execute(runs_table.insert().values(row.as_columns() | {"attempt": attempt}))
            return attempt is not None

        return self._write(write)

    def rows(
        self,
        *,
        limit: int | None = None,
        flow_name: str | None = None,
        outcome: str | None = None,
        since: float | None = None,
    ) -> list[HistoryRow]:
        """Finished runs, newest first (by their end). A row that cannot be read is left out, with a warning.

        Args:
            limit: At most so many; None for all.
            flow_name: Only runs of this flow.
            outcome: Only runs that ended so.
            since: Only runs that ended at this time or later, in Unix seconds.
        """
        return self._read(select(runs_table).where(*_conditions(flow_name, outcome, since)).limit(limit))

    def newest_of_each_flow(self, most: int, *, limit: int | None = None) -> list[HistoryRow]:
        """The newest runs of each flow, newest first: what is learned from, however long the history is.

        Args:
            most: At most so many of each flow.
            limit: At most so many in all.
        """
        rank = func.row_number().over(partition_by=runs_table.c.flow_name, order_by=runs_table.c.ended_at.desc())
        ranked = select(runs_table.c.run_id, runs_table.c.attempt, rank.label("rank")).subquery()
        same = (ranked.c.run_id == runs_table.c.run_id) & (ranked.c.attempt == runs_table.c.attempt)
        return self._read(select(runs_table).join(ranked, same).where(ranked.c.rank <= most).limit(limit))

    def record_stay(self, row: StayRow) -> None:
        """Keep what one launch held. Recording it again changes nothing."""
        table, columns = stays_table, row.as_columns()
        same = [column == columns[column.name] for column in table.primary_key.columns]

        def write(connection: Connection) -> None:
            if connection.execute(select(table.c.run_id).where(*same)).first() is None:
                connection.execute(table.insert().values(columns))

        self._write(write)

    def stays(self, pool: str, since: float) -> list[StayRow]:
        """What the launches of a pool held that ended at this time or later, in Unix seconds."""
        table = stays_table
        query = select(table).where(table.c.pool == pool, table.c.ended_at >= since).order_by(table.c.ended_at)
        with self._transaction(self._engine) as connection:
            there = self._columns(connection, table)
            found = connection.execute(query).mappings() if there else ()
            return [StayRow.from_columns(dict(columns)) for columns in found]

    def _read(self, query: Select[Any]) -> list[HistoryRow]:
        query = query.order_by(runs_table.c.ended_at.desc(), runs_table.c.run_id, runs_table.c.attempt.desc())
        with self._transaction(self._engine) as connection:
            there = self._columns(connection, runs_table)
            if not there:
                return []
            query = query.with_only_columns(*there)
            try:
                return [HistoryRow.from_columns(dict(found)) for found in connection.execute(query).mappings()]
            except (ValueError, TypeError, KeyError):
                return self._readable(connection, query)

    def _columns(self, connection: Connection, table: Table) -> list[Column[Any]]:
        """Those of a table that the database has: whoever only looks may find one of an earlier version, or none."""
        return columns_there(connection, table) if self._read_only else list(table.columns)

    def record_contention(self, row: ContentionRow) -> None:
        """Keep what was measured of a run beside another one. It takes the place of what was measured earlier."""
        table = contention_table
        columns = row.as_columns()
        same = [column == columns[column.name] for column in table.primary_key.columns]

        def write(connection: Connection) -> None:
            if connection.execute(select(table).where(*same, table.c.measured_at > row.measured_at)).first() is None:
                connection.execute(table.delete().where(*same))
                connection.execute(table.insert().values(columns))

        self._write(write)

    def contention(self, *, limit: int | None = None, flow_name: str | None = None) -> list[ContentionRow]:
        """What runs on several nodes did to each other, newest first. Rows without a sensible slowdown are left out.

        Args:
            limit: At most so many; None for all.
            flow_name: Only of runs of this flow.
        """
        table = contention_table
        query = select(table).order_by(table.c.measured_at.desc(), *table.primary_key.columns).limit(limit)
        if flow_name is not None:
            query = query.where(table.c.program == flow_name)
        found = []
        with self._transaction(self._engine) as connection:
            there = self._columns(connection, table)
            for columns in connection.execute(query).mappings() if there else ():
                with suppress(ValueError, TypeError):  # somebody wrote a text there, which SQLite keeps
                    found.append(ContentionRow.from_columns(dict(columns)))
        return found

    def count(self) -> int:
        """How many rows there are."""
        with self._transaction(self._engine) as connection:
            if not self._columns(connection, runs_table):
                return 0
            return connection.execute(select(func.count()).select_from(runs_table)).scalar_one()

    def check_writable(self) -> None:
        """Look whether a worker that is this user could write here, on PostgreSQL.

        Raises:
            HistoryError: It could not.
        """
        with self._transaction(self._engine) as connection:
            said = refusal(connection)
        if said:
            raise explain(self._url, PermissionError(said))

    def close(self) -> None:
        """Close all connections. Closing twice does no harm."""
        self._engine.dispose()

    def __enter__(self) -> History:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _readable(self, connection: Connection, query: Select[Any]) -> list[HistoryRow]:
        """Those of the rows that can be read: one bad row spoils a whole result, so results get ever smaller."""
        keys = connection.execute(query.with_only_columns(runs_table.c.run_id, runs_table.c.attempt)).all()
        found: dict[tuple[str, int], HistoryRow] = {}
        waiting = [[tuple(key) for key in keys[start : start + _BLOCK]] for start in range(0, len(keys), _BLOCK)]
        while waiting:
            block = waiting.pop()
            some = query.with_only_columns(*query.selected_columns).where(
                tuple_(runs_table.c.run_id, runs_table.c.attempt).in_(block)
            )
            try:
                rows = [HistoryRow.from_columns(dict(row)) for row in connection.execute(some).mappings()]
            except (ValueError, TypeError, KeyError) as error:
                if len(block) > 1:
                    waiting += [block[: len(block) // 2], block[len(block) // 2 :]]
                else:
                    self._warn_of(block[0], error)
            else:
                found |= {(row.run_id, row.attempt): row for row in rows}
        return [found[key] for key in map(tuple, keys) if key in found]

    def _warn_of(self, key: tuple[str, int], error: Exception) -> None:
        if key not in self._unreadable:
            self._unreadable.add(key)
            logger.warning(
                "Row %s, attempt %s, of the history %s cannot be read and is left out: %s. Mend or delete it.",
                *key,
                masked(self._url),
                error,
            )

    def _write(self, work: Callable[[Connection], T]) -> T:
        """In a transaction that is begun anew if another process has written the same row meanwhile."""
        if self._read_only:
            raise ValueError("This history was opened with read_only=True: open it without, to write.")
        for _ in range(_TRIES):
            with suppress(_Duplicate), self._transaction(self._writer) as connection:
                return work(connection)
        raise RowRefused(f"The history {masked(self._url)} holds another row under the key of this one.")

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Connection]:
        try:
            with engine.begin() as connection:
                yield connection
        except IntegrityError as error:
            if _is_duplicate(error):
                raise _Duplicate from error
            raise refused(self._url, error) from error
        except DataError as error:
            raise refused(self._url, error) from error
        except StatementError as error:
            raise (refused if _is_of_another_kind(error) else explain)(self._url, error) from error
        except (SQLAlchemyError, OSError, UnicodeError) as error:
            raise explain(self._url, error) from error


class _Duplicate(Exception):
    """A row of this run and attempt is there already."""


def _free_attempt(connection: Connection, row: HistoryRow) -> int | None:
    """The number that a row gets: its own, or if another attempt has that, the next; None if it is there already."""
    table = runs_table.c
    known = select(table.attempt, table.granted_at, table.launch).where(table.run_id == row.run_id)
    recorded = {found.attempt: found for found in connection.execute(known)}
    if row.launch is not None and any(found.launch == row.launch for found in recorded.values()):
        return None
    attempt = row.attempt
    while (found := recorded.get(attempt)) is not None:
        # Of a row without a launch, which an older version has written, the time of the grant must do.
        if found.granted_at == row.granted_at and None in (found.launch, row.launch):
            return None
        attempt += 1
    return attempt


def _is_duplicate(error: IntegrityError) -> bool:
    # PostgreSQL has a code for it; SQLite has words. NOT NULL violations are integrity errors too, but bugs.
    return getattr(error.orig, "sqlstate", None) == "23505" or "UNIQUE constraint failed" in str(error.orig)


def _is_of_another_kind(error: StatementError) -> bool:
    """Whether a value is no text, no number ... where the column has one. The database is then not even asked."""
    if not isinstance(error, DBAPIError):
        return True
    said = str(error.orig)
    return "Error binding parameter" in said or "cannot adapt" in said or getattr(error.orig, "sqlstate", "") == "42804"


def _conditions(flow_name: str | None, outcome: str | None, since: float | None) -> Iterator[ColumnElement[bool]]:
    if flow_name is not None:
        yield runs_table.c.flow_name == flow_name
    if outcome is not None:
        yield runs_table.c.outcome == outcome
    if since is not None:
        yield runs_table.c.ended_at >= since
