"""Nothing that dies takes a run with it, and nothing that a run leaves stays."""

# ruff: noqa: ASYNC220, ASYNC240
from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prefect_gpu.runtime.drivers import handle as handles
from prefect_gpu.runtime.drivers import launched, supervisor
from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.runtime.drivers.conformance import LEAVE_GRANDCHILDREN, MakeSpec, alive, until
from prefect_gpu.runtime.drivers.process import ProcessDriver

LOGGER = logging.getLogger("test.driver")
# A worker in a process of its own: it launches one run and then has nothing to do.
WORKER = """
import asyncio, json, logging, sys
from pathlib import Path
from prefect_gpu.runtime.drivers.base import LaunchSpec
from prefect_gpu.runtime.drivers.process import ProcessDriver

async def main():
    task = json.load(sys.stdin)
    driver = ProcessDriver(warm=task["warm"], logger=logging.getLogger())
    await driver.start()
    spec = LaunchSpec(task["run_id"], Path(task["run_dir"]), tuple(task["argv"]), task["env"], Path(task["cwd"]))
    handle = await driver.launch(spec)
    print(json.dumps({"pid": handle.pid, "warm": handle.warm}), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
UNTIL_TOLD = """
import os, sys, time
open("ready", "w").close()
while not os.path.exists("end"):
    print("still here", flush=True)
    time.sleep(0.02)
