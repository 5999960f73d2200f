"""The door of the command: whatever its arguments, it does as it says or ends with a sentence; never a traceback."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from prefect_gpu.cli import app
from prefect_gpu.storage.history import History
from tests.doors.nonsense import door, numbers, texts
from tests.storage.test_history import row

# Options of the commands that need neither a server nor long; papers, and policies, train for minutes.
OPTIONS = {
    "history": "--limit --flow --outcome --csv --json --contention",
    "estimate": "-p --gpus --category --new --runs --json --plot",
    "timeline": "--png --html --limit --hours --flow --all",
    "what-if": "--profile --gpus --knowledge --present --last --json",
    "register": "--check",
    "simulate": "--trace --format --profile --knowledge --error --seed --world --sharing --restart-cost --limit --json",
}
words = (
    texts
    | numbers.map(str)
    | st.sampled_from(
        [
            "train",
            "a=1",
            "a=",
            "=1",
            "a.b=[1, {}]",
            "fifo",
            "adaptive",
            "exact",
            "+2",
            "-9",
            "completed",
            "1",
            "--json",
            "--",
        ]
    )
)


@st.composite
def arguments(draw: st.DrawFn) -> list[str]:
    """A command with some of its options, each with some value."""
    command = draw(st.sampled_from(sorted(OPTIONS)))
    chosen = draw(st.lists(st.sampled_from(OPTIONS[command].split()), max_size=3))
    line = [command, *draw(st.lists(words, max_size=1))]
    for option in chosen:
        line += [option, *draw(st.lists(words, max_size=1))]
    if command == "register":
        line.append("--check")
    if command == "simulate":
        line += ["--nodes", draw(words | st.just("2")), "--gpus-per-node", draw(words | st.just("2"))]
        line += ["--trace", "trace.csv"]
    return line


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a history of one run and a small trace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_INTEGRATIONS_GPU_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    with History(f"sqlite:///{tmp_path / 'state' / 'history.db'}") as history:
        history.record(row())
    (tmp_path / "trace.csv").write_text("job_id,submit_s,num_gpu,duration_s\na,0,1,10\nb,5,2,20\n")
    return tmp_path


@door
@example(["simulate", "--trace", "trace.csv", "--nodes", "9" * 30, "--gpus-per-node", "2"])
@example(["simulate", "--trace", "trace.csv", "--nodes", "2", "--gpus-per-node", "9" * 30])
@example(["history", "--limit", "9" * 30])
@example(["timeline", "--limit", "9" * 30, "--hours", "1e308"])
@example(["what-if", "--gpus", "+" + "9" * 30, "--last", "9" * 30])
@given(arguments())
def test_arguments(place: Path, line: list[str]) -> None:
    done = CliRunner().invoke(app, line)
    assert done.exception is None or isinstance(done.exception, SystemExit), line
    assert done.exit_code in (0, 1, 2)
    assert done.exit_code == 0 or done.output.strip()
    for made in place.iterdir():
        if made.name not in ("trace.csv", "state"):
            with contextlib.suppress(OSError):
                made.unlink()
