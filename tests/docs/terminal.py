"""A shell that goes through the commands of pages, with a home, a checkout and ports of its own."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import httpx
import psutil

from prefect_gpu.lab.migrated import DATABASE, MigratedDatabase
from prefect_gpu.lab.sandbox import Process, SandboxError, free_port, wait_until
from tests.docs.pages import ROOT

_END = "--- the command has ended:"
_LEFT_OUT = (".venv", ".git", "site", "demo-output", ".*_cache", ".hypothesis", "__pycache__", "images", "weights")
_LASTING = {
    "server": re.compile(r"^prefect server start\b"),
    "worker": re.compile(r"^(?:[A-Z_]+=\S+ )*prefect worker start\b"),
    "view": re.compile(r"^prefect-gpu status(?!.*--(?:once|json))"),
}
"""What goes on until it is stopped, and is stopped when the next of its kind is started."""

_IN_FRONT = partial(subprocess.Popen, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
"""What is started in a terminal hears Ctrl-C, also where the tests run in the background and do not."""

DEADLINE_S = 600.0  # against hanging for ever; nothing is asserted on time


class Terminal:
    """Bash in a copy of the checkout, whose variables stay from command to command.

    Args:
        folder: Everything is below it; ``~`` is ``home`` there, and the checkout ``checkout``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.checkout = folder, folder / "home", folder / "checkout"
        self.port, self._page_port = free_port(), free_port()
        self._lasting: dict[str, Process] = {}
        self._number = 0
        self.home.mkdir()
        (folder / "backup").mkdir()
        shutil.copytree(ROOT, self.checkout, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        kept = {one: value for one, value in os.environ.items() if not one.startswith("PREFECT")}
        self.env = kept | {
            "HOME": str(self.home),
            "PREFECT_SERVER_API_PORT": str(self.port),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_INTEGRATIONS_GPU_PAGE_PORT": str(self._page_port),
            "PREFECT_INTEGRATIONS_GPU_LOCK_DIR": str(folder / "locks"),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "CUDA_VISIBLE_DEVICES": "",  # virtual devices everywhere
            "DO_NOT_TRACK": "1",
            "COLUMNS": "200",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self._bash: subprocess.Popen[bytes] | None = None
        self.new_shell()

    def new_shell(self) -> None:
        """Forget the variables of the one before."""
        self._end_shell()
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.env,
            cwd=self.checkout,
            start_new_session=True,
        )

    def close(self) -> None:
        """End everything that was started."""
        self._end_shell()
        self._end_all()

    def new_database(self) -> None:
        """End all runs, the worker and the server, whose database begins anew; the pool's history stays."""
        self._end_all()
        for path in (self.home / ".prefect").glob(f"{DATABASE}*"):
            path.unlink()
        self.new_shell()

    def type(self, command: str) -> str:
        """Carry out a command as if it were typed, and return what it printed, as far as it has.

        What lasts is waited for until it is ready, and left.

        Raises:
            SandboxError: It failed.
        """
        command = self._moved(command)
        for kind, pattern in _LASTING.items():
            if pattern.search(command):
                return self._start(kind, command)
        code, said = self._run(command)
        if code != 0:
            raise SandboxError(f"it ended with {code}:\n{said[-2500:]}")
        return said

    def _end_all(self) -> None:
        for kind in ("view", "worker", "server"):
            self._stop(kind)
        for process in psutil.process_iter():  # also what went into the background
            with contextlib.suppress(psutil.Error):
                if process.environ().get("HOME") == str(self.home):
                    process.kill()

    def _end_shell(self) -> None:
        if self._bash is not None:
            self._bash.kill()
            self._bash.communicate()

    def _moved(self, command: str) -> str:
        """With this shell's ports and folders."""
        moved = {":4200": f":{self.port}", ":4280": f":{self._page_port}", "/backup/": f"{self.folder}/backup/"}
        for place, ours in moved.items():
            command = command.replace(place, ours)
        return command

    def _run(self, command: str) -> tuple[int, str]:
        bash = self._bash
        assert bash is not None and bash.stdin is not None and bash.stdout is not None
        bash.stdin.write(f"{{ {command}\n}} </dev/null\nset -- $?; echo; echo '{_END}' $1\n".encode())
        bash.stdin.flush()
        said, end = b"", time.monotonic() + DEADLINE_S
        while (found := re.search(rf"\n{_END} (\d+)\n".encode(), said)) is None:
            if not select.select([bash.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise SandboxError(f"it has not ended after {DEADLINE_S:.0f} s:\n{said.decode()[-2500:]}")
            read = os.read(bash.stdout.fileno(), 65536)
            if not read:
                raise SandboxError(f"the shell is gone:\n{said.decode()[-2500:]}")
            said += read
        return int(found[1]), said[: found.start()].decode()

    def _start(self, kind: str, command: str) -> str:
        self._stop(kind)
        if kind == "server":
            MigratedDatabase().put(self.home / ".prefect")
        self._number += 1
        log = self.folder / f"{kind}-{self._number}.log"
        _, said = self._run("pwd; env -0 | base64 --wrap=0")
        here, encoded = said.strip().rsplit("\n", 1)
        started = Process(
            ["bash", "-c", command], log=log, env=_decoded(encoded), cwd=Path(here.split("\n")[-1]), popen=_IN_FRONT
        )
        self._lasting[kind] = started
        if kind == "server":
            wait_until(lambda: self._answers(started), what="the server to answer", timeout_s=DEADLINE_S)
        elif kind == "worker":
            started.wait_for_output("Serving pool", timeout_s=DEADLINE_S)
        else:
            started.wait_for_output("\n", timeout_s=DEADLINE_S)
            os.killpg(started.pid, signal.SIGINT)
            wait_until(lambda: started.popen.poll() is not None, what="Ctrl-C to end it", timeout_s=DEADLINE_S)
            code = started.terminate()
            if code not in (0, 130, -signal.SIGINT):
                raise SandboxError(f"after Ctrl-C it ended with {code}:\n{started.output[-2500:]}")
        return started.output

    def _answers(self, server: Process) -> bool:
        if server.popen.poll() is not None:
            raise SandboxError(f"it ended with {server.popen.returncode}:\n{server.output[-2500:]}")
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{self.port}/api/health", trust_env=False).status_code == 200
        return False

    def _stop(self, kind: str) -> None:
        """As by Ctrl-C, twice: a worker then leaves its runs alone."""
        process = self._lasting.pop(kind, None)
        for _ in range(2):
            if process is not None and process.popen.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.popen.wait(2.0)
        if process is not None:
            process.terminate()


def _decoded(encoded: str) -> Mapping[str, str]:
    pairs = b64decode(encoded).decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)
