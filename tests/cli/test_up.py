"""``prefect-gpu up`` and ``down``, with a real server and worker in a folder of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.lab.dotenv import forget, put
from prefect_gpu.lab.sandbox import processes_of
from prefect_gpu.lab.tryout import FOLDER, Running, TryOut
from tests.cli.conftest import REPOSITORY, InProcess

SETTINGS = {"PREFECT_API_URL": "http://127.0.0.1:1/api", "OTHER": "2"}


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.just("\n"), max_size=60))
def test_what_stood_in_env_stands_there_afterwards(tmp_path_factory: pytest.TempPathFactory, before: str) -> None:
    file = tmp_path_factory.mktemp("env") / ".env"
    if before:
        file.write_text(before)
    put(file, SETTINGS)
    put(file, SETTINGS)
    assert file.read_text().count("PREFECT_API_URL=") == 1 + before.count("PREFECT_API_URL=")
    forget(file)
    after = file.read_text() if file.exists() else ""
    assert after.rstrip("\n") == before.rstrip("\n") or (not before.strip() and not file.exists())
    forget(file)
    assert (file.read_text() if file.exists() else "") == after


def test_a_full_disk_takes_nothing_from_env(tmp_path: Path) -> None:
    """The kernel refuses to write more than a few bytes to a file, as it does on a full disk."""
    file = tmp_path / ".env"
    file.write_text("SECRET=1\n" * 20)
    file.chmod(0o600)
    script = (
        "import resource, signal, sys; from pathlib import Path; from prefect_gpu.lab.dotenv import put\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
        "put(Path(sys.argv[1]), {'PREFECT_API_URL': 'http://127.0.0.1:1/api'})"
    )
    done = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=False)
    assert "OSError" in done.stderr
    assert file.read_text() == "SECRET=1\n" * 20 and list(tmp_path.iterdir()) == [file]
    put(file, SETTINGS)
    assert file.stat().st_mode & 0o777 == 0o600


def test_env_that_is_not_utf8_stays_as_it_is_to_the_byte(tmp_path: Path) -> None:
    file, real = tmp_path / ".env", tmp_path / "elsewhere"
    real.write_bytes(b"NAME=J\xf6rg\r\nMORE=2\r\n")
    file.symlink_to(real)
    put(file, SETTINGS)
    put(file, SETTINGS)
    assert real.read_bytes().startswith(b"NAME=J\xf6rg\r\nMORE=2\r\n# >>>") and file.is_symlink()
    forget(file)
    assert real.read_bytes() == b"NAME=J\xf6rg\r\nMORE=2\r\n"


def test_what_stands_below_our_lines_stays_without_the_last_of_them(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    put(file, SETTINGS)
    file.write_text(file.read_text().replace("# <<<\n", "MINE=1\n"))
    forget(file)
    assert file.read_text() == "OTHER=2\nMINE=1\n"


def test_env_that_cannot_be_written_is_named_once_all_has_ended(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").mkdir()
    done = run_cli("down")
    assert done.exit_code == 1 and f"{tmp_path}/.env cannot be written: Is a directory" in done.output


def theirs(folder: Path) -> list[psutil.Process]:
    return list(processes_of(folder / FOLDER / "home"))


@pytest.mark.slow
def test_a_first_hour(tmp_path: Path) -> None:
    """Init, up, a training in the pool, up again, down; and what was there before is there afterwards."""
    (tmp_path / ".env").write_text("MINE=1\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "CUDA_"))}
    clean |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    clean |= {"HOME": str(tmp_path / "home"), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}

    def run(*command: str, code: int = 0) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr if code else done.stdout

    try:
        assert "train.py, prefect.yaml" in run("prefect-gpu", "init")
        run("prefect-gpu", "up", "--virtual-devices", "1")
        env = (tmp_path / ".env").read_text()
        assert env.startswith("MINE=1\n") and "PREFECT_API_URL=http://127.0.0.1:" in env
        assert "loss 0." in run(sys.executable, "-c", "import train; print('loss', train.train(epochs=20))")
        [shown] = json.loads(run("prefect-gpu", "status", "--json"))
        assert [run["outcome"] for run in shown["runs"]] == ["completed"] and len(shown["devices"]) == 1
        processes = {process.pid for process in theirs(tmp_path)}
        assert "Up: the pool 'gpus'" in run("prefect-gpu", "up"), "once more"
        assert {process.pid for process in theirs(tmp_path)} == processes, "nothing is started twice"
        assert "the pool gpus is up here" in run("prefect-gpu", "up", "--pool", "other", code=2)
        assert run("prefect-gpu", "down").startswith("Down.")
        assert theirs(tmp_path) == [] and (tmp_path / ".env").read_text() == "MINE=1\n"
        assert (tmp_path / FOLDER / "home" / "prefect.db").exists(), "its runs stay"
        assert "removed" in run("prefect-gpu", "down", "--delete") and not (tmp_path / FOLDER).exists()
    finally:
        for process in theirs(tmp_path):
            process.kill()


def test_nothing_to_end_is_said_and_a_damaged_note_is_none(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_cli("down")
    assert done.exit_code == 0 and "Nothing was up in this folder." in done.output
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "up.json").write_text("[" * 100)
    assert run_cli("down").exit_code == 0


class Pretended:
    """In place of the sandbox; nothing is started."""

    api_url, ui_url, env = "http://127.0.0.1:1/api", "http://127.0.0.1:1", {"PREFECT_INTEGRATIONS_GPU_STATE_DIR": "/s"}
    closed = 0

    def __init__(self, folder: Path, *_: object) -> None:
        self.folder = folder

    def start_server(self) -> None: ...

    def start_worker(self, *_: str, **__: str) -> None: ...

    def close(self) -> None:
        Pretended.closed += 1


def test_the_worker_is_told_the_settings_of_the_environment(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {}

    class Told(Pretended):
        def __init__(self, folder: Path, settings: dict[str, str], *_: object) -> None:
            super().__init__(folder)
            told.update(settings)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("prefect_gpu.lab.tryout.Sandbox", Told)
    monkeypatch.setattr("prefect_gpu.lab.tryout.httpx.get", lambda *_, **__: httpx.Response(200, json={"type": "gpu"}))
    names = ("PROFILE", "VIRTUAL_DEVICES", "HISTORY_URL", "CLUSTER", "CHECKPOINTS")
    ours = {f"PREFECT_INTEGRATIONS_GPU_{name}": "sjf" for name in names}
    ours["PREFECT_INTEGRATIONS_GPU_CHECKPOINTS"] = "block:checkpoint-storage/team"  # as the cluster, another server's
    done = run_cli("up", "--virtual-devices", "3", **ours)
    assert done.exit_code == 0, done.output
    assert told == {"PREFECT_INTEGRATIONS_GPU_PROFILE": "sjf", "PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES": "3"}


def test_a_second_ctrl_c_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Pretended):
        def start_server(self) -> None:
            raise KeyboardInterrupt

        def close(self) -> None:
            signal.raise_signal(signal.SIGINT)
            super().close()

    monkeypatch.setattr("prefect_gpu.lab.tryout.Sandbox", Stopped)
    before = Pretended.closed
    with pytest.raises(KeyboardInterrupt):
        TryOut(tmp_path).start("gpus")
    assert Pretended.closed == before + 1


def test_a_server_that_is_too_busy_to_count_runs_is_ended_all_the_same(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TryOut, "running", lambda _: Running("http://here/api", "http://here", "/state", "gpus"))
    monkeypatch.setattr(TryOut, "end", lambda *_, **__: 2)
    busy = httpx.Response(503, json={"exception_message": "Service Unavailable"})
    monkeypatch.setattr("prefect_gpu.lab.tryout.httpx.post", lambda *_, **__: busy)
    done = run_cli("down")
    assert done.exit_code == 0 and done.output == "Down.\n"


def test_what_cannot_be_deleted_is_not_said_to_be(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "disk" / "home").mkdir(parents=True)
    (tmp_path / FOLDER).symlink_to(tmp_path / "disk")
    with monkeypatch.context() as refused:
        refused.setattr("prefect_gpu.lab.tryout.shutil.rmtree", lambda *_, **__: None)
        done = run_cli("down", "--delete")
    assert done.exit_code == 1 and f"sudo rm -r {tmp_path / FOLDER}" in done.output
    assert "is removed" in run_cli("down", "--delete").output
    assert list(tmp_path.iterdir()) == [], "nor what a link led to"


def test_no_second_server_is_started_beside_one_that_does_not_answer(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("prefect_gpu.lab.tryout.Sandbox", Pretended)
    monkeypatch.setattr("prefect_gpu.lab.tryout.httpx.get", lambda *_, **__: httpx.Response(200, json={"type": "gpu"}))
    silent = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", "server", "start"],
        env={"PREFECT_HOME": str(tmp_path / FOLDER / "home")}, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert silent.stdout is not None and silent.stdout.readline()
        done = run_cli("up")
    finally:
        silent.kill()
        silent.communicate()
    assert done.exit_code == 1 and "end it: prefect-gpu down" in done.output
    assert not (tmp_path / ".env").exists()


def test_without_room_for_its_note_nothing_is_left_running(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("prefect_gpu.lab.tryout.Sandbox", Pretended)
    monkeypatch.setattr("prefect_gpu.lab.tryout.httpx.get", lambda *_, **__: httpx.Response(200, json={"type": "gpu"}))
    (tmp_path / FOLDER / "up.json").mkdir(parents=True)
    before = Pretended.closed
    done = run_cli("up")
    assert done.exit_code == 1 and "cannot be used: Is a directory" in done.output
    assert Pretended.closed == before + 1


def test_a_server_that_is_busy_is_no_traceback_and_the_pool_is_asked_for_by_its_whole_name(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def busy(url: str, **_: object) -> httpx.Response:
        asked.append(url)
        raise httpx.ReadTimeout("timed out")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("prefect_gpu.lab.tryout.Sandbox", Pretended)
    monkeypatch.setattr("prefect_gpu.lab.tryout.httpx.get", busy)
    done = run_cli("up", "--pool", "what?")
    assert done.exit_code == 1 and "did not answer: ReadTimeout('timed out')" in done.output
    assert asked == ["http://127.0.0.1:1/api/work_pools/what%3F"]


def test_a_pool_of_another_type_gets_no_worker(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("prefect_gpu.lab.tryout.Sandbox", Pretended)
    monkeypatch.setattr(
        "prefect_gpu.lab.tryout.httpx.get", lambda *_, **__: httpx.Response(200, json={"type": "process"})
    )
    before = Pretended.closed
    done = run_cli("up", "--pool", "plain")
    assert done.exit_code == 1 and "--pool plain: there is a pool of this name" in done.output
    assert "'process'" in done.output and Pretended.closed == before + 1 and not (tmp_path / ".env").exists()


@contextlib.contextmanager
def engine_of(bridge: dict[str, object] | None) -> Iterator[str]:
    """The address of an Engine that knows one network, or none: to start a real one so takes root's rights."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = {"ApiVersion": "1.45"} if self.path.endswith("/version") else bridge
            body = json.dumps({"message": "network bridge not found"} if told is None else told).encode()
            self.send_response(404 if told is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("bridge", "said"),
    [
        (None, "has no network `bridge`"),
        ({"Id": "1", "Options": {}}, "has no network `bridge`"),
        ({"Id": "1", "Options": {"com.docker.network.bridge.name": "elsewhere0"}}, "DOCKER_HOST"),
    ],
)
def test_an_engine_without_a_bridge_of_this_machine_is_not_said_to_be_silent(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bridge: dict[str, object] | None, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with engine_of(bridge) as host:
        done = run_cli("up", "--kind", "docker", DOCKER_HOST=host)
    assert done.exit_code == 1 and said in done.output and "No Docker Engine" not in done.output


def test_without_an_engine_containers_are_refused_and_nothing_is_left(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_cli("up", "--kind", "docker", DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert done.exit_code == 1 and "sudo systemctl start docker" in done.output
    assert theirs(tmp_path) == [] and not (tmp_path / ".env").exists()


def test_what_is_up_is_of_one_kind(run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TryOut, "running", lambda _: Running("http://here/api", "http://here", "/state", "gpus"))
    done = run_cli("up", "--kind", "docker")
    assert done.exit_code == 2 and "process is up here. End it first: prefect-gpu down" in done.output


def test_other_devices_than_those_that_are_up_are_refused(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = Running("http://here/api", "http://here", "/state", "gpus", virtual_devices="2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TryOut, "running", lambda _: up)
    monkeypatch.setattr(TryOut, "has_worker", lambda _: True)
    done = run_cli("up", "--virtual-devices", "4")
    assert done.exit_code == 2 and "--virtual-devices 4: what is up here was not started with that." in done.output
    assert "Up: the pool 'gpus' has a worker." in run_cli("up", "--virtual-devices", "2").output


def test_a_server_whose_worker_is_gone_is_not_said_to_be_up(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TryOut, "running", lambda _: Running("http://here/api", "http://here", "/state", "gpus"))
    done = run_cli("up")
    assert done.exit_code == 1 and "the worker of the pool gpus is gone" in done.output
    assert not (tmp_path / ".env").exists()


def test_a_worker_that_has_lost_its_server_is_named(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("prefect_gpu.lab.tryout.Sandbox", Pretended)
    here = {**os.environ, "PREFECT_HOME": str(tmp_path / FOLDER / "home")}
    worker = subprocess.Popen([sys.executable, "-c", "input()", "worker", "start"], stdin=subprocess.PIPE, env=here)
    try:
        done = run_cli("up")
    finally:
        worker.communicate()
    assert done.exit_code == 1 and "its worker still runs" in done.output and "prefect-gpu down" in done.output
