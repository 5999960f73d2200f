from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from prefect.context import use_profile
from prefect.settings import Profile

from prefect_gpu.cli import checks
from prefect_gpu.storage.history import History
from tests.cli.conftest import Cli, InProcess

Found = dict[str, dict[str, Any]]
Doctor = Callable[..., Found]


@pytest.fixture
def doctor(run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """What the doctor finds, by subject, in this process: in another one, most of it would be to import Prefect."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)

    def find(**environ: str) -> Found:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        with use_profile(Profile(name="none", settings={}), include_current_context=False):
            done = run_cli("doctor", "--json", **environ)
        told = json.loads(done.stdout)
        assert (done.exit_code == 0) == told["ok"] == all(one["level"] != "error" for one in told["findings"])
        return {finding["subject"]: finding for finding in told["findings"]}

    return find


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        yield probe.getsockname()[1]


@pytest.mark.slow  # it is a program that has to import Prefect first
def test_a_server_that_is_not_there_is_an_error_with_a_remedy(cli: Cli, closed_port: int) -> None:
    done = cli("doctor", PREFECT_API_URL=f"http://me:geheim@127.0.0.1:{closed_port}/api")
    assert done.returncode == 1
    assert f"No Prefect server answers at http://me:***@127.0.0.1:{closed_port}/api" in done.stdout
    assert "prefect server start" in done.stdout
    assert "Not ready: 1 error" in done.stdout
    assert "geheim" not in done.stdout + done.stderr


def test_no_server_set_is_an_error_with_a_remedy(doctor: Doctor) -> None:
    found = doctor()["Prefect server"]
    assert found["level"] == "error" and "PREFECT_API_URL=" in found["remedy"]


@pytest.mark.slow
def test_what_is_found(cli: Cli, home: Path) -> None:
    History(f"sqlite:///{home / 'gpu' / 'history.db'}").close()
    done = cli("doctor", "--json")
    assert done.returncode == 1, "there is no server"
    found = {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert "Prefect " + metadata.version("prefect") in found["versions"]["text"]
    assert "not GPUs" in found["devices"]["text"]
    assert "core" in found["machine"]["text"]
    assert found["state folder"] == {
        "level": "ok", "subject": "state folder", "text": str(home / "gpu"), "remedy": "",
    }  # fmt: skip
    assert "0 finished runs" in found["history"]["text"]


def test_looking_creates_nothing(doctor: Doctor, state: Path) -> None:
    assert "created when a worker starts" in doctor()["state folder"]["text"]
    assert not state.exists()


def test_a_file_in_place_of_the_state_folder(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = doctor(PREFECT_INTEGRATIONS_GPU_STATE_DIR=str(tmp_path / "file" / "state"))
    assert found["state folder"]["level"] == "error"
    assert found["history"]["level"] == "error"


def test_a_history_that_is_none(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("my notes, not a database " * 50)
    found = doctor(PREFECT_INTEGRATIONS_GPU_HISTORY_URL=f"sqlite:///{tmp_path}/notes.db")
    assert found["history"]["level"] == "error"
    assert "not a database" in found["history"]["text"]


def test_bad_settings_are_findings(doctor: Doctor) -> None:
    found = doctor(PREFECT_INTEGRATIONS_GPU_CHANNEL_PORT="70000")
    assert "channel_port='70000'" in found["settings"]["text"]


def test_modules_to_preload_must_be_there(doctor: Doctor) -> None:
    found = doctor(PREFECT_INTEGRATIONS_GPU_PRELOAD="json,no_such_module")
    assert found["warm start"]["level"] == "warning"
    assert "no_such_module" in found["warm start"]["remedy"]
    found = doctor(PREFECT_INTEGRATIONS_GPU_PRELOAD="json")
    assert "json" in found["warm start"]["text"]
    found = doctor(PREFECT_INTEGRATIONS_GPU_WARM_START="false")
    assert "Switched off" in found["warm start"]["text"]


@pytest.mark.parametrize(("fastapi", "levels"), [("0.150.9", ["ok"]), ("0.151.0", ["ok", "warning"])])
def test_a_fastapi_that_is_too_new(monkeypatch: pytest.MonkeyPatch, fastapi: str, levels: list[str]) -> None:
    monkeypatch.setattr(checks.metadata, "version", {"prefect": "3.8.8", "fastapi": fastapi}.__getitem__)
    assert [finding.level for finding in checks.check_versions()] == levels


def test_a_prefect_that_is_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.metadata, "version", {"prefect": "3.9.0", "fastapi": "0.150.0"}.__getitem__)
    warning = checks.check_versions()[1]
    assert "not tested with Prefect 3.9.0" in warning.text and "prefect>=3.8.8,<3.9" in (warning.remedy or "")


class _Api(BaseHTTPRequestHandler):
    """Answers as the server of a test wants it: status and body by path."""

    answers: dict[str, tuple[int, Any]]

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        status, body = self.answers.get(self.path, (404, {"detail": "Not Found"}))
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep quiet."""


@pytest.fixture
def api() -> Iterator[tuple[str, dict[str, tuple[int, Any]]]]:
    """A server that is not Prefect's: for answers that Prefect's own would not give on demand."""
    answers: dict[str, tuple[int, Any]] = {}
    server = HTTPServer(("127.0.0.1", 0), type("Api", (_Api,), {"answers": answers}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/api", answers
    server.shutdown()
    thread.join()
    server.server_close()


Api = tuple[str, dict[str, tuple[int, Any]]]


def test_something_else_answers(doctor: Doctor, api: Api) -> None:
    found = doctor(PREFECT_API_URL=api[0])
    assert "does not behave like a Prefect server (HTTP 404)" in found["Prefect server"]["text"]


def test_credentials_refused(doctor: Doctor, api: Api) -> None:
    url, answers = api
    answers |= {"/api/hello": (401, {}), "/api/admin/version": (401, {})}
    assert "PREFECT_API_AUTH_STRING" in doctor(PREFECT_API_URL=url)["Prefect server"]["remedy"]


def test_an_older_server(doctor: Doctor, api: Api) -> None:
    url, answers = api
    answers |= {"/api/hello": (200, "👋"), "/api/admin/version": (200, "3.0.1"), "/api/work_pools/filter": (200, [])}
    found = doctor(PREFECT_API_URL=url)
    assert found["Prefect server"]["level"] == "warning"
    assert "3.0.1" in found["Prefect server"]["text"]
    assert "prefect work-pool create" in found["work pools"]["remedy"]
