"""Locks on pools and devices, between real processes."""

from __future__ import annotations

import errno
import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from prefect_gpu.runtime.devices.locks import LockError, Locks, machine_folder
from prefect_gpu.scheduling.model.cluster import Device
from tests.components import require

_HOLD = """
import os, sys
from pathlib import Path
from prefect_gpu.runtime.devices.locks import Locks
from prefect_gpu.scheduling.model.cluster import Device
if len(sys.argv) > 2:
    os.umask(0o077)
    os.setgid(int(sys.argv[2]))
    os.setgroups([int(sys.argv[2])])
    os.setuid(int(sys.argv[2]))
locks = Locks(Path(sys.argv[1]), Path(os.environ["LOCKS"]))
claimed = locks.lock_pool("pool"), len(locks.lock_devices([Device("GPU-1", "H200", 1)])[0])
print(*claimed, flush=True)
sys.stdin.read()
"""
GPU = Device("GPU-1", "H200", 1)
VIRTUAL = Device("virtual-0", "virtual", 1, virtual=True)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the machine's own: the locks of real workers are not touched."""
    monkeypatch.setenv("LOCKS", str(tmp_path / "machine"))
    return tmp_path / "machine"


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


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path, machine: Path) -> None:
    locks = Locks(tmp_path, machine)
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


def test_gpus_are_locked_for_the_machine_and_virtual_devices_for_the_state_folder(
    tmp_path: Path, machine: Path
) -> None:
    one, two = Locks(tmp_path / "one", machine), Locks(tmp_path / "two", machine)
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
    """With a private umask, in a folder that root has made for their group."""
    require("root's rights", os.getuid() == 0)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        machine = folder / "machine"
        machine.mkdir()
        os.chown(machine, 0, 65534)
        machine.chmod(0o2770)
        monkeypatch.setenv("LOCKS", str(machine))
        mine = Locks(folder / "mine", machine)
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


_ATTACK = """
import fcntl, os
os.setgid(65534)
os.setuid(65534)
os.umask(0)
for folder in ("/tmp/prefect-gpu-devices", "/run/lock/prefect-gpu"):
    os.makedirs(folder)
    os.symlink("/run/only-root", f"{folder}/GPU-1.lock")
    held = os.open(f"{folder}/GPU-2.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
print("ready", flush=True)
input()
"""
_ATTACKED = """
import os, subprocess, sys
from pathlib import Path
from prefect_gpu.runtime.devices.locks import Locks
from prefect_gpu.scheduling.model.cluster import Device
os.umask(0o022)
victim = Path("/run/only-root")
victim.touch(mode=0o600)
with subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=-1, stdout=-1, text=True) as attacker:
    attacker.stdout.readline()
    locks = Locks(Path("/run/state"))
    print([device.id for device in locks.lock_devices([Device(f"GPU-{n}", "H200", 1) for n in (1, 2)])[0]])
    print(oct(victim.stat().st_mode & 0o777))
    attacker.kill()
locks.lock_pool("pool")
print([str(path) for path in locks._held if (path.stat().st_mode | path.parent.stat().st_mode) & 0o002])
"""


def test_another_user_can_neither_have_files_opened_nor_stop_a_worker_of_root(tmp_path: Path) -> None:
    """In a /tmp and a /run of its own, where he was first."""
    require("root's rights", os.getuid() == 0)
    private = (
        'mkdir "$KEPT" && mount --rbind "$ROOT" "$KEPT" && mount -t tmpfs t /run && mkdir /run/kept && '
        'mount --move "$KEPT" /run/kept && mount -t tmpfs t /tmp && mkdir -p "$ROOT" && '
        'mount --move /run/kept "$ROOT" && mkdir -m 1777 /run/lock && exec "$@"'
    )  # the checkout stays where it is, also where that is below /tmp
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", private, "sh"]
    env = {**os.environ, "ROOT": str(Path(__file__).resolve().parents[3]), "KEPT": str(tmp_path / "kept")}
    command = [*inside, sys.executable, "-c", _ATTACKED, _ATTACK]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.stdout.splitlines() == ["['GPU-1', 'GPU-2']", "0o600", "[]"], done.stdout + done.stderr


