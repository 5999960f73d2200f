"""The database that is kept for the next private server: it spares its migrations, and never does any harm."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import httpx
import pytest

from prefect_gpu.lab.migrated import DATABASE, MigratedDatabase, newest_migration
from prefect_gpu.lab.sandbox import Sandbox


def make(home: Path, revision: str | None = None) -> Path:
    """A database as a server has it that has come to this migration: in part still in its write-ahead log."""
    home.mkdir(parents=True, exist_ok=True)
    original = home / "original.db"
    with contextlib.closing(sqlite3.connect(original)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE flow (name TEXT)")
        database.executemany("INSERT INTO flow VALUES (?)", [("x" * 500,)] * 200)  # several pages
        database.commit()
        database.execute("PRAGMA wal_checkpoint")
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
        database.execute("INSERT INTO alembic_version VALUES (?)", (revision or newest_migration(),))
        database.commit()
        for end in ("", "-wal"):
            shutil.copy(f"{original}{end}", f"{home / DATABASE}{end}")  # closed, it would be without a log
    original.unlink()
    return home


def rows(home: Path) -> int:
    with contextlib.closing(sqlite3.connect(home / DATABASE)) as database:
        return int(database.execute("SELECT count(*) FROM flow").fetchone()[0])


def home_for(folder: Path) -> Path:
    folder.mkdir()
    return folder


def kept(cache: Path, home: Path) -> MigratedDatabase:
    migrated = MigratedDatabase(cache)
    migrated.keep(make(home))
    assert migrated.path is not None and migrated.is_kept
    return migrated


def test_what_one_server_made_another_begins_with(tmp_path: Path) -> None:
    migrated, home = kept(tmp_path / "cache", tmp_path / "one"), home_for(tmp_path / "two")
    assert migrated.put(home) and rows(home) == 200
    assert migrated.path is not None
    assert [path.name for path in migrated.path.parent.iterdir()] == [migrated.path.name], "nothing else is left"


def test_where_nothing_is_kept_nothing_is_put(tmp_path: Path) -> None:
    home = home_for(tmp_path / "home")
    assert not MigratedDatabase(tmp_path / "cache").put(home)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "overwritten", "empty", "no database"])
def test_a_damaged_one_is_not_used_and_made_anew(tmp_path: Path, damage: str) -> None:
    migrated, home = kept(tmp_path / "cache", tmp_path / "one"), home_for(tmp_path / "two")
    path = migrated.path
    assert path is not None
    whole = path.read_bytes()
    path.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "overwritten": whole[:8192] + b"\xff" * (len(whole) - 8192),
            "empty": b"",
            "no database": b"<html>" * 5000,
        }[damage]
    )
    assert not migrated.put(home)
    assert list(home.iterdir()) == [], "the server makes its own"
    migrated.keep(tmp_path / "one")
    assert migrated.put(home) and rows(home) == 200


def test_one_of_another_migration_is_neither_kept_nor_used(tmp_path: Path) -> None:
    migrated, home = MigratedDatabase(tmp_path / "cache"), home_for(tmp_path / "home")
    migrated.keep(make(tmp_path / "one", "0123456789ab"))
    assert not migrated.is_kept
    assert migrated.path is not None
    assert rows(tmp_path / "one") == 200  # closed, it is without a log, as one that is kept
    migrated.path.write_bytes((tmp_path / "one" / DATABASE).read_bytes())
    assert not migrated.put(home) and list(home.iterdir()) == []


def test_another_prefect_has_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, home = kept(tmp_path / "cache", tmp_path / "one"), home_for(tmp_path / "home")
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.0.1")
    other = MigratedDatabase(tmp_path / "cache")
    assert not other.put(home)
    other.keep(tmp_path / "one")
    assert ours.is_kept and other.is_kept and ours.path != other.path


def test_what_nobody_has_used_for_long_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrated = kept(tmp_path / "cache", tmp_path / "one")
    assert migrated.path is not None
    cache, long_ago = migrated.path.parent, time.time() - 40 * 86400
    (cache / "prefect-3.0.0-0123456789ab.db").touch()
    (cache / "prefect-3.0.1-0123456789ab.db").touch()
    (cache / "making-killed").mkdir()
    for name in ("prefect-3.0.0-0123456789ab.db", "making-killed", migrated.path.name):
        os.utime(cache / name, (long_ago, long_ago))
    assert migrated.put(home_for(tmp_path / "home")), "and so it is used now"
    monkeypatch.setattr("importlib.metadata.version", lambda _: "3.0.2")
    MigratedDatabase(tmp_path / "cache").keep(tmp_path / "one")
    left = {path.name for path in cache.iterdir()} - {f"prefect-3.0.2-{newest_migration()}.db"}
    assert left == {"prefect-3.0.1-0123456789ab.db", migrated.path.name}


@pytest.mark.parametrize("obstacle", ["a file", "no home"])
def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, obstacle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if obstacle == "a file":  # permissions mean nothing to root
        (tmp_path / "cache").touch()
        migrated = MigratedDatabase(tmp_path / "cache" / "databases")
    else:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", _no_home)
        migrated = MigratedDatabase()
    home = home_for(tmp_path / "home")
    migrated.keep(make(tmp_path / "one"))
    assert not migrated.put(home) and list(home.iterdir()) == []


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_it_lies_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    path = MigratedDatabase().path
    assert path is not None and path.parent == tmp_path / "caches" / "prefect-gpu" / "databases"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification: to be ignored
    monkeypatch.setenv("HOME", str(tmp_path))
    path = MigratedDatabase().path
    assert path is not None and path.parent == tmp_path / ".cache" / "prefect-gpu" / "databases"


def _keep_and_put(cache: Path, source: Path, homes: Path) -> list[bool]:
    migrated, found = MigratedDatabase(cache), []
    for number in range(30):
        migrated.keep(source)
        home = homes / f"{os.getpid()}-{number}"
        home.mkdir()
        found.append(migrated.put(home) and rows(home) == 200)
    return found


def test_several_processes_keep_and_use_it_at_once(tmp_path: Path) -> None:
    source, homes = make(tmp_path / "one"), home_for(tmp_path / "homes")
    with ProcessPoolExecutor(4) as pool:
        tasks = [pool.submit(_keep_and_put, tmp_path / "cache", source, homes) for _ in range(4)]
        assert all(all(task.result()) for task in tasks)
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.full
def test_a_server_begins_with_it_and_has_nothing_of_the_one_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pool = {"name": "theirs", "type": "process"}
    with Sandbox(tmp_path / "one") as one:
        migrated = MigratedDatabase()
        assert migrated.is_kept, "it has come to the migration that the files' text names as the newest"
        assert httpx.post(f"{one.api_url}/work_pools/", json=pool, trust_env=False).is_success
    put: list[bool] = []
    with monkeypatch.context() as patch:
        patch.setattr(MigratedDatabase, "put", _noting(put))
        with Sandbox(tmp_path / "two") as two:
            assert httpx.post(f"{two.api_url}/work_pools/filter", json={}, trust_env=False).json() == []
            assert httpx.post(f"{two.api_url}/work_pools/", json=pool, trust_env=False).is_success
    assert put == [True]
    assert migrated.put(home_for(tmp_path / "three"))
    with contextlib.closing(sqlite3.connect(tmp_path / "three" / DATABASE)) as database:
        assert database.execute("SELECT count(*) FROM work_pool").fetchone() == (0,), "it is kept as it was"


def _noting(put: list[bool]) -> Callable[[MigratedDatabase, Path], bool]:
    original = MigratedDatabase.put

    def noting(self: MigratedDatabase, home: Path) -> bool:
        put.append(original(self, home))
        return put[-1]

    return noting


def test_only_a_new_database_of_prefects_own_begins_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path / "cache" / "prefect-gpu" / "databases", tmp_path / "one")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def no_server(self: Sandbox, *_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(Sandbox, "start", no_server)

    def started(name: str, **settings: str) -> Path:
        with pytest.raises(InterruptedError), Sandbox(tmp_path / name, settings):
            pass
        return tmp_path / name / "home" / DATABASE

    assert started("new").stat().st_size > 100_000
    elsewhere = "postgresql+asyncpg://nobody@nowhere/prefect"
    assert not started("elsewhere", PREFECT_SERVER_DATABASE_CONNECTION_URL=elsewhere).exists()
    assert not started("as-it-was-called", PREFECT_API_DATABASE_CONNECTION_URL=elsewhere).exists()
    (tmp_path / "old" / "home").mkdir(parents=True)
    (tmp_path / "old" / "home" / DATABASE).write_text("somebody's own")
    assert started("old").read_text() == "somebody's own"
