from __future__ import annotations

import ast
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from prefect.context import use_profile
from prefect.settings import Profile
from pydantic import ValidationError

from prefect_gpu.cli import checks
from prefect_gpu.cli.common import explain_settings
from prefect_gpu.lab.tryout import FOLDER
from prefect_gpu.runtime.telemetry import nvml_words
from prefect_gpu.settings import GpuSettings
from prefect_gpu.storage.engine import explain
from prefect_gpu.storage.history import History
from tests.cli.conftest import REPOSITORY, Cli, InProcess
from tests.runtime.telemetry.remedies import names_its_remedies

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
        names_its_remedies(told["findings"])
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


def test_a_file_in_place_of_the_folder_for_checkpoints(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = doctor(PREFECT_INTEGRATIONS_GPU_CHECKPOINTS=str(tmp_path / "file"))["checkpoints"]
    assert found["level"] == "error" and found["text"].endswith(f"{tmp_path}/file is a file.")
    assert "PREFECT_INTEGRATIONS_GPU_CHECKPOINTS=" in found["remedy"]
    assert doctor(PREFECT_INTEGRATIONS_GPU_CHECKPOINTS=str(tmp_path))["checkpoints"]["level"] == "ok"


@pytest.mark.parametrize(
    ("left", "level", "said"),
    [
        ({"f_bavail": 1 << 30}, "ok", "gpu"),
        ({"f_bavail": 50 << 20}, "warning", "its disk has 50 MiB left"),
        ({"f_bavail": 4096}, "error", "its disk is full"),
        ({"f_favail": 0}, "error", "its disk is full"),
        ({"f_flag": os.ST_RDONLY}, "error", "mounted read-only"),
    ],
)
def test_a_disk_that_cannot_be_written_is_named(
    left: dict[str, int], level: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that all is ready. What the kernel tells of the disk is made up here."""
    told = {"f_flag": 0, "f_frsize": 1, "f_bavail": 1 << 40, "f_files": 100, "f_favail": 50} | left
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**told))
    [found] = checks.check_state_folder(tmp_path / "gpu")
    assert (found.level, said in found.text) == (level, True), found
    if level != "ok":
        names_its_remedies([asdict(found)])


def test_folders_below_one_that_this_user_may_not_look_into(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "state").mkdir()
    as_root = os.getuid() == 0
    closed.chmod(0o000)
    if as_root:
        os.setresuid(65534, 65534, 0)
    try:
        [folder] = checks.check_state_folder(closed / "state")
        [history] = checks.check_history(f"sqlite:///{closed}/state/history.db")
        assert checks.check_spool(closed / "state") == []
    finally:
        if as_root:
            os.setresuid(0, 0, 0)
        closed.chmod(0o700)
    assert (folder.level, history.level) == ("error", "error")
    assert "this user may not write" in folder.text and "cannot be created" in history.text


def test_a_history_that_is_none(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("my notes, not a database " * 50)
    found = doctor(PREFECT_INTEGRATIONS_GPU_HISTORY_URL=f"sqlite:///{tmp_path}/notes.db")
    assert found["history"]["level"] == "error"
    assert "not a database" in found["history"]["text"]


def test_bad_settings_are_findings(doctor: Doctor) -> None:
    found = doctor(PREFECT_INTEGRATIONS_GPU_CHANNEL_PORT="70000")
    assert "channel_port='70000'" in found["settings"]["text"]


def test_a_profile_that_there_is_not_is_a_finding() -> None:
    [found] = checks.check_profile(GpuSettings(profile="adaptiv"))
    assert found.level == "error" and "profile='adaptiv'" in found.text
    assert checks.check_profile(GpuSettings(profile="fifo")) == []


@pytest.mark.parametrize(
    "value, said",
    [
        ('{"H100": ', "device_hour_price='{\"H100\": ' is not valid: input should be a valid number"),
        ({"H100": -1}, "device_hour_price['H100']=-1.0 is no price: give a number from 0 on, such as 2.5."),
    ],
)
def test_a_setting_of_several_types_is_named_as_it_is_set(value: object, said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        GpuSettings(device_hour_price=value)  # type: ignore[arg-type]
    [(wrong, remedy)] = explain_settings(raised.value)
    assert wrong.startswith(said) and "`unset PREFECT_INTEGRATIONS_GPU_DEVICE_HOUR_PRICE`" in remedy


def test_where_slurm_lends_nodes_nothing_is_said_of_devices_of_this_machine(doctor: Doctor, closed_port: int) -> None:
    """It is a login node, which has none."""
    here = {"PREFECT_API_URL": f"http://127.0.0.1:{closed_port}/api"}
    assert "devices" in doctor(**here)
    found = doctor(PREFECT_INTEGRATIONS_GPU_SLURM="gpus", **here)
    assert "machine" in found and not {"devices", "memory"} & found.keys()


def test_modules_to_preload_must_be_there(doctor: Doctor) -> None:
    found = doctor(PREFECT_INTEGRATIONS_GPU_PRELOAD="json,no_such_module")
    assert found["warm start"]["level"] == "warning"
    assert "export PREFECT_INTEGRATIONS_GPU_PRELOAD=json`" in found["warm start"]["remedy"]
    found = doctor(PREFECT_INTEGRATIONS_GPU_PRELOAD="json")
    assert "json" in found["warm start"]["text"]
    found = doctor(PREFECT_INTEGRATIONS_GPU_WARM_START="false")
    assert "Switched off" in found["warm start"]["text"]


@pytest.mark.parametrize(
    ("fastapi", "sqlalchemy", "remedies"),
    [("0.150.9", "2.0.58", 0), ("0.151.0", "2.0.58", 1), ("0.150.9", "2.1.0", 1), ("0.151.0", "2.1.9", 2)],
)
def test_libraries_that_are_too_new(
    monkeypatch: pytest.MonkeyPatch, fastapi: str, sqlalchemy: str, remedies: int
) -> None:
    versions = {"prefect": "3.8.8", "fastapi": fastapi, "sqlalchemy": sqlalchemy}
    monkeypatch.setattr(checks.metadata, "version", versions.__getitem__)
    found = checks.check_versions()
    assert [finding.level for finding in found] == ["ok"] + ["warning"] * remedies
    names_its_remedies(map(asdict, found))


def test_a_prefect_that_is_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"prefect": "3.9.0", "fastapi": "0.150.0", "sqlalchemy": "2.1.9"}
    monkeypatch.setattr(checks.metadata, "version", versions.__getitem__)
    warning = checks.check_versions()[1]
    assert "not tested with Prefect 3.9.0" in warning.text and "prefect>=3.8.8,<3.9" in (warning.remedy or "")


def test_no_finding_is_written_without_a_command() -> None:
    """Each place that makes one says in backquotes what to type; or takes the remedy from a table, which is checked."""
    made: dict[str, list[ast.expr]] = {}
    for file in (REPOSITORY / "prefect_gpu").rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Finding":
                level = call.args[0]
                if not (isinstance(level, ast.Constant) and level.value == "ok"):
                    made.setdefault(file.name, []).append(call)
    assert sum(map(len, made.values())) >= 25, "all of them were found"
    bare = [f"{file}:{call.lineno}" for file, calls in made.items() for call in calls if not _has_remedy(call)]
    assert bare == []


def _has_remedy(call: Any) -> bool:
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return True  # of explain_settings, whose type says that there is one
    if len(call.args) < 4:
        return False
    words = ast.unparse(call.args[3])
    return words.count("`") >= 2 or isinstance(call.args[3], (ast.Name, ast.Attribute, ast.IfExp))


def test_what_the_driver_may_answer_has_a_command_each() -> None:
    known = [*nvml_words.NO_DRIVER.values(), *nvml_words._DRIVER_FAILURES.values(), *nvml_words._GPU_FAILURES.values()]
    unknown = pynvml.NVMLError(999)
    names_its_remedies(
        {"level": "error", "text": text, "remedy": remedy}
        for text, remedy in (*known, nvml_words.driver_failure(unknown), nvml_words.gpu_failure(unknown))
    )


@pytest.mark.parametrize(
    "said",
    ["file is not a database", "database is locked", "disk is full", "unable to open", "must be owner of table runs",
     "password authentication failed", 'database "runs" does not exist', "permission denied", "timeout expired",
     "disk I/O error", "sorry, too many clients already", "remaining connection slots are reserved for roles with"],
)  # fmt: skip
@pytest.mark.parametrize("url", ["sqlite:////srv/our runs.db", "postgresql://me:geheim@db.example/runs"])
def test_what_a_database_may_answer_has_a_command_each(url: str, said: str) -> None:
    error = explain(url, RuntimeError(said))
    names_its_remedies([{"level": "error", "text": error.what, "remedy": error.remedy}])
    assert "geheim" not in str(error) and "***" not in error.remedy, "psql would take the stars for the password"
    assert ("max_connections" in error.remedy) == (
        url.startswith("postgresql") and ("clients" in said or "slots" in said)
    )


def test_after_a_restart_of_the_machine_what_was_tried_out_is_started_again(
    doctor: Doctor, closed_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / FOLDER).mkdir()
    found = doctor(PREFECT_API_URL=f"http://127.0.0.1:{closed_port}/api")["Prefect server"]
    assert found["remedy"] == "Start what was up in this folder: `prefect-gpu up`."


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
