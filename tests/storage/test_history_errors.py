"""A database that cannot be used says so in one message: which one, without its password, and what to do."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from prefect_gpu.storage.engine import explain, masked, parse_url, sqlite_path
from prefect_gpu.storage.history import History, HistoryError, HistoryRow
from prefect_gpu.storage.schema import runs_table
from tests.postgres import PostgresServer

ROW = HistoryRow("run-1", "train", "completed", ended_at=1.0)


def complaint(url: str) -> str:
    with pytest.raises(HistoryError) as caught:
        History(url)
    return str(caught.value)


def test_something_else_than_a_database(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_text("These are my notes, and by no means a database. " * 50)
    said = complaint(f"sqlite:///{path}")
    assert "not a database" in said
    assert "move it away" in said
    assert path.read_text().startswith("These are my notes")


def test_a_file_that_was_removed_while_it_was_in_use(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path / 'history.db'}") as history:
        history.close()  # as its connections are renewed
        for path in tmp_path.iterdir():
            path.unlink()
        with pytest.raises(HistoryError, match=r"no such table.* Start what uses it anew, which creates"):
            history.record(ROW)
    with History(f"sqlite:///{tmp_path / 'history.db'}") as history:
        assert history.record(ROW)


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ('could not extend file "base/1/2": No space left on device', "Make room on the disk of the PostgreSQL server"),
        ("cannot execute INSERT in a read-only transaction", "Name the primary in history_url"),
        ('relation "prefect_gpu_runs" does not exist', "Start what uses it anew"),
        ('column "launch" of relation "prefect_gpu_runs" does not exist', "Start what uses it anew"),
        ("permission denied for table prefect_gpu_runs", "'GRANT ALL ON ALL TABLES IN SCHEMA public TO \"me\"'"),
        ("permission denied for schema public", "'GRANT CREATE ON SCHEMA public TO \"me\"'"),
        ('database "runs" does not exist', "Create that database on the server (`createdb runs`)"),
    ],
)
def test_what_postgresql_says_has_its_remedy(said: str, remedy: str) -> None:
    assert remedy in str(explain("postgresql://me:geheim@db/runs", RuntimeError(said)))


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    assert f"ls -ld {tmp_path.parent} {tmp_path}" in complaint(f"sqlite:///{tmp_path}")


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be created" in complaint(f"sqlite:///{tmp_path}/file/folder/history.db")


def test_a_file_that_this_user_may_not_write() -> None:
    script = """
import os, sys
from prefect_gpu.storage.history import History, HistoryError, HistoryRow
History("sqlite://").close()  # everything is imported now: the other user may not read this Python
if os.geteuid() == 0:
    os.setuid(65534)  # root may write everything
try:
    History(sys.argv[1]).record(HistoryRow("run-2", "train", "completed", ended_at=1.0))
except HistoryError as error:
    print(error)
"""
    # Whoever runs the tests may be the only one who comes as far as their temporary folder.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'history.db'}"
        with History(url) as history:
            history.record(ROW)
        (folder / "history.db").chmod(0o444)
        folder.chmod(0o555)
        try:
            done = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True)
        finally:
            folder.chmod(0o755)
    assert f"ls -ld {folder}" in done.stdout and "Let this user write" in done.stdout, done.stderr


def test_a_password_that_is_a_word_of_the_message_hides_no_remedy() -> None:
    for password in ("r", "permission"):
        said = str(explain(f"postgresql://me:{password}@db/runs", RuntimeError("permission denied for schema public")))
        assert "GRANT CREATE ON SCHEMA public" in said and "***" in said


@pytest.mark.parametrize("url", ["", "history.db", "://", "postgresql://u:geheim@host:port:5/x"])
def test_no_url(url: str) -> None:
    said = complaint(url)
    assert "cannot be read" in said
    assert "geheim" not in said


@pytest.mark.parametrize("url", ["mysql://me:geheim@host/runs", "nonsense://me:geheim@x/y"])
def test_a_database_that_the_history_does_not_know(url: str) -> None:
    said = complaint(url)
    assert "does not work with" in said
    assert "geheim" not in said


def test_psycopg_missing() -> None:
    script = """
