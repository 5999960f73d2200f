"""A private Prefect server with workers, for the demo, the benchmarks and the tests: own folder, free port, no traces.

Nothing here touches the user's own Prefect: the profile, the database and the state folder lie in the sandbox.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, NoReturn

import httpx
import psutil

from prefect_gpu.lab.migrated import DATABASE, MigratedDatabase

_PREFECT = [sys.executable, "-m", "prefect"]
_SERVER = [sys.executable, "-m", "prefect_gpu.lab.prefect_server", "server", "start"]
_LONGEST_PAUSE_S = 0.5
_ELSEWHERE = ("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_CONNECTION_URL")


class SandboxError(RuntimeError):
    """Something in the sandbox did not start or answer. The message holds the end of its log."""


def free_port() -> int:
    """A TCP port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], Any], *, what: str, timeout_s: float = 60.0, every_s: float = 0.05) -> Any:
    """Wait for a condition to give something true, and return that.

    Args:
        every_s: The pause between two looks at first. It grows to half a second: what takes long need not be seen soon.

    Raises:
        SandboxError: It did not within the time.
    """
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise SandboxError(f"Waited {timeout_s:.0f} s in vain: {what}")
        time.sleep(every_s)
        every_s = max(every_s, min(_LONGEST_PAUSE_S, 1.2 * every_s))