sys.exit(5)
"""


@pytest.fixture(params=[False, True], ids=["cold", "warm"])
def warm(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
async def driver(warm: bool) -> AsyncIterator[ProcessDriver]:
    driver = ProcessDriver(warm=warm, echo=lambda label, line: None, logger=LOGGER)
    await driver.start()
    yield driver
    await driver.close()


def facts_of(run_dir: Path) -> dict[str, int]:
    return json.loads((run_dir / supervisor.PROCESS).read_text())


async def test_a_run_outlives_a_worker_that_is_killed(warm: bool, make_spec: MakeSpec) -> None:
    spec = make_spec(UNTIL_TOLD)
    worker = subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert worker.stdin and worker.stdout
        task = {"run_dir": str(spec.run_dir), "cwd": str(spec.cwd), "argv": spec.argv, "env": spec.env}
        worker.stdin.write(json.dumps({"warm": warm, "run_id": spec.run_id, **task}).encode())
        worker.stdin.close()
        started = json.loads(await asyncio.to_thread(worker.stdout.readline))
        assert started["warm"] == warm
        children = supervisor.descendants(worker.pid)
        zygotes = [p.pid for p in children if b"zygote" in Path(f"/proc/{p.pid}/cmdline").read_bytes()]
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
    await until((spec.cwd / "ready").exists)
    zygotes = [pid for pid in zygotes if pid not in (started["pid"], facts_of(spec.run_dir)["supervisor_pid"])]
    await until(lambda: not any(alive(pid) for pid in zygotes))  # it goes with its driver, its forks do not
    assert alive(started["pid"])

    driver = ProcessDriver(warm=False, echo=lambda label, line: None, logger=LOGGER)
    adopted = await driver.adopt(spec.run_id, spec.run_dir)
    assert adopted is not None and adopted.pid == started["pid"]
    (spec.cwd / "end").touch()
    report = await adopted.wait()
    assert report.returncode == 5
    assert set(report.tail) == {"still here"}
    await driver.close()


async def test_signals_to_the_group_end_the_run_and_not_its_supervisor(
    driver: ProcessDriver, make_spec: MakeSpec
) -> None:
    spec = make_spec(UNTIL_TOLD)
    handle = await driver.launch(spec)
    await until((spec.cwd / "ready").exists)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.killpg(facts_of(spec.run_dir)["supervisor_pid"], signum)
    os.killpg(handle.pid, signal.SIGKILL)
    assert (await handle.wait()).returncode == -9


async def test_what_a_lost_supervisor_leaves_is_ended(driver: ProcessDriver, make_spec: MakeSpec) -> None:
    spec = make_spec(LEAVE_GRANDCHILDREN + UNTIL_TOLD)
    handle = await driver.launch(spec)
    await until((spec.cwd / "ready").exists)
    pids = [handle.pid, *(int((spec.cwd / name).read_text()) for name in ("child", "orphan"))]
    os.kill(facts_of(spec.run_dir)["supervisor_pid"], signal.SIGKILL)
    report = await handle.wait()
    assert report.returncode is None and report.max_rss_bytes is None
    assert report.tail[-1] == "still here"
    assert not any(alive(pid) for pid in pids)  # the orphan is found by the mark in its environment
    await handle.stop(grace_seconds=0)


async def test_a_supervisor_that_hangs_does_not_keep_a_run_from_being_stopped(
    driver: ProcessDriver, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "_HUNG_SECONDS", 0.3)
    spec = make_spec(LEAVE_GRANDCHILDREN + UNTIL_TOLD)
    handle = await driver.launch(spec)
    await until((spec.cwd / "ready").exists)
    pids = [handle.pid, *(int((spec.cwd / name).read_text()) for name in ("child", "orphan"))]
    os.kill(facts_of(spec.run_dir)["supervisor_pid"], signal.SIGSTOP)
    await handle.stop(grace_seconds=0.1)
    assert (await handle.wait()).returncode is None
    assert not any(alive(pid) for pid in pids)


async def test_a_launch_that_is_cancelled_leaves_nothing(
    driver: ProcessDriver, make_spec: MakeSpec, warm: bool
) -> None:
    spec = make_spec("open(f'ran', 'w').close(); import time; time.sleep(600)")
    launching = asyncio.create_task(driver.launch(spec))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    mark = f"PREFECT_GPU_RUN_ID={spec.run_id}".encode()
    assert not [p for p in supervisor.processes() if mark in launched.environment(p.pid)]
    later = ProcessDriver(warm=False, logger=LOGGER)
    adopted = await later.adopt(spec.run_id, spec.run_dir)
    assert adopted is None or (await adopted.wait()).returncode == -9


async def test_runs_are_watched_where_there_is_no_pidfd(
    driver: ProcessDriver, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    handle = await driver.launch(make_spec("raise SystemExit(4)"))
    assert (await handle.wait()).returncode == 4
    spec = make_spec(UNTIL_TOLD)
    handle = await driver.launch(spec)
    await handle.stop(grace_seconds=60)
    assert (await handle.wait()).returncode == -15


async def test_a_stranger_with_the_same_pid_is_left_alone(driver: ProcessDriver, make_spec: MakeSpec) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        seen = supervisor.look(stranger.pid)
        assert seen is not None
        spec = make_spec("")
        spec.run_dir.mkdir()
        facts = {"pid": stranger.pid, "supervisor_pid": stranger.pid, "boot": supervisor.boot_id(), "warm": False}
        ticks = {"start_ticks": seen.start_ticks - 1, "supervisor_start_ticks": seen.start_ticks - 1}
        supervisor.write_json(str(spec.run_dir / supervisor.PROCESS), {**facts, **ticks})
        adopted = await driver.adopt(spec.run_id, spec.run_dir)
        assert adopted is not None
        assert (await adopted.wait()).returncode is None

        ticks = {"start_ticks": seen.start_ticks, "supervisor_start_ticks": seen.start_ticks}
        of_another_boot = {**facts, **ticks, "boot": "another"}
        supervisor.write_json(str(spec.run_dir / supervisor.PROCESS), of_another_boot)
        adopted = await driver.adopt(spec.run_id, spec.run_dir)
        assert adopted is not None
        await adopted.stop(grace_seconds=0)
        assert (await adopted.wait()).returncode is None
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_claim_whose_supervisor_died_before_the_run_began_is_no_run(
    driver: ProcessDriver, make_spec: MakeSpec
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    spec = make_spec("")
    spec.run_dir.mkdir()
    assert supervisor.claim(str(spec.run_dir), {"pid": dead.pid, "start_ticks": 1, "boot": supervisor.boot_id()})
    assert await driver.adopt(spec.run_id, spec.run_dir) is None
    with pytest.raises(LaunchError, match="revoked"):
        await driver.launch(spec)


async def test_a_run_without_its_first_thread_is_stopped_too(driver: ProcessDriver, make_spec: MakeSpec) -> None:
    """The kernel shows it as a zombie while the other threads go on."""
    code = """
        import os, signal, subprocess, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        program = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start()\\n"
        program += "open('child', 'w').write('x'); ctypes.CDLL(None).pthread_exit(None)"
        child = subprocess.Popen([sys.executable, "-c", program])
        state = lambda: open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()[0]
        while state() != "Z":
            pass
        assert len(os.listdir(f"/proc/{child.pid}/task")) > 1
        print(child.pid, flush=True)
        os._exit(0)
    """
    report = await (await driver.launch(make_spec(code))).wait()
    assert report.returncode == 0
    assert supervisor.look(int(report.tail[0])) is None


async def test_a_run_may_close_and_kill_what_it_likes(driver: ProcessDriver, make_spec: MakeSpec) -> None:
    """It cannot reach its supervisor through descriptors or through its process group."""
    handle = await driver.launch(make_spec("import os; os.closerange(0, 4096); os.killpg(0, 9)"))
    assert (await handle.wait()).returncode == -9
