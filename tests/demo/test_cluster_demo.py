"""The cluster demo, for real: three nodes, one of them lost, every run completed, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_gpu.demo.board import Seen
from prefect_gpu.demo.cluster import show
from prefect_gpu.demo.cluster.outage import LostNode
from prefect_gpu.demo.common import DemoError
from prefect_gpu.lab import checkout
from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.runtime.drivers.supervisor import reset_signals
from prefect_gpu.storage.history import History

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("cluster demo")  # it has Engines of its own
PREFIX, SUBNET = "pgd", "10.81.0"  # not those of a demo that somebody runs meanwhile


@pytest.fixture
def clean() -> Iterator[None]:
    """Nothing of the lab may be left: neither processes, nor networks, nor files."""
    yield
    assert left() == []


def left() -> list[str]:
    found = [line for line in told("ip", "-o", "link") if f" {PREFIX}" in line]
    found += [line for line in told("ip", "netns") if line.startswith(PREFIX)]
    found += [line for line in told("iptables", "-S") if f" {PREFIX}br" in line]
    found += [line for line in told("ps", "-eo", "pid,args") if f"/prefect-gpu-{PREFIX}/" in line]
    return found + [str(path) for path in [Path(f"/var/tmp/prefect-gpu-{PREFIX}")] if path.exists()]


def told(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def start(output: Path, *arguments: str) -> subprocess.Popen[str]:
    own = ["--output", str(output), "--prefix", PREFIX, "--subnet", SUBNET]
    return subprocess.Popen(
        [sys.executable, "-m", "prefect_gpu.demo.cluster", *own, *arguments], cwd=REPOSITORY, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "140"}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
        preexec_fn=reset_signals,  # whoever runs the tests in the background ignores Ctrl-C
    )  # fmt: skip


@pytest.mark.needs("engines")
@pytest.mark.timeout(900)
def test_every_run_completes_though_a_node_is_lost(tmp_path: Path, clean: None) -> None:
    output = tmp_path / "out"
    demo = start(output, "--trials", "1")
    said, _ = demo.communicate()
    assert demo.returncode == 0, said
    table = said.partition("Carried on from")[2]
    assert table.count("completed") == 2 and "step " in table, said
    assert "as if its power were cut" in said and "best model" in said
    assert (output / "timeline.png").read_bytes().startswith(b"\x89PNG")
    page = (output / "timeline.html").read_text()
    assert f"{PREFIX}1: virtual-0" in page and "is down" in page
    with History(f"sqlite:///{output / 'history.db'}") as history:
        rows = history.rows()
    gang = sorted((row for row in rows if row.flow_name == "train-side-by-side"), key=lambda row: row.attempt)
    assert len(gang) > 1 and gang[-1].outcome == "completed" and gang[-1].steps_done == 80


@pytest.mark.needs("engines")
@pytest.mark.timeout(600)
def test_a_demo_that_is_stopped_leaves_nothing_and_one_that_is_killed_is_tidied_by_the_next(
    tmp_path: Path, clean: None
) -> None:
    killed = start(tmp_path / "out")
    until(killed, "starting a private Prefect server")
    killed.kill()
    killed.wait()
    assert left()
    demo = start(tmp_path / "out")
    until(demo, "starting a private Prefect server")
    demo.send_signal(signal.SIGINT)
    assert demo.stdout is not None
    said = demo.stdout.read()
    assert demo.wait() == 130, said
    assert "nothing is left running" in said and "Traceback" not in said


def until(demo: subprocess.Popen[str], words: str) -> None:
    assert demo.stdout is not None
    seen = []
    for line in demo.stdout:
        seen.append(line)
        if words in line:
            return
    pytest.fail(f"it never said {words!r}:\n{''.join(seen)}")


def test_all_that_is_missing_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = ["the program dockerd", "root's rights", "the program debootstrap"]
    monkeypatch.setattr(checkout, "missing", lambda: lacking)
    with pytest.raises(DemoError) as raised:
        show.check_machine()
    said = str(raised.value)
    assert "the program dockerd, root's rights and the program debootstrap" in said
    assert "apt-get install docker.io debootstrap iproute2 iptables" in said and "sudo make cluster-demo" in said


def test_the_node_that_is_lost_has_a_part_of_the_gang_and_is_not_the_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(Lab, "stop_engine", lambda self, node: stopped.append(node.name))
    lost = LostNode(Lab(tmp_path, nodes=3, prefix="x"), "gang")
    places = {"gang": (("x1", ("a", "b")), ("x2", ("c",))), "trial": (("x3", ("d",)),), "late": (("x2", ("e",)),)}

    def look(percent: float, saved: set[str]) -> str:
        runs = [
            Seen("gang", "the gang", "f", "Training", False, percent=percent),
            Seen("late", "late", "f", "Running", False),
        ]
        return lost.look(runs, places, saved)

    assert look(10, {"trial"}) == "", "the gang has no checkpoint yet"
    assert look(10, {"gang"}) == "", "another run of its node has none"
    assert "x2 is stopped" in look(30, {"gang"}), "it is late"
    assert stopped == ["x2"] and lost.is_away and lost.lost == {"gang", "late"} and lost.begun == {"gang"}
