"""The demo, for real: a server, a worker, trainings, pictures, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from prefect_gpu.demo.common import DemoError
from prefect_gpu.demo.show import Show
from prefect_gpu.lab.sandbox import stop_on_signals, undisturbed
from prefect_gpu.runtime.drivers.supervisor import reset_signals
from prefect_gpu.storage.history import History

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A word in the environment of everything that a demo starts; at the end nothing that has it may be left."""
    word = f"demo-test-{os.getpid()}-{tmp_path.name}"
    yield word
    assert not left(word)


def left(word: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DEMO_TEST") == word:
                found.append(process)
        except psutil.Error:
            continue
    return found


def start(word: str, output: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "prefect_gpu.demo", "--output", str(output), *arguments]
    return subprocess.Popen(
        command, cwd=REPOSITORY, env={**os.environ, "DEMO_TEST": word}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        preexec_fn=reset_signals,  # whoever runs the tests in the background ignores Ctrl-C
    )  # fmt: skip


@pytest.mark.slow
def test_the_demo_shows_its_runs_draws_them_and_leaves_nothing_running(tmp_path: Path, mark: str) -> None:
    output = tmp_path / "out"
    demo = start(mark, output, "--trials", "4")
    said, _ = demo.communicate()
    assert demo.returncode == 0, said
    table = said.partition("Prepared")[2]
    assert table.count("virtual-") >= 6, said  # four trials and two trainings of the pipeline
    assert "promoted v000" in said and "best model" in said
    assert (output / "timeline.png").read_bytes().startswith(b"\x89PNG")
    page = (output / "timeline.html").read_text()
    assert "Plotly.newPlot" in page and "virtual-0" in page and "<script src" not in page
    assert json.loads((output / "sweep" / "best.json").read_text())["test_accuracy"] > 0.8
    with History(f"sqlite:///{output / 'history.db'}") as history:
        rows = history.rows()
    assert {row.outcome for row in rows} == {"completed"}
    assert sum(row.virtual for row in rows) == 6 and any((row.run_name or "").startswith("mlp ") for row in rows)
    assert not left(mark)


@pytest.mark.slow
def test_a_demo_that_is_stopped_leaves_nothing_running(tmp_path: Path, mark: str) -> None:
    demo = start(mark, tmp_path / "out", "--trials", "50")
    assert demo.stdout is not None
    for line in demo.stdout:
        if "starting a private Prefect server" in line:
            break
    demo.send_signal(signal.SIGTERM)
    said = demo.stdout.read()
    assert demo.wait() == 130, said
    assert "nothing is left running" in said and "Traceback" not in said
    assert not left(mark)


@pytest.mark.full
def test_a_worker_that_dies_is_named_with_the_end_of_its_log(tmp_path: Path, mark: str) -> None:
    demo = start(mark, tmp_path / "out", "--trials", "50")
    assert demo.stdout is not None
    for line in demo.stdout:
        if " trains " in line:
            break
    for process in left(mark):
        if "worker" in process.cmdline():
            process.kill()
    said = demo.stdout.read()
    assert demo.wait() == 1, said
    assert "The worker ended unexpectedly" in said and "Traceback" not in said
    (log,) = (tmp_path / "out" / "logs").glob("*worker*.log")
    last = [line for line in log.read_text().splitlines() if line.strip()][-1]
    assert last[:30] in said, "the end of its log is shown"


@pytest.mark.parametrize("given", [signal.SIG_IGN, signal.SIG_DFL], ids=["nohup", "terminal"])
def test_under_nohup_a_demo_outlives_its_terminal(given: signal.Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.signal(number, given) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        stop_on_signals()
        assert (signal.getsignal(signal.SIGHUP) == signal.SIG_IGN) is (given == signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) != given
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_benchmark_that_is_stopped_says_so_in_a_line(number: signal.Signals) -> None:
    """It was a traceback of as many lines as it was deep in what it had begun."""
    code = (
        f"import signal; from prefect_gpu.lab import sandbox; sandbox.stop_on_signals(); signal.raise_signal({number})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode in (130, -signal.SIGINT) and ended.stderr == "\nStopped.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_disturbs_a_demo_that_stops_what_it_has_started(number: signal.Signals) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {one: signal.signal(one, signal.default_int_handler) for one in numbers}
    try:
        with undisturbed():
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def test_a_demo_that_is_kept_without_a_terminal_stays_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looks after its processes is called, and ends it here."""
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it where it was closed

    class Watched:
        ui_url = "http://127.0.0.1"
        looked = 0

        def check(self) -> None:
            self.looked += 1
            raise KeyboardInterrupt

    watched = Watched()
    Show(tmp_path, trials=1, keep=True)._wait_for_user(watched)  # type: ignore[arg-type]
    assert watched.looked == 1


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DemoError, match="files that are not the demo's"):
        Show(tmp_path, trials=1, keep=False).run()
    assert (tmp_path / "thesis.tex").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(DemoError, match="is no folder"):
        Show(tmp_path / "out", trials=1, keep=False).run()
    with pytest.raises(DemoError, match=r"out/below cannot be used \(Not a directory\)"):
        Show(tmp_path / "out" / "below", trials=1, keep=False).run()