@pytest.mark.usefixtures("machine")
def test_who_writes_a_pid_into_a_lock_gets_nobody_killed(tmp_path: Path) -> None:
    locks, file = Locks(tmp_path), tmp_path / "workers" / "pool.lock"
    with hold(tmp_path) as holder, hold(tmp_path / "other") as bystander:
        assert first_line(holder)[:4] == first_line(bystander)[:4] == "True"
        other = tmp_path / "other" / "workers" / "pool.lock"
        file.write_text(other.read_text())
        assert locks.kill_holder("pool") is None and bystander.poll() is None
        file.unlink()
        file.symlink_to(other)
        assert locks.kill_holder("pool") is None and bystander.poll() is None
        for process in (holder, bystander):
            process.kill()


def test_a_lock_that_is_no_file_or_not_ours_is_refused_with_its_name(tmp_path: Path) -> None:
    require("root's rights", os.getuid() == 0)
    folder = tmp_path / "workers"
    folder.mkdir()
    (tmp_path / "aim").touch(mode=0o600)
    (folder / "link.lock").symlink_to(tmp_path / "aim")
    os.mkfifo(folder / "pipe.lock")
    (folder / "theirs.lock").touch()
    os.chown(folder / "theirs.lock", 65534, 65534)
    for name in ("link", "pipe", "theirs"):
        with pytest.raises(LockError, match=rf"{name}\.lock .*PREFECT_INTEGRATIONS_GPU_STATE_DIR"):
            Locks(tmp_path).lock_pool(name)
    os.chown(folder, 65534, 65534)
    with pytest.raises(LockError, match="folder of the user with id 65534"):
        Locks(tmp_path).lock_pool("pool")


def test_who_may_only_look_into_the_folder_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It said that there was no such file, and to remove it."""
    require("root's rights", os.getuid() == 0)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        monkeypatch.setenv("LOCKS", f"{name}/machine")
        (Path(name) / "workers").mkdir()
        for folder in (Path(name), Path(name) / "workers"):
            folder.chmod(0o755)
            os.chown(folder, 0, 0)
        done = subprocess.run([sys.executable, "-c", _HOLD, name, "65534"], capture_output=True, text=True)
    assert "pool.lock cannot be opened: Permission denied. Start the worker as its owner, or name" in done.stderr


@pytest.mark.parametrize(("number", "remedy"), [(errno.EROFS, "Mount it"), (errno.ENOSPC, "Make room there")])
def test_a_file_system_that_takes_no_lock_is_named_with_its_own_remedy(
    number: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said to remove the folder, and named a setting that moves another one. What the kernel says is made up."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(LockError, match=rf"{remedy}.*, or name another folder in PREFECT_INTEGRATIONS_GPU_STATE_DIR"):
        Locks(tmp_path).lock_pool("pool")
    with pytest.raises(LockError, match=rf"{remedy}.*, or name another folder in PREFECT_INTEGRATIONS_GPU_LOCK_DIR"):
        Locks(tmp_path / "state", tmp_path / "machine").lock_devices([GPU])


def test_locks_of_an_earlier_version_are_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers").chmod(0o777)
    (tmp_path / "workers" / "pool.lock").touch()
    (tmp_path / "workers" / "pool.lock").chmod(0o666)
    locks = Locks(tmp_path)
    assert locks.lock_pool("pool")
    assert not [path for path in (tmp_path / "workers").rglob("*") if path.stat().st_mode & 0o002]
    locks.release()


_FOLDER = """
import os, sys
from pathlib import Path
from prefect_gpu.runtime.devices.locks import machine_folder
os.setgid(65534)
os.setgroups([65534])
os.setuid(65534)
print(machine_folder(Path(sys.argv[1])))
"""


def test_users_lock_in_the_folder_that_root_made_for_them_or_else_in_their_home() -> None:
    require("root's rights", os.getuid() == 0)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        machine = Path(name, "machine")
        Path(name).chmod(0o755)

        def chosen() -> str:
            told = subprocess.run([sys.executable, "-c", _FOLDER, machine], capture_output=True, text=True)
            return told.stdout.strip() or told.stderr

        own = f"{pwd.getpwuid(65534).pw_dir}/.local/state/prefect-gpu/locks"
        assert chosen() == own and machine_folder(machine) == machine
        assert chosen() == own  # root's alone
        os.chown(machine, 65534, 65534)  # he was first, and root has not come yet
        assert chosen() == own
        os.chown(machine, 0, 65534)
        machine.chmod(0o2770)
        assert chosen() == str(machine)


@pytest.mark.usefixtures("machine")
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
