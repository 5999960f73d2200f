"""A database goes up and down through all revisions, and versions of prefect-gpu work on each other's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

import prefect_gpu
from benchmarks._host.former import FORMER, former_version
from prefect_gpu.storage import schema
from prefect_gpu.storage.engine import open_engine, writing
from prefect_gpu.storage.history import History, HistoryRow
from prefect_gpu.storage.migrations import REVISIONS, migrate, read_revision, revision_table
from tests.components import require_commit
from tests.storage.test_history import FULL, contended, row

HEAD = REVISIONS[-1]
STEPS = list(pairwise(REVISIONS))


def differences(connection: Connection) -> list[Any]:
    """What the tables of the rows' fields have and the database has not, or the other way round."""
    options = {
        "version_table": revision_table.name,
        "compare_type": True,
        "include_name": lambda name, kind, _: kind != "table" or str(name).startswith("prefect_gpu"),
    }
    return compare_metadata(MigrationContext.configure(connection, opts=options), schema.metadata)


def columns(connection: Connection) -> set[str]:
    return {column["name"] for column in inspect(connection).get_columns("prefect_gpu_runs")}


def test_the_steps_make_the_tables_that_the_rows_need_and_unmake_them(history_url: str) -> None:
    """A field without a migration fails here, and says which column is missing."""
    History(history_url).close()  # makes them at once
    engine = writing(open_engine(history_url))
    with engine.begin() as connection:
        assert differences(connection) == []
        migrate(connection, HEAD, to="")
        assert inspect(connection).get_table_names() == [revision_table.name]
        migrate(connection, "")
        assert (read_revision(connection), schema.read_version(connection)) == (HEAD, schema.SCHEMA_VERSION)
        assert differences(connection) == []
    engine.dispose()


def test_rows_stay_on_the_way_down_and_up_again(history_url: str) -> None:
    with History(history_url) as history:
        history.record(FULL)
        for before, revision in reversed(STEPS):
            with history._writer.begin() as connection:
                there = columns(connection)
                migrate(connection, revision, to=before)
                down = columns(connection)
                assert down <= there and read_revision(connection) == before
                assert schema.read_version(connection) == min(int(before), schema.SCHEMA_VERSION)
        for before, revision in STEPS:
            with history._writer.begin() as connection:
                migrate(connection, before, to=revision)
        with history._writer.begin() as connection:
            assert columns(connection) == {column.name for column in schema.runs_table.columns}
    with History(history_url) as history:
        [kept] = history.rows()
        assert (kept.run_id, kept.parameters, kept.message, dict(kept.pace)) == (
            "run-1",
            FULL.parameters,
            FULL.message,
            {},
        )


@pytest.mark.parametrize("version", range(1, schema.SCHEMA_VERSION + 1))
def test_a_database_from_before_alembic_is_taken_over(history_url: str, version: int) -> None:
    """Its version is a number in prefect_gpu_schema, and it has no revision."""
    with History(history_url) as history:
        history.record(row())
        with history._writer.begin() as connection:
            migrate(connection, HEAD, to=f"{version:04}")
            revision_table.drop(connection)
    with History(history_url) as history:
        [old] = history.rows()
        assert (old.out_of_memory, old.neighbours, old.parts, old.launch) == (False, (), (), None)
        new = row("run-2", out_of_memory=True, neighbours=("bert",), launch="x", ended_at=1.0)
        history.record(new)
        history.record_contention(contended())
        assert history.rows() == [old, new] and history.contention() == [contended()]
        with history._writer.begin() as connection:
            assert (read_revision(connection), schema.read_version(connection)) == (HEAD, schema.SCHEMA_VERSION)


def test_a_migration_that_fails_changes_nothing(history_url: str) -> None:
    with History(history_url) as history:
        with history._writer.begin() as connection:
            migrate(connection, HEAD, to="0002")
        with pytest.raises(RuntimeError), history._writer.begin() as connection:
            schema.bring_up_to_date(connection)
            raise RuntimeError("power cut")
        with history._writer.begin() as connection:
            assert (read_revision(connection), schema.read_version(connection)) == ("0002", 2)
            assert "parts" not in columns(connection)


