"""The locks of devices, between real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefect_gpu.training.limits.device_lock import DeviceLock, own_lock
from prefect_gpu.training.protocol import ENV_GATED, ENV_LOCKS, ENV_SHARED, OPEN_GATE
from tests.training.conftest import PATIENCE, Controller

HOLD = """
import os, sys
from prefect_gpu.training.limits.device_lock import DeviceLock
lock = DeviceLock(sys.argv[2:], sys.argv[1] == "shared")
print(lock.try_acquire(), flush=True)
if sys.stdin.readline() == "fork\\n":
    child = os.fork()
    if child == 0:
        sys.stdin.readline()
        os._exit(0)
    lock.release()
    print("released", flush=True)
    sys.stdin.readline()
    os.waitpid(child, 0)
"""
Hold = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Start a process that locks files and says whether it could."""
    processes: list[subprocess.Popen[str]] = []

    def start(how: str, *files: Path) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", HOLD, how, *map(str, files)]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_device_is_one_processs_until_that_is_gone_however_it_goes(tmp_path: Path, hold: Hold) -> None:
    holder = hold("alone", tmp_path / "a")
    assert said(holder) == "True"
    lock = DeviceLock([str(tmp_path / "a")])
    assert not lock.try_acquire() and not lock.held
    holder.kill()
    holder.wait()
    assert lock.try_acquire() and lock.held


def test_all_devices_are_locked_or_none(tmp_path: Path, hold: Hold) -> None:
    assert said(hold("alone", tmp_path / "b")) == "True"
    lock = DeviceLock([str(tmp_path / "b"), str(tmp_path / "a"), str(tmp_path / "c")])
    assert not lock.try_acquire()
    assert said(hold("alone", tmp_path / "a", tmp_path / "c")) == "True"


def test_runs_that_share_lock_together_and_keep_out_who_does_not(tmp_path: Path, hold: Hold) -> None:
    assert said(hold("shared", tmp_path / "a")) == "True"
    shares, alone = DeviceLock([str(tmp_path / "a")], shared=True), DeviceLock([str(tmp_path / "a")])
    assert shares.try_acquire() and not alone.try_acquire()


def test_one_that_shared_and_needs_its_device_alone_waits_for_its_neighbour(tmp_path: Path, hold: Hold) -> None:
    neighbour = hold("shared", tmp_path / "a")
    assert said(neighbour) == "True"
    lock = DeviceLock([str(tmp_path / "a")], shared=True)
    assert lock.try_acquire()
    lock.shared = False
    assert not lock.try_acquire()
    neighbour.kill()
    neighbour.wait()
    assert lock.try_acquire() and lock.held


def test_what_is_released_is_free_although_a_child_holds_a_copy(tmp_path: Path, hold: Hold) -> None:
    holder = hold("alone", tmp_path / "a")
    assert said(holder) == "True"
    assert holder.stdin is not None
    holder.stdin.write("fork\n")
    holder.stdin.flush()
    assert said(holder) == "released"
    assert DeviceLock([str(tmp_path / "a")]).try_acquire()


def test_the_processes_of_one_launch_do_not_keep_each_other_out(tmp_path: Path, hold: Hold) -> None:
    """Such as those of torch.multiprocessing.spawn, which would wait for one another for ever."""
    file = str(tmp_path / "a")
    first, second = (DeviceLock([file], launch="ours") for _ in range(2))
    assert first.try_acquire() and second.try_acquire() and (first.held, second.held) == (True, False)
    assert not DeviceLock([file], launch="theirs").try_acquire() and not DeviceLock([file]).try_acquire()
    first.release()
    assert said(hold("shared", tmp_path / "a")) == "True"
    assert not second.try_acquire(), "others have it now, and share it"


def test_it_waits_until_the_device_is_free(tmp_path: Path, hold: Hold) -> None:
    holder = hold("alone", tmp_path / "a")
    assert said(holder) == "True"
    lock = DeviceLock([str(tmp_path / "a")])
    waiting = threading.Thread(target=lock.acquire, daemon=True)
    waiting.start()
    assert waiting.is_alive() and not lock.held
    holder.kill()
    waiting.join(PATIENCE)
    assert lock.held


def test_a_device_that_cannot_be_locked_keeps_nobody_waiting(tmp_path: Path) -> None:
    lock = DeviceLock([str(tmp_path / "no such folder" / "a")])
    assert lock.try_acquire() and not lock.held


@pytest.mark.parametrize(
    ("environ", "files", "shared"),
    [
        ({}, [], False),
        ({ENV_LOCKS: "nonsense"}, [], False),
        ({ENV_LOCKS: '["b", "a", "a", 3]', ENV_SHARED: "1"}, ["a", "b"], True),
    ],
)
def test_the_environment_says_what_is_to_be_locked(environ: dict[str, str], files: list[str], shared: bool) -> None:
    lock = own_lock(environ)
    assert (lock._files, lock.shared) == (files, shared)


# -- a training run ---------------------------------------------------------------------------------------------------

TRAIN = """
    from prefect_gpu.training import training_run

    with training_run(steps=3) as run:
        for _ in run.steps():
            run.report(loss=1.0)
    with run.saving():
        input()
"""


def test_a_run_whose_gate_is_open_waits_until_the_other_one_is_gone(
    controller: Controller, tmp_path: Path, hold: Hold
) -> None:
    holder = hold("alone", tmp_path / "a")
    assert said(holder) == "True"
    run = controller.popen(TRAIN, **{ENV_LOCKS: json.dumps([str(tmp_path / "a")]), ENV_GATED: "1"})
    controller.wait_for(lambda: controller.phases == ["preparing", "preparing*"])
    controller.instruct(OPEN_GATE)
    holder.kill()
    controller.wait_for(lambda: "saving" in controller.phases)
    assert controller.phases == ["preparing", "preparing*", "training", "saving"]
    assert DeviceLock([str(tmp_path / "a")]).try_acquire()  # whoever saves has given its device back
    _, err = run.communicate("\n", timeout=PATIENCE)
    assert run.returncode == 0, err


def test_a_second_process_of_a_gated_run_trains_as_soon_as_the_first_one_does(
    controller: Controller, tmp_path: Path, hold: Hold
) -> None:
    """As one of torch.multiprocessing.spawn: the first one would wait for it, with the device."""
    second = """
        from prefect_gpu.training import training_run
        from prefect_gpu.training.channel import link

        link.wait_at_gate.__defaults__ = (3600.0,)
        with training_run(steps=3) as run:
            run.ready()
            print("trains")
    """
    holder = hold("alone", tmp_path / "a")
    assert said(holder) == "True"
    env = {ENV_LOCKS: json.dumps([str(tmp_path / "a")]), ENV_GATED: "1"}
    first = controller.popen(TRAIN, **env)
    controller.wait_for(lambda: controller.phases == ["preparing", "preparing*"])
    other = controller.popen(second, **env)
    controller.instruct(OPEN_GATE)
    holder.kill()
    out, err = other.communicate(timeout=PATIENCE)
    assert out == "trains\n", err
    first.communicate("\n", timeout=PATIENCE)


def test_a_run_whose_device_is_free_says_nothing_of_waiting(controller: Controller, tmp_path: Path) -> None:
    run = controller.popen(TRAIN, **{ENV_LOCKS: json.dumps([str(tmp_path / "a")])})
    controller.wait_for(lambda: "training" in controller.phases)
    run.communicate("\n", timeout=PATIENCE)
    assert controller.phases == ["preparing", "training", "saving", "finished"] and run.returncode == 0
