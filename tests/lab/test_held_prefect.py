"""A command that is held imports what it needs, and is Prefect's own once it is let go."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from prefect_gpu.lab.sandbox import Process, Sandbox, wait_until

IMPORTED = "imported"


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """No server. The module `marking` says that it was imported."""
    (tmp_path / "marking.py").write_text(f"open({str(tmp_path / IMPORTED)!r}, 'w').close()")
    return Sandbox(tmp_path / "box", {"PYTHONPATH": str(tmp_path)})


def hold(box: Sandbox, *imports: str) -> Process:
    return box.hold(["--version"], "held", imports=imports)


def test_it_imports_waits_and_is_the_command(box: Sandbox, tmp_path: Path) -> None:
    held = hold(box, "no_such_module", "marking")
    wait_until(lambda: (tmp_path / IMPORTED).exists(), what="the import")
    assert held.popen.poll() is None and held.output == ""
    held.let_go()
    assert held.popen.wait(60) == 0, held.output
    assert held.output.strip() == version("prefect")
    held.terminate()


def test_if_nobody_is_left_to_let_it_go_it_ends(box: Sandbox, tmp_path: Path) -> None:
    command = (
        "import os, sys, time; from pathlib import Path; from prefect_gpu.lab.sandbox import Process\n"
        "arguments = [sys.executable, '-m', 'prefect_gpu.lab.held_prefect', 'marking', '--version']\n"
        f"held = Process(arguments, log=Path({str(tmp_path / 'log')!r}), env=os.environ, cwd=Path('.'), held=True)\n"
        "print(held.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    parent = box.start([sys.executable, "-c", command], "parent")
    parent.popen.wait(60)
    pid = int(parent.output)
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), what=f"the end of {pid}")
    assert (tmp_path / "log").read_text().strip() == "The process that started this one has ended."
    parent.terminate()


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_one_that_has_ended_can_be_let_go(box: Sandbox) -> None:
    held = hold(box, "marking")
    held.kill()
    held.let_go()
    assert held.terminate() != 0
