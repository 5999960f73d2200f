"""Two ways to run the command.

`cli` runs it as a user would: in a process of its own, with a Prefect home of its own and no server set.
`run_cli` runs it in this process, which is quick, with a state folder of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prefect_gpu.cli import app
from prefect_gpu.scheduling import profiles
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.order.orders import Fifo
from tests.storage.conftest import history_url  # noqa: F401

REPOSITORY = Path(__file__).parents[2]
InProcess = Callable[..., Result]
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "prefect"


@pytest.fixture
def cli(tmp_path: Path, home: Path) -> Cli:
    """Call it with arguments, and environment variables as keywords; a traceback fails the test."""

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        # Keep the machine's own settings and GPUs out of it.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "CUDA_"))}
        env |= {"PREFECT_HOME": str(home), "PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": ""}
        env |= {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"} | environ
        done = subprocess.run(
            [sys.executable, "-c", "from prefect_gpu.cli import app; app()", *arguments],
            env=env, cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def run_cli(state: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Call it with arguments, and environment variables as keywords; an unforeseen exception fails the test."""
    for name in os.environ:
        if name.startswith(("PREFECT_INTEGRATIONS_GPU_", "CUDA_")):
            monkeypatch.delenv(name)

    def run(*arguments: str, **environ: str) -> Result:
        env = {"PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(state), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
        result = CliRunner().invoke(app, arguments, env=env | environ)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


class Breaks(Fifo):
    """An order with a bug."""

    def key(self, job: Job, *_: object) -> tuple[object, ...]:
        """See the class."""
        raise KeyError("no such column")


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> str:
    """A profile of this name, and what a command says when it fails."""
    monkeypatch.setitem(profiles._OURS, "breaks", lambda: profiles.Profile("breaks", Breaks()))
    return f"Error: profile='breaks' cannot decide (KeyError: 'no such column', in key, {__file__}:"
