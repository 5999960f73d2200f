"""Every run begins with the signals of a fresh shell, whatever its worker or its container's Engine was given."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.runtime.drivers import fork_compatibility, intent, supervisor
from prefect_gpu.runtime.drivers.base import LaunchSpec
from prefect_gpu.runtime.drivers.conformance import MakeSpec
from prefect_gpu.runtime.drivers.docker import fencing, inside, waiting
from prefect_gpu.runtime.drivers.process import ProcessDriver

# What a run finds, and what a program that it starts finds: Python itself ignores two signals, and hands none on.
FOUND = """
import json, signal, subprocess
known = sum(1 << number - 1 for number in signal.valid_signals())  # the C library lets nobody touch two others
def said(status):
    found = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("Sig"))
    return [int(found[name], 16) & known for name in ("SigBlk", "SigIgn")]
print(json.dumps({
    "itself": said(open("/proc/self/status").read()),
    "its child": said(subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout),
    "interrupt": str(signal.getsignal(signal.SIGINT)),
}))
"""
FRESH = {
    "itself": [0, 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1],
    "its child": [0, 0],
    "interrupt": str(signal.default_int_handler),
}
GIVEN = {
    "nohup": ({signal.SIGHUP}, set()),
    "background": ({signal.SIGINT, signal.SIGQUIT}, set()),
    "children": ({signal.SIGCHLD}, set()),  # with it ignored, nobody learns an exit code
    "blocked": (set(), {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}),
    "all": (set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}, signal.valid_signals()),
}


@contextmanager
def given(ignored: set[signal.Signals], blocked: set[signal.Signals]) -> Iterator[None]:
    """Let this process have what it might have been started with."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.fixture(params=GIVEN)
def start(request: pytest.FixtureRequest) -> tuple[set[signal.Signals], set[signal.Signals]]:
    """Signals that are ignored, and that are blocked, where runs are started."""
    return GIVEN[request.param]


@pytest.fixture(params=["cold", "warm"])
async def driver(request: pytest.FixtureRequest, start: Any) -> AsyncIterator[ProcessDriver]:
    driver = ProcessDriver(
        warm=request.param == "warm",
        preload=["json", "subprocess"],
        echo=lambda label, line: None,
        logger=logging.getLogger("test.driver"),
    )
    with given(*start):
        await driver.start()
        yield driver
        await driver.close()


async def test_a_run_on_this_machine_begins_afresh(driver: ProcessDriver, make_spec: MakeSpec) -> None:
    handle = await driver.launch(make_spec(FOUND))
    report = await handle.wait()
    assert handle.warm is (driver._warm is not None)
    assert (report.returncode, json.loads(report.tail[-1])) == (0, FRESH)


async def test_what_a_preloaded_module_has_set_stays(
    make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cold run gets it from its own import."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sets = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\nsignal.signal(signal.SIGUSR1, print)\n"
    (tmp_path / "sets_signals.py").write_text(sets)
    code = """
        import signal, sets_signals
        print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, signal.getsignal(signal.SIGUSR1) is print)
    """
    for warm in (False, True):
        driver = ProcessDriver(
            warm=warm,
            preload=["sets_signals"],
            echo=lambda label, line: None,
            logger=logging.getLogger("test.driver"),
        )
        await driver.start()
        try:
            handle = await driver.launch(make_spec(code))
            report = await handle.wait()
        finally:
            await driver.close()
        assert (handle.warm, report.tail) == (warm, ("True True",))


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_a_run_in_a_container_begins_afresh(
    start: tuple[set[signal.Signals], set[signal.Signals]], make_spec: MakeSpec, tmp_path: Path, warm: bool
) -> None:
    """The container's first process as an Engine starts it, without an Engine."""
    folder = tmp_path / "inside"
    folder.mkdir()
    for module in (inside, supervisor, fencing, intent, fork_compatibility, waiting):
        shutil.copy(str(module.__file__), folder)
    spec = make_spec(FOUND)
    (folder / "job.json").write_text(json.dumps(job_of(spec)))
    command = [sys.executable, "-I", "-S", str(folder / "inside.py"), str(folder / "job.json")]
    if warm:
        env = {name: value for name, value in spec.env.items() if name != "PREFECT_GPU_RUN_ID"}
        task = {"program": sys.executable, "env": env, "preload": ["json", "subprocess"], "after_fork": None}
        (folder / "warm.json").write_text(json.dumps({"mark": "MARK", "keep_free": 0.0, "idle_s": 600.0, **task}))
        command.append(str(folder / "warm.json"))
    with given(*start):
        first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with first:
        try:
            assert first.stdout is not None
            if warm:
                assert "ready" in next(line for line in first.stdout if line.startswith("MARK"))
                first.send_signal(waiting.BEGIN)
            lines = [line for line in first.stdout if line.strip()]
        finally:
            first.kill()
    said = [json.loads(line.removeprefix("MARK ")) for line in lines]
    assert said[0]["started"]["warm"] is warm, said
    assert said[1:-1] == [FRESH]
    assert first.returncode == said[-1]["ended"]["returncode"] == 0


def job_of(spec: LaunchSpec) -> dict[str, Any]:
    return {
        "argv": list(spec.argv),
        "env": dict(spec.env),
        "cwd": str(spec.cwd),
        "cpus": [],
        "mark": "MARK",
        "told_at": [],
    }
