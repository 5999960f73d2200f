"""Commands that only look change nothing of the history, and read it as it is, whoever wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from prefect_gpu.cli.checks import check_history
from prefect_gpu.storage.engine import parse_url, sqlite_path
from prefect_gpu.storage.history import History
from prefect_gpu.storage.migrations import REVISIONS, migrate
from tests.cli.conftest import InProcess
from tests.reporting.rows import finished


def as_it_is(url: str) -> tuple[object, ...]:
    """The database's tables, columns, versions, and of a file every byte, and what lies beside it."""
    engine = create_engine(parse_url(url))
    with engine.connect() as connection:
        found = inspect(connection)
        tables = {name: sorted(one["name"] for one in found.get_columns(name)) for name in found.get_table_names()}
        version = connection.execute(text("SELECT version FROM prefect_gpu_schema")).scalars().all()
    engine.dispose()
    path = sqlite_path(url)
    return tables, version, path and (path.read_bytes(), sorted(one.name for one in path.parent.iterdir()))


@pytest.fixture
def old(history_url: str) -> str:
    """A history of an earlier version, with rows."""
    with History(history_url) as history:
        for at, name in enumerate("abc"):
            history.record(finished(name, 10 * at))
        with history._writer.begin() as connection:
            migrate(connection, REVISIONS[-1], to="0002")
    return history_url


def test_every_command_that_looks_leaves_the_history_as_it_is(run_cli: InProcess, old: str, tmp_path: Path) -> None:
    before = as_it_is(old)
    for words in (
        ("doctor",),
        ("history", "--json"),
        ("history", "--contention"),
        ("timeline", "--png", str(tmp_path / "t.png")),
        ("estimate",),
        ("what-if", "--profile", "sjf", "--present", "fifo", "--json"),
    ):
        done = run_cli(*words, PREFECT_INTEGRATIONS_GPU_HISTORY_URL=old)
        assert as_it_is(old) == before, words
        assert done.exit_code == 0 or words == ("doctor",), done.stderr
    rows = json.loads(run_cli("history", "--json", PREFECT_INTEGRATIONS_GPU_HISTORY_URL=old).stdout)
    assert [row["run_id"] for row in rows] == ["id-c", "id-b", "id-a"] and rows[0]["cores"] is None
    [finding] = check_history(old)
    assert finding.level == "ok" and "3 finished runs" in finding.text


def test_a_history_that_is_being_written_is_read_as_it_is_now(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'history.db'}"
    look = History(url, read_only=True)
    assert look.rows() == [] and look.contention() == [] and look.count() == 0
    assert not list(tmp_path.iterdir()), "looking makes no file"
    with History(url) as history:
        for number, name in enumerate("abc", start=1):
            history.record(finished(name, number))
            assert look.count() == number
    assert [row.run_id for row in look.rows()] == ["id-c", "id-b", "id-a"]
    assert [path.name for path in tmp_path.iterdir()] == ["history.db"]


def test_who_only_looks_cannot_write(old: str) -> None:
    with History(old, read_only=True) as history, pytest.raises(ValueError, match="read_only"):
        history.record(finished("d", 40))
