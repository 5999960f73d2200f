"""Locks on pools and devices, between real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_gpu.runtime.locks import Locks
from prefect_gpu.scheduling.model.cluster import Device
from tests.components import require

_HOLD = """
import os, sys, tempfile
from pathlib import Path
from prefect_gpu.runtime.locks import Locks
from prefect_gpu.scheduling.model.cluster import Device
if len(sys.argv) > 2:
    os.umask(0o077)
    os.setuid(int(sys.argv[2]))
locks = Locks(Path(sys.argv[1]))
claimed = locks.lock_pool("pool"), len(locks.lock_devices([Device("GPU-1", "H200", 1)])[0])
print(*claimed, flush=True)
sys.stdin.read()
"""
GPU = Device("GPU-1", "H200", 1)
VIRTUAL = Device("virtual-0", "virtual", 1, virtual=True)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A temporary folder that stands for the machine's own: the locks of real workers are not touched."""
    pretend(tmp_path, monkeypatch)
    yield
    tempfile.tempdir = None


def pretend(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``folder/tmp`` be the machine's temporary folder."""
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)


def hold(state_dir: Path, *arguments: str) -> subprocess.Popen[str]:
    """Another process that holds what it can get; its first line says what that is."""
    return subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(state_dir), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    """What the process got: whether the pool, and how many devices."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    locks = Locks(tmp_path)
    with hold(tmp_path) as holder:
        assert first_line(holder) == "True 1"
        assert not locks.lock_pool("pool") and locks.lock_devices([GPU]) == ([], [GPU])
        holder.kill()
        holder.wait()
        assert locks.lock_pool("pool") and locks.lock_devices([GPU]) == ([GPU], [])
    with hold(tmp_path) as late:
        assert first_line(late) == "False 0"
        late.kill()
    locks.release()


def test_gpus_are_locked_for_the_machine_and_virtual_devices_for_the_state_folder(tmp_path: Path) -> None:
    one, two = Locks(tmp_path / "one"), Locks(tmp_path / "two")
    assert one.lock_devices([GPU, VIRTUAL]) == ([GPU, VIRTUAL], [])
    assert two.lock_devices([GPU, VIRTUAL]) == ([VIRTUAL], [GPU])
    one.release()
    assert two.lock_devices([GPU]) == ([GPU], [])
    two.release()


def test_pools_are_locked_each_for_itself(tmp_path: Path) -> None:
    one, two = Locks(tmp_path), Locks(tmp_path)
    assert one.lock_pool("pool") and two.lock_pool("other") and not two.lock_pool("pool")
    one.release()
    two.release()


def test_to_claim_twice_is_to_claim_once(tmp_path: Path) -> None:
    locks = Locks(tmp_path)
    assert locks.lock_pool("pool") and locks.lock_pool("pool")
    locks.release()
    other = Locks(tmp_path)
    assert other.lock_pool("pool")
    other.release()


def test_odd_names_make_no_odd_files(tmp_path: Path) -> None:
    locks = Locks(tmp_path)
    assert locks.lock_pool("../../a pool/ümlaut")
    assert [path.parent.name for path in tmp_path.rglob("*.lock")] == ["workers"]
    locks.release()


def test_workers_of_two_users_respect_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a private umask, and in a folder where the kernel lets nobody open for writing what others have made."""
    require("root's rights", os.getuid() == 0)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        pretend(folder, monkeypatch)
        mine = Locks(folder / "mine")
        mine.lock_devices([Device("GPU-0", "H200", 1)])  # makes the folder for all
        with hold(folder / "theirs", "65534") as holder:
            assert first_line(holder) == "True 1"
            assert mine.lock_devices([GPU]) == ([], [GPU])
            holder.kill()
            holder.wait()
            assert mine.lock_devices([GPU]) == ([GPU], [])
        with hold(folder / "theirs", "65534") as late:
            assert first_line(late) == "True 0"
            late.kill()
        mine.release()


def test_only_the_very_process_that_holds_a_pool_is_killed(tmp_path: Path) -> None:
    locks, file = Locks(tmp_path), tmp_path / "workers" / "pool.lock"
    with hold(tmp_path) as holder:
        assert first_line(holder) == "True 1"
        noted = json.loads(file.read_text())
        for wrong in ({"start_ticks": 1}, {"boot": "before"}, {"namespace": "pid:[1]"}, {"pid": os.getpid()}):
            file.write_text(json.dumps(noted | wrong))
            assert locks.kill_holder("pool") is None
        for nothing in ("", "[]", "{}", "null"):
            file.write_text(nothing)
            assert locks.kill_holder("pool") is None
        assert holder.poll() is None
        file.write_text(json.dumps(noted))
        holder.send_signal(signal.SIGSTOP)
        assert locks.kill_holder("pool") == holder.pid
        assert holder.wait(10) == -signal.SIGKILL
    assert locks.kill_holder("pool") is None and locks.lock_pool("pool")
    locks.release()


def test_a_sign_of_life_is_seen_by_others(tmp_path: Path) -> None:
    one, two = Locks(tmp_path), Locks(tmp_path)
    assert two.last_beat("pool") is None
    assert one.lock_pool("pool")
    before = two.last_beat("pool")
    os.utime(tmp_path / "workers" / "pool.lock", ns=(0, 0))
    assert two.last_beat("pool") == 0
    one.beat("pool")
    after = two.last_beat("pool")
    assert before is not None and after is not None and after >= before
    one.release()
