"""The folder on this machine's disk: nobody's is removed while he lives, and everybody's after that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_gpu.training.scratch import Scratch

_OTHER = """
from prefect_gpu.training.scratch import Scratch
scratch = Scratch("prefect-gpu-checkpoint-")
(scratch.empty() / "weights").write_text("1")
print(scratch.empty().parent, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a folder of its own, and that folder."""
    command = [sys.executable, "-c", _OTHER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_what_a_killed_process_left_is_removed_by_the_next(other: tuple[subprocess.Popen[str], Path]) -> None:
    process, folder = other
    ours = Scratch("prefect-gpu-checkpoint-")
    assert folder.is_dir(), "its process lives"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    another = Scratch("prefect-gpu-checkpoint-")
    assert not folder.exists()
    assert ours.empty() != another.empty(), "ours lives, too"


def test_one_that_ends_removes_its_own(other: tuple[subprocess.Popen[str], Path]) -> None:
    process, folder = other
    process.communicate("\n")
    assert not folder.exists()


def test_one_that_is_being_made_is_left_alone(tmp_path: Path) -> None:
    made = tmp_path / "prefect-gpu-checkpoint-abc"
    made.mkdir()
    (made / "making").touch()
    Scratch("prefect-gpu-checkpoint-")
    assert made.is_dir()


def test_it_is_empty_each_time() -> None:
    scratch = Scratch("prefect-gpu-checkpoint-")
    (scratch.empty() / "old").touch()
    assert list(scratch.empty().iterdir()) == []


def test_a_forked_child_that_lets_go_of_it_leaves_it_to_its_parent() -> None:
    """As the processes of a data loader do, which report nothing."""
    scratch = Scratch("prefect-gpu-checkpoint-")
    (scratch.empty() / "weights").write_text("1")
    child = os.fork()
    if child == 0:
        del scratch
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert list(scratch.empty().parent.iterdir()), "it can still be used"
