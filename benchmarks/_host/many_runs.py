"""Thousands of waiting runs, made at once: Prefect takes a quarter of an hour to create ten thousand on SQLite."""

from __future__ import annotations

import warnings
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa

_AT_ONCE = 500  # in one transaction: a server on SQLite waits for it


def copies(database: str, run_id: UUID, count: int) -> None:
    """Copy a run that waits, state and all, in the server's database.

    Args:
        database: URL of it for SQLAlchemy, of a driver that does not need an event loop.
        run_id: Whose copies are made.
    """
    engine, schema = sa.create_engine(database), sa.MetaData()
    with warnings.catch_warnings():  # of indexes that SQLAlchemy cannot describe
        warnings.simplefilter("ignore", sa.exc.SAWarning)
        schema.reflect(engine, only=["flow_run", "flow_run_state"], resolve_fks=False)
    runs, states = schema.tables["flow_run"], schema.tables["flow_run_state"]
    key = run_id if engine.dialect.name == "postgresql" else str(run_id)
    with engine.connect() as connection:
        run = dict(connection.execute(sa.select(runs).where(runs.c.id == key)).mappings().one())
        state = dict(connection.execute(sa.select(states).where(states.c.id == run["state_id"])).mappings().one())
    for start in range(0, count, _AT_ONCE):
        new = [_ids(key) for _ in range(min(_AT_ONCE, count - start))]
        with engine.begin() as connection:
            connection.execute(
                sa.insert(runs),
                [run | {"id": id_, "state_id": None, "name": f"copy-{str(id_)[:8]}"} for id_, _ in new],
            )
            connection.execute(
                sa.insert(states),
                [
                    state
                    | {
                        "id": own_state,
                        "flow_run_id": id_,
                        "state_details": state["state_details"] | {"flow_run_id": str(id_)},
                    }
                    for id_, own_state in new
                ],
            )
            connection.execute(
                sa.update(runs).where(runs.c.id == sa.bindparam("run")).values(state_id=sa.bindparam("own_state")),
                [{"run": id_, "own_state": own_state} for id_, own_state in new],
            )
    engine.dispose()


def _ids(like: Any) -> tuple[Any, Any]:
    """Of a run and of its state, in the database's type."""
    return (uuid4(), uuid4()) if isinstance(like, UUID) else (str(uuid4()), str(uuid4()))