import sys
sys.modules["psycopg"] = None
from prefect_gpu.storage.history import History, HistoryError
try:
    History("postgresql://me:geheim@host/runs")
except HistoryError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pip install 'prefect-gpu[postgres]'" in done.stdout, done.stderr
    assert "geheim" not in done.stdout


def test_no_server() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        said = complaint(f"postgresql://me:geheim@127.0.0.1:{probe.getsockname()[1]}/runs")
    assert "Check that the PostgreSQL server runs" in said
    assert "geheim" not in said


def test_wrong_password(postgres: PostgresServer) -> None:
    said = complaint(postgres.url(password="geheim"))
    assert "Check the user and the password" in said
    assert "geheim" not in said


def test_what_a_user_may_not_do_on_postgresql_is_known_before_a_row_comes(postgres: PostgresServer) -> None:
    """In a schema that nobody may use, in one with tables of others, in one to migrate, and on a standby."""
    import psycopg

    url = postgres.make("rights")
    reader = f"postgresql://reader:geheim@127.0.0.1:{postgres.port}/rights"

    def said(*done: str) -> str:
        with psycopg.connect(url, autocommit=True) as admin:
            for one in done:
                admin.execute(one.encode())
        with History(reader, read_only=True) as history:
            try:
                history.check_writable()
            except HistoryError as error:
                with pytest.raises(HistoryError) as met, History(reader) as writing:
                    writing.record(HistoryRow("run", "train", "completed", ended_at=1.0))
                assert met.value.remedy == error.remedy
                return str(error)
        History(reader).close()
        return ""

    assert "GRANT CREATE ON SCHEMA" in said("CREATE ROLE reader LOGIN PASSWORD 'geheim'")
    History(url).close()
    assert "GRANT ALL ON ALL TABLES" in said("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    assert said("GRANT ALL ON ALL TABLES IN SCHEMA public TO reader") == ""
    set_back = "UPDATE prefect_gpu_revision SET version_num = '0008'"
    assert "must be owner" in said(set_back, "ALTER TABLE prefect_gpu_runs DROP deadline_at, DROP promised")
    assert "a standby" in said("ALTER ROLE reader SET default_transaction_read_only = on")
    postgres.drop("rights")
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute("DROP ROLE reader")


def test_no_such_database(postgres: PostgresServer) -> None:
    said = complaint(postgres.url("nowhere"))
    assert "Create that database" in said
    assert postgres.password not in said


def test_a_database_that_goes_wrong_later_is_an_error_of_the_call(history_url: str) -> None:
    with History(history_url) as history:
        with history._writer.begin() as connection:
            runs_table.drop(connection)
        for call in (history.count, history.rows, lambda: history.record(ROW)):
            with pytest.raises(HistoryError, match="prefect_gpu_runs"):
                call()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:ge@heim@db/runs", "postgresql://me:***@db/runs"),
        ("postgresql://db/runs?user=me&password=geheim&x=1", "postgresql://db/runs?user=me&password=***&x=1"),
        ("postgresql://me@db/runs", "postgresql://me@db/runs"),
        ("sqlite:////var/lib/history.db", "sqlite:////var/lib/history.db"),
    ],
)
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("postgres://h/d", "postgresql+psycopg"),
        ("postgresql+asyncpg://h/d", "postgresql+psycopg"),
        ("sqlite+aiosqlite:///x.db", "sqlite"),
    ],
)
def test_urls_as_prefect_and_hosting_services_write_them(url: str, driver: str) -> None:
    assert parse_url(url).drivername == driver


def test_sqlite_path() -> None:
    assert sqlite_path("sqlite:////a/b.db") == Path("/a/b.db")
    assert sqlite_path("sqlite://") is None
    assert sqlite_path("postgresql://h/d") is None