class Process:
    """A background process with its output in a file. It leads a session of its own.

    Args:
        held: It waits for :meth:`let_go`, on its standard input.
        popen: What starts it, with the arguments of :class:`subprocess.Popen`.
    """

    def __init__(
        self,
        command: list[str],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path,
        held: bool = False,
        popen: Callable[..., Any] = subprocess.Popen,
    ) -> None:
        self.log = log
        self._file: IO[bytes] = log.open("ab")
        self._begin = self._file.tell()  # after what an earlier process has left there
        self.popen: subprocess.Popen[bytes] = popen(
            command,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.PIPE if held else subprocess.DEVNULL,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )

    def let_go(self) -> None:
        """Let it begin."""
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: whoever waits for what it does will say so
            self.popen.stdin.write(b"\n")
            self.popen.stdin.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self.popen.pid

    @property
    def output(self) -> str:
        """Everything it has printed so far."""
        with self.log.open("rb") as file:
            file.seek(self._begin)
            return file.read().decode(errors="replace")

    def wait_for_output(self, text: str, *, timeout_s: float = 300.0) -> None:
        """Wait until it has printed something.

        Raises:
            SandboxError: It did not, or it ended before.
        """

        def printed() -> bool:
            if text in self.output:
                return True
            if self.popen.poll() is not None:
                raise SandboxError(f"It ended with code {self.popen.returncode}:\n{self.output[-2000:]}")
            return False

        wait_until(printed, what=f"{text!r} in {self.log}", timeout_s=timeout_s)

    def kill(self) -> None:
        """``kill -9``: the process itself, and nothing that it started."""
        self.popen.kill()
        self.popen.wait()

    def terminate(self, *, timeout_s: float = 60.0) -> int:
        """SIGTERM, and wait for its end; SIGKILL after the time. Returns the exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            return self.popen.wait()
        finally:
            self._file.close()
            if self.popen.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self.popen.stdin.close()


class Sandbox:
    """A folder, a Prefect server in it, and any number of workers.

    Args:
        folder: Where everything goes; a temporary folder by default, removed at the end.
        settings: More environment variables for everything in the sandbox.
        host: The address that the server listens on, one of this machine's; ``"0.0.0.0"`` for all of them.
        popen: What starts its processes; see :class:`Process`.

    Example:
        >>> with Sandbox() as sandbox:                                    # doctest: +SKIP
        ...     sandbox.prefect("work-pool", "create", "gpus", "--type", "gpu")
        ...     worker = sandbox.start_worker("gpus")
    """

    def __init__(
        self,
        folder: Path | None = None,
        settings: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        popen: Callable[..., Any] = subprocess.Popen,
    ) -> None:
        self._host, self._popen = host, popen
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="prefect-gpu-sandbox-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home = self.folder / "home"
        self.home.mkdir(exist_ok=True)
        self.port = free_port()
        self.ui_url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{self.port}"
        self.api_url = f"{self.ui_url}/api"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self.env = {
            **kept,
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": self.api_url,
            "PREFECT_SERVER_UI_API_URL": self.api_url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
            "PREFECT_SERVER_LOG_RETRYABLE_ERRORS": "true",  # why it answered 503, which SQLite makes it do
            # Marking hundreds of waiting runs as late locks a database on SQLite for minutes.
            "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "3600",
            "PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(self.home / "gpu"),
            "DO_NOT_TRACK": "1",
            "COLUMNS": "200",  # logs are searched for words, which must not be parted by the end of a line
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            **(settings or {}),
        }
        self._server: Process | None = None
        self._processes: list[Process] = []
        self._number = 0

    def __enter__(self) -> Sandbox:
        try:
            self.start_server()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        # Only the main thread may say what signals do, and only it is interrupted by them.
        quiet = threading.current_thread() is threading.main_thread()
        with undisturbed() if quiet else contextlib.nullcontext():
            self.close()

    def start_server(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Start the Prefect server on the sandbox's port and wait until it answers.

        A new one begins with a copy of a database that was migrated before, if this machine has one.

        Args:
            meanwhile: Called once it is starting, for what can be done without it.
        """
        migrated = MigratedDatabase() if self._has_no_database() else None
        if migrated is not None and migrated.put(self.home):
            migrated = None
        self._server = self.start([*_SERVER, "--host", self._host, "--port", str(self.port)], "server")
        server = self._server
        if meanwhile is not None:
            meanwhile()

        def healthy() -> bool:
            if server.popen.poll() is not None:
                raise SandboxError(f"The Prefect server did not start:\n{server.output[-3000:]}")
            with contextlib.suppress(httpx.HTTPError):
                return client.get("/health").status_code == 200
            return False

        # One client: to make another for each question would take much of a core from the server.
        with httpx.Client(base_url=self.api_url, timeout=1.0, trust_env=False) as client:
            wait_until(healthy, what=f"the Prefect server ({server.log})", timeout_s=120.0, every_s=0.2)
        if migrated is not None:
            migrated.keep(self.home)

    def stop_server(self) -> None:
        """Stop the Prefect server; its database stays, and :meth:`start_server` starts it again."""
        if self._server is not None:
            self._server.terminate()
            self._processes.remove(self._server)
            self._server = None

    def prefect(self, *arguments: str, check: bool = True) -> str:
        """Run a ``prefect`` command in the sandbox and return what it printed."""
        return self.run([*_PREFECT, *arguments], check=check)

    def run(self, command: list[str], *, check: bool = True, env: Mapping[str, str] | None = None) -> str:
        """Run any command in the sandbox's environment and return its output.

        Raises:
            SandboxError: It failed (unless ``check`` is off).
        """
        done = subprocess.run(
            command, env={**self.env, **(env or {})}, cwd=self.folder, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise SandboxError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
        return done.stdout + done.stderr

    def start_worker(
        self,
        pool: str,
        *arguments: str,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        wait: bool = True,
        held: bool = False,
    ) -> Process:
        """Start ``prefect worker start`` and wait until it serves the pool.

        Args:
            arguments: More arguments for the command.
            env: More environment variables for this worker.
            wait: Off, the worker is not waited for.
            held: See :meth:`hold`; it is not waited for, either.
        """
        self._number += 1
        label = f"worker-{self._number}"
        command = ["worker", "start", "--pool", pool, "--name", name or label, *arguments]
        if held:
            return self.hold(command, label, imports=("prefect.cli.worker", "prefect_gpu.worker"), env=env)
        worker = self.start([*_PREFECT, *command], label, env)
        if wait:
            worker.wait_for_output("started!")
        return worker

    def hold(
        self,
        arguments: list[str],
        name: str,
        *,
        imports: Iterable[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Process:
        """Start a ``prefect`` command that imports what it needs and then waits for :meth:`Process.let_go`.

        Args:
            name: As of :meth:`start`.
            imports: The modules.
            cwd: Where it runs; in the sandbox's folder by default.
        """
        command = [sys.executable, "-m", "prefect_gpu.lab.held_prefect", ",".join(imports), *arguments]
        return self.start(command, name, env, cwd=cwd, held=True)

    def start(
        self,
        command: list[str],
        name: str,
        env: Mapping[str, str] | None = None,
        *,
        cwd: Path | None = None,
        held: bool = False,
    ) -> Process:
        """Start any command in the background, in the sandbox's environment; its output goes to ``<name>.log``."""
        log, env = self.folder / f"{name}.log", {**self.env, **(env or {})}
        process = Process(command, log=log, env=env, cwd=cwd or self.folder, held=held, popen=self._popen)
        self._processes.append(process)
        return process

    def runs_left(self) -> list[psutil.Process]:
        """Processes of runs of this sandbox that are alive, their supervisors included.

        A run leads a session of its own, and so do the server, the workers and their warm interpreters.
        """
        known = {process.pid for process in self._processes}
        left = []
        for process in self._own_processes():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                session = os.getsid(process.pid)
                warm_interpreter = session == process.pid and process.ppid() in known
                in_warm_session = session != process.pid and session in known
                if process.pid not in known and not warm_interpreter and not in_warm_session:
                    left.append(process)
        return left

    def close(self) -> None:
        """Stop everything that belongs to the sandbox, and remove its folder if it is a temporary one."""
        for process in reversed(self._processes):
            if process is not self._server:
                process.terminate(timeout_s=10.0)
        self.stop_server()
        for process in self._own_processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _has_no_database(self) -> bool:
        elsewhere = any(name in self.env for name in _ELSEWHERE)
        return not elsewhere and not (self.home / DATABASE).exists()

    def _own_processes(self) -> Iterator[psutil.Process]:
        return processes_of(self.home)


def stop_on_signals() -> None:
    """Let SIGTERM and SIGHUP do what Ctrl-C does: everything that was started must be stopped then, too.

    Under ``nohup``, SIGHUP stays ignored. Whoever is ended so, or by Ctrl-C, says it in a line: where it was is of no
    interest.
    """
    sys.excepthook = _excepthook
    # If it comes while a connection is given back, SQLAlchemy logs all of it with its traceback, and then passes it on.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C, requests to end and a terminal that is closed: a second one would leave something running."""
    ignored = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def processes_of(home: Path) -> Iterator[psutil.Process]:
    """The processes that have their ``PREFECT_HOME`` there, but for this one: all that a sandbox has started."""
    for process in psutil.process_iter():
        if process.pid != os.getpid() and _environ(process).get("PREFECT_HOME") == str(home):
            yield process


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("\nStopped.", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)
