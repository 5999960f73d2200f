"""Throttling a run from outside: it computes for a part of the time, and nothing ever leaves it stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from prefect_gpu.runtime.drivers import duty, supervisor
from prefect_gpu.runtime.drivers.base import RunHandle
from prefect_gpu.runtime.drivers.conformance import MakeSpec, until
from prefect_gpu.runtime.drivers.process import ProcessDriver

LOGGER = logging.getLogger("test.throttle")
WORKS = """
import os
if os.fork() == 0:
    os.setsid()
open("begun", "w").close()
while True:
    pass
"""


@pytest_asyncio.fixture
async def driver() -> AsyncIterator[ProcessDriver]:
    driver = ProcessDriver(warm=False, echo=None, logger=LOGGER)
    await driver.start()
    yield driver
    for handle in tuple(driver._handles):  # of a test that failed: they would compute for ever
        await handle.stop(0)
    await driver.close()


async def begun(driver: ProcessDriver, make_spec: MakeSpec) -> RunHandle:
    spec = make_spec(WORKS)
    handle = await driver.launch(spec)
    await until((Path(spec.cwd) / "begun").exists)
    return handle


def states(handle: RunHandle) -> set[str]:
    return {process.state for process in handle._left()}  # type: ignore[attr-defined]


def helpers() -> list[int]:
    """Pids of the helpers that this process has started."""
    found = []
    for process in supervisor.processes():
        with suppress(FileNotFoundError):  # it has just ended
            if process.ppid == os.getpid() and b"duty.main" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                found.append(process.pid)
    return found


async def seen(handle: RunHandle, state: str) -> None:
    await until(lambda: state in states(handle))


async def test_a_throttled_run_is_stopped_and_continued_with_all_that_it_started(
    driver: ProcessDriver, make_spec: MakeSpec
) -> None:
    handle = await begun(driver, make_spec)
    assert len(handle._left()) == 2  # type: ignore[attr-defined]
    assert handle.set_duty(0.25)
    await until(lambda: states(handle) == {"T"})
    await until(lambda: "T" not in states(handle))
    assert handle.set_duty(1.0)
    assert helpers() == []
    assert "T" not in states(handle)
    await handle.stop(0)


async def test_it_computes_less(driver: ProcessDriver, make_spec: MakeSpec) -> None:
    # Both spin on this machine's cores; what they get is counted by the kernel, and compared with each other.
    slow, other = await begun(driver, make_spec), await begun(driver, make_spec)
    assert slow.set_duty(0.1)
    await seen(slow, "T")
    before = slow.busy_seconds(), other.busy_seconds()
    assert before[0] is not None and before[1] is not None
    await until(lambda: (other.busy_seconds() or 0.0) > before[1] + 0.5)  # type: ignore[operator]
    assert (slow.busy_seconds() or 0.0) - before[0] < 0.5 * ((other.busy_seconds() or 0.0) - before[1])
    await slow.stop(0)
    await other.stop(0)


def test_of_two_words_that_come_at_once_the_last_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper takes a moment to start, and to look for processes."""
    read, write = os.pipe()
    with os.fdopen(read) as told, os.fdopen(write, "wb", buffering=0) as says:
        monkeypatch.setattr(sys, "stdin", told)
        assert duty._line(0.0) is None
        says.write(b"0.0625\n")
        says.write(b"0.9\n")
        assert (duty._line(0.0), duty._line(0.0)) == ("0.9", None)
        says.close()
        assert duty._line(0.0) == ""


async def test_a_throttled_run_can_be_ended_in_peace(driver: ProcessDriver, make_spec: MakeSpec) -> None:
    spec = make_spec("""
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        open("begun", "w").close()
        while True:
            time.sleep(0.01)
        """)
    handle = await driver.launch(spec)
    await until((Path(spec.cwd) / "begun").exists)
    handle.set_duty(1 / 16)
    await seen(handle, "T")
    await handle.stop(60)
    assert (await handle.wait()).returncode == 7


async def test_a_helper_that_is_killed_leaves_nothing_stopped(driver: ProcessDriver, make_spec: MakeSpec) -> None:
    handle = await begun(driver, make_spec)
    handle.set_duty(1 / 16)
    await seen(handle, "T")
    (helper,) = helpers()
    os.kill(helper, signal.SIGKILL)
    await until(lambda: not helpers() and "T" not in states(handle))
    await handle.stop(0)


async def test_a_worker_that_is_killed_leaves_nothing_stopped(driver: ProcessDriver, make_spec: MakeSpec) -> None:
    handle = await begun(driver, make_spec)
    main, overseer = handle._main, handle._supervisor  # type: ignore[attr-defined]
    code = f"""
import time
from prefect_gpu.runtime.drivers.throttle import Throttle
throttle = Throttle({main}, {overseer})
throttle.set(1 / 16)
time.sleep(600)
"""
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    await seen(handle, "T")
    worker.kill()
    await worker.wait()
    for _ in range(5):  # in the end, not only in one of its turns
        await until(lambda: "T" not in states(handle))
        await asyncio.sleep(0.05)
    await until(lambda: not [p for p in supervisor.processes() if b"duty.main" in _command(p.pid)])
    assert "T" not in states(handle)
    await handle.stop(0)


async def test_adopting_continues_what_was_left_stopped(driver: ProcessDriver, make_spec: MakeSpec) -> None:
    handle = await begun(driver, make_spec)
    for process in handle._left():  # type: ignore[attr-defined]
        supervisor.send(process.pid, process.start_ticks, signal.SIGSTOP)
    await until(lambda: states(handle) == {"T"})
    assert handle.set_duty(1.0)
    await until(lambda: "T" not in states(handle))
    await handle.stop(0)


async def test_the_end_of_a_run_ends_its_helper(driver: ProcessDriver, make_spec: MakeSpec) -> None:
    handle = await begun(driver, make_spec)
    handle.set_duty(0.5)
    await until(lambda: len(helpers()) == 1)  # it takes a moment until it is called so
    await handle.stop(0)
    assert helpers() == []
    assert not handle.set_duty(0.5)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
