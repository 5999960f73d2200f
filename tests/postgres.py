"""A real PostgreSQL server for tests and benchmarks: private, in a temporary folder, on a free port."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prefect_gpu.lab.sandbox import free_port

_USERS = ("postgres", "nobody")  # whom it may run as; it refuses to run as root


@dataclass(frozen=True)
class PostgresServer:
    """Where it is, and how one gets in."""

    port: int
    password: str = "s3cret/pass"

    def url(self, database: str = "postgres", *, password: str = "s3cret%2Fpass") -> str:
        """URL of a database, as libpq has it."""
        return f"postgresql://gpu:{password}@127.0.0.1:{self.port}/{database}"

    def make(self, database: str) -> str:
        """Make an empty database. Returns its URL."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {database}".encode())
        return self.url(database)

    def drop(self, database: str) -> None:
        """Remove a database, whoever still uses it."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {database} WITH (FORCE)".encode())


def missing() -> list[str]:
    """What this machine lacks for it."""
    lacking = [] if _binaries() else ["a PostgreSQL server (initdb)"]
    return lacking + ([] if os.geteuid() or _user() else ["a user that PostgreSQL may run as"])


@contextlib.contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[PostgresServer]:
    """Start one; everything of it ends with the context.

    Args:
        durable: Each write is on the disk before it is answered, as in earnest; off, it is quicker.
    """
    binaries, user = _binaries(), None if os.geteuid() else _user()
    assert binaries is not None
    # Neither one of pytest's folders nor root's own TMPDIR: they may only be entered by the user who runs the tests.
    folder = Path(tempfile.mkdtemp(prefix="gpu-pg-", dir="/var/tmp" if user else None))
    server = PostgresServer(free_port())
    try:
        (folder / "password").write_text(server.password)
        if user:
            for path in (folder, folder / "password"):
                shutil.chown(path, user)
        data = str(folder / "data")
        _run(user, folder, binaries / "initdb", "-D", data, "-U", "gpu", "-A", "scram-sha-256",
             "--pwfile", str(folder / "password"), "-E", "UTF8", "--no-sync")  # fmt: skip
        options = f"-p {server.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        options += "" if durable else " -c fsync=off"
        _run(user, folder, binaries / "pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield server
        finally:
            _run(user, folder, binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def for_prefect(server: PostgresServer) -> dict[str, str]:
    """The settings of a Prefect server that keeps everything there, in an empty database."""
    url = server.make("prefect").replace("postgresql:", "postgresql+asyncpg:")
    return {"PREFECT_API_DATABASE_CONNECTION_URL": url}


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def _user() -> str | None:
    return next((name for name in _USERS if _exists(name)), None)


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _run(user: str | None, cwd: Path, program: Path, *arguments: str) -> None:
    # The server inherits the output file, so a pipe would never come to its end.
    with (cwd / "setup.log").open("ab") as log:
        done = subprocess.run(
            [str(program), *arguments], user=user, cwd=cwd, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        )  # fmt: skip
    assert done.returncode == 0, (cwd / "setup.log").read_text()