def test_workers_that_find_an_old_database_at_once_migrate_it_once(history_url: str) -> None:
    with History(history_url) as history:
        with history._writer.begin() as connection:
            migrate(connection, HEAD, to="0002")
    script = "import sys; from prefect_gpu.storage.history import History; print(History(sys.argv[1]).count())"
    command = [sys.executable, "-c", script, history_url]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [worker.communicate() for worker in workers] == [("0\n", "")] * 3


SCRIPT = """
import json, sys
from prefect_gpu.storage.history import History, HistoryRow
with History(sys.argv[1]) as history:
    history.record(HistoryRow(sys.argv[2], "train", "completed", ended_at=float(sys.argv[3]), granted_at=1.0))
    history.record(HistoryRow("known", "train", "completed", ended_at=5.0, granted_at=2.0))
    print(json.dumps([row.run_id for row in history.rows()]))
"""


def as_version(folder: Path, url: str, run_id: str, ended_at: float) -> list[str]:
    """Record a run by the package in a folder; a row that is known already, too. Returns the runs that it reads."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, url, run_id, str(ended_at)],
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"}, cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def next_version(folder: Path) -> Path:
    """The package as it will be once somebody has added a column as CONTRIBUTING says."""
    package = folder / "prefect_gpu"
    shutil.copytree(Path(prefect_gpu.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    fields = package / "storage" / "row.py"
    fields.write_text(fields.read_text().replace("    launch: str", '    mood: str = "calm"\n    launch: str', 1))
    number = f"{int(HEAD) + 1:04}"
    (package / "storage" / "migrations" / "versions" / f"v{number}_mood.py").write_text(
        f"""
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{number}", "{HEAD}"

def upgrade():
    op.add_column("prefect_gpu_runs", sa.Column("mood", sa.Text))

def downgrade():
    op.drop_column("prefect_gpu_runs", "mood")
"""
    )
    return folder


def test_the_next_version_and_this_one_write_and_read_one_database(history_url: str, tmp_path: Path) -> None:
    newer, here = next_version(tmp_path / "newer"), Path(prefect_gpu.__file__).parents[1]
    assert as_version(here, history_url, "here-1", 10.0) == ["here-1", "known"]
    assert as_version(newer, history_url, "newer-1", 20.0) == ["newer-1", "here-1", "known"]
    assert as_version(here, history_url, "here-2", 30.0) == ["here-2", "newer-1", "here-1", "known"]
    assert as_version(newer, history_url, "newer-2", 40.0)[0] == "newer-2"
    with History(history_url, read_only=True) as history:
        assert history.count() == 5
        with history._engine.connect() as connection:
            assert "mood" in columns(connection), "a worker of this version takes nothing back"
            assert connection.execute(text("SELECT version_num FROM prefect_gpu_revision")).scalar() > HEAD


def test_the_version_before_alembic_and_this_one_write_and_read_one_database(history_url: str, tmp_path: Path) -> None:
    require_commit(FORMER)
    former, here = former_version(FORMER, tmp_path), Path(prefect_gpu.__file__).parents[1]
    assert former is not None
    assert as_version(former, history_url, "former-1", 10.0) == ["former-1", "known"]
    with History(history_url, read_only=True) as history:
        assert [found.run_id for found in history.rows()] == ["former-1", "known"]
    assert as_version(here, history_url, "here-1", 20.0) == ["here-1", "former-1", "known"]
    assert as_version(former, history_url, "former-2", 30.0) == ["former-2", "here-1", "former-1", "known"]
    with History(history_url) as history:
        assert history.record(HistoryRow("here-1", "train", "completed", ended_at=20.0, granted_at=1.0)) is False
        assert history.count() == 4


def test_a_launch_is_one_row_even_if_its_times_are_told_otherwise_later(history_url: str) -> None:
    """The clock was set, say, between two workers that both recorded its end."""
    with History(history_url) as history:
        assert history.record(row(launch="a", granted_at=100.0))
        assert not history.record(row(launch="a", granted_at=3700.25, attempt=2))
        assert history.record(row(launch="b", granted_at=100.0))
        assert not history.record(row(launch="b", granted_at=0.0))
        assert [found.attempt for found in history.rows()] == [2, 1]
