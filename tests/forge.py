"""Workers that begin as forks of a process that has imported Prefect: importing it is two thirds of a worker's start.

A forged worker is ``prefect worker start`` as a user starts it, or a module of tests that takes the same words: a
process of its own, with its own environment, folder, session and output. It differs from one that was started as a new
Python in nothing but the time that it takes, and in what it is told with ``SHOWS_AT_ONCE`` and ``SHORT_LEASE``.

``python -m tests.forge`` is the process that forks. It reads one JSON object a line, what to start, and writes one a
line: ``{"pid": ...}`` for each start, and ``{"pid": ..., "code": ...}`` for each end.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).parents[1]
_WORKER = ["worker", "start"]
_POLL_S = 0.05
SHOWS_AT_ONCE = {"TESTS_SHOWS_AT_ONCE": "1"}
"""Variables of a worker that does not wait for a pause between submissions, nor for a small part of the time, to do so.

A test submits several runs, looks at what is shown, and would wait for six seconds each time; and for twenty until what
is expected of a run is shown anew.
"""
SHORT_LEASE = {"TESTS_SHORT_LEASE": "1"}
"""Variables of a worker that leads for six seconds without a renewal, and not for 18: another one takes over sooner."""


class Forged:
    """A process that the forge has started, with what is used of :class:`subprocess.Popen`."""

    stdin = None

    def __init__(self, forge: Forge, pid: int) -> None:
        self._forge, self.pid = forge, pid
        self.returncode: int | None = None  # negative for a signal

    def poll(self) -> int | None:
        if self.returncode is None:
            self._forge.hear()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(_WORKER, timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forge:
    """Starts workers by forking, and everything else as ever. Its process begins with the first worker."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._unread = b""
        self._begun: list[Forged] = []
        self._living: dict[int, Forged] = {}

    def start(self, command: list[str], *, stdout: IO[bytes], env: Mapping[str, str], cwd: Path, **more: Any) -> Any:
        """As :class:`subprocess.Popen`, for a process whose output goes to a file and that has no input.

        One with a path of its own is to import what lies there, and is started as a new Python.
        """
        python, module, words = command[:2], command[2:3], command[3:]
        is_worker = python == [sys.executable, "-m"] and words[: len(_WORKER)] == _WORKER
        same_code = env.get("PYTHONPATH") in (os.environ.get("PYTHONPATH"), str(_ROOT))
        if not (is_worker and same_code and more.get("stdin") == subprocess.DEVNULL):
            return subprocess.Popen(command, stdout=stdout, env=env, cwd=cwd, **more)
        job = {"module": module[0], "arguments": words, "log": str(stdout.name), "env": dict(env), "cwd": str(cwd)}
        with self._lock:
            if self._process is None:
                plain = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.forge"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    env=plain, cwd=_ROOT,
                )  # fmt: skip
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
            while not self._begun:
                self._hear()
            return self._begun.pop()

    def hear(self) -> None:
        """Tell those that have ended of it."""
        with self._lock:
            assert self._process is not None and self._process.stdout is not None
            if select.select([self._process.stdout], [], [], 0)[0]:
                self._hear()

    def close(self) -> None:
        """End the process that forks. What it has started lives on."""
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()

    def _hear(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        chunk = os.read(self._process.stdout.fileno(), 1 << 16)
        assert chunk, "the process that forks workers has ended"
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for told in map(json.loads, lines):
            # In the order in which it happened: a number that is told of anew belongs to another process by then.
            if "code" in told:
                self._living.pop(told["pid"]).returncode = told["code"]
            else:
                self._begun.append(begun := Forged(self, told["pid"]))
                self._living[begun.pid] = begun


def serve() -> dict[str, Any] | None:
    """Fork for each request. Returns in the forks, with what they are to become; None once nobody asks any more."""
    unread = b""
    while True:
        if select.select([0], [], [], _POLL_S)[0]:
            if not (chunk := os.read(0, 1 << 16)):
                return None
            *lines, unread = (unread + chunk).split(b"\n")
            for line in lines:
                if not (pid := os.fork()):
                    return dict(json.loads(line))
                _say(pid=pid)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            _say(pid=pid, code=os.waitstatus_to_exitcode(status))


def become(job: dict[str, Any]) -> None:
    """Be ``prefect worker start``, or a module that takes the same words and sees to the rest itself."""
    os.setsid()
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(job["log"], os.O_WRONLY | os.O_APPEND)
    for number, file in enumerate((nothing, log, log)):
        os.dup2(file, number)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    refresh_global_settings_context()
    if job["module"] == "prefect":
        show_at_once(os.environ)
        if SHORT_LEASE.items() <= os.environ.items():
            shorten_lease()
    sys.argv[1:] = job["arguments"]
    runpy.run_module(job["module"], run_name="__main__", alter_sys=True)


def show_at_once(env: Mapping[str, str]) -> None:
    """Be such a worker if these variables say so."""
    if SHOWS_AT_ONCE.items() <= env.items():
        from prefect_gpu.worker.server import lane
        from prefect_gpu.worker.telling import display, expectations

        assert lane.QUIET_AFTER_MANY_S >= lane.QUIET_S > 0.0 and lane.LONGER_EACH_S > 0.0 and lane.SHARE > 0.0
        lane.QUIET_AFTER_MANY_S = lane.QUIET_S = lane.LONGER_EACH_S = 0.0
        lane.SHARE = 0.5
        expectations._LEAST_S, display._AT_GATE_AGAIN_S = (
            min(3.0, often) for often in (expectations._LEAST_S, display._AT_GATE_AGAIN_S)
        )


def shorten_lease() -> None:
    """Lead for six seconds without a renewal."""
    from prefect_gpu.worker.leadership.lease import Lease

    (Lease.__init__.__kwdefaults__ or {}).update(lease_s=6.0, renew_s=1.0)


def _say(**words: int) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


if __name__ == "__main__":
    from prefect.context import refresh_global_settings_context

    for name in ("prefect.cli.worker", "prefect_gpu.worker", "prefect_gpu.estimation.estimator", "threadpoolctl"):
        import_module(name)
    gc.freeze()  # what is shared stays shared
    if (chosen := serve()) is not None:
        become(chosen)
