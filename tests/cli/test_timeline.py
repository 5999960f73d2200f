from __future__ import annotations

from pathlib import Path

import pytest

from prefect_gpu.storage.history import History
from tests.cli.conftest import InProcess
from tests.reporting.rows import finished


@pytest.fixture
def filled(state: Path) -> None:
    with History(f"sqlite:///{state / 'history.db'}") as history:
        history.record(finished("a", 0))
        history.record(finished("b", 7))
        history.record(finished("light", 8, on=()))


def test_picture_and_page(run_cli: InProcess, filled: None, tmp_path: Path) -> None:
    png, html = tmp_path / "t.png", tmp_path / "t.html"
    done = run_cli("timeline", "--png", str(png), "--html", str(html))
    assert done.exit_code == 0
    assert done.stdout == f"Wrote 2 runs to {png} and {html}.\n"
    assert png.exists() and html.exists()


def test_chosen_runs(run_cli: InProcess, filled: None, tmp_path: Path) -> None:
    png = str(tmp_path / "t.png")
    assert "Wrote 3 runs" in run_cli("timeline", "--png", png, "--all").stdout
    assert "Wrote 1 run to" in run_cli("timeline", "--png", png, "--all", "--limit", "1").stdout
    assert "No run of this kind" in run_cli("timeline", "--png", png, "--hours", "1").stderr
    assert "No run of this kind" in run_cli("timeline", "--png", png, "--flow", "nothing").stderr


def test_no_history_yet(run_cli: InProcess, state: Path, tmp_path: Path) -> None:
    done = run_cli("timeline", "--png", str(tmp_path / "t.png"))
    assert done.exit_code == 1
    assert "No run has finished yet" in done.stderr
    assert not state.exists() and not (tmp_path / "t.png").exists()


def test_what_cannot_be_done_is_said(run_cli: InProcess, filled: None) -> None:
    done = run_cli("timeline")
    assert done.exit_code == 2 and "--png FILE" in done.stderr
    done = run_cli("timeline", "--png", "/no/such/folder/t.png")
    assert done.exit_code == 1 and "/no/such/folder/t.png cannot be written" in done.stderr
    for option in ("--png", "--html"):
        done = run_cli("timeline", option, "/dev/full")
        assert done.exit_code == 1 and "/dev/full cannot be written: No space left on device" in done.stderr
