"""A real PostgreSQL server for the tests that want one: private, in a temporary folder, on a free port."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import require


def _server_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


@dataclass(frozen=True)
class PostgresServer:
    port: int
    password: str = "s3cret/pass"

    def url(self, database: str = "postgres", *, password: str = "s3cret%2Fpass") -> str:
        return f"postgresql://gpu:{password}@127.0.0.1:{self.port}/{database}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    binaries = _server_binaries()
    require("a PostgreSQL server (initdb)", binaries)
    assert binaries is not None
    user = None
    if os.geteuid() == 0:  # the server refuses to run as root
        user = next((name for name in ("postgres", "nobody") if _user_exists(name)), None)
        require("a user that PostgreSQL may run as", user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Not tmp_path: pytest's folders may only be entered by the user who runs the tests.
    folder = Path(tempfile.mkdtemp(prefix="gpu-pg-"))
    server = PostgresServer(port)
    try:
        (folder / "password").write_text(server.password)
        if user:
            for path in (folder, folder / "password"):
                shutil.chown(path, user)
        data = str(folder / "data")
        _run(user, folder, binaries / "initdb", "-D", data, "-U", "gpu", "-A", "scram-sha-256",
             "--pwfile", str(folder / "password"), "-E", "UTF8", "--no-sync")  # fmt: skip
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        _run(user, folder, binaries / "pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield server
        finally:
            _run(user, folder, binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user_exists(name: str) -> bool:
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


@pytest.fixture(params=["sqlite", "postgresql"])
def history_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A URL of an empty database, once of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'new' / 'folder' / 'history.db'}"
        return
    import psycopg

    server: PostgresServer = request.getfixturevalue("postgres")
    admin = psycopg.connect(server.url(), autocommit=True)
    name = "test_" + os.urandom(6).hex()
    admin.execute(f"CREATE DATABASE {name}")
    yield server.url(name)
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    admin.close()
