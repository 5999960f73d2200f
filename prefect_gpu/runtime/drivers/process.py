"""The `process` driver: runs are processes of this machine.

Each run has a supervisor of its own (:mod:`~prefect_gpu.runtime.drivers.supervisor`), so that neither the end of
the worker nor the run's own children can lose its exit code, its output or its clean end. It is started warm, as a
fork of an interpreter that has everything imported, when that makes no difference to it, and cold otherwise.
"""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.disk import files
from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import Driver, LaunchError, LaunchSpec
from prefect_gpu.runtime.drivers.fork_compatibility import unlike_warm
from prefect_gpu.runtime.drivers.handle import ProcessHandle
from prefect_gpu.runtime.drivers.launched import Started, find_or_revoke
from prefect_gpu.runtime.drivers.output import repeat
from prefect_gpu.runtime.drivers.warm import PATIENCE_S, Declined, Interrupted, WarmInterpreter


class ProcessDriver(Driver):
    """Starts runs as processes of this machine.

    Args:
        warm: Whether runs may be forks of a warm interpreter.
        preload: Modules that the warm interpreter imports ahead.
        after_fork: ``"module:function"``, called without arguments in a warm run once its environment is set and
            before its own module runs; for state that was loaded ahead and depends on the environment.
        environ: The environment that most runs will have: what is loaded ahead sees it; None: the worker's own.
        umask: That of runs; -1: the worker's own.
        warm_patience_s: For so long a run waits for a warm interpreter that is still importing.
        echo: Called with a run's label and each line of its output; by default the line is printed.
        logger: Told which runs start cold, and why.

    Example:
        >>> driver = ProcessDriver(  # doctest: +SKIP
        ...     warm=True, preload=["prefect.main"], after_fork=None, echo=None, logger=logger
        ... )
        >>> await driver.start()  # doctest: +SKIP
        >>> handle = await driver.launch(spec)  # doctest: +SKIP
        >>> report = await handle.wait()  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        warm: bool,
        preload: Sequence[str] = (),
        after_fork: str | None = None,
        environ: Mapping[str, str] | None = None,
        umask: int = -1,
        warm_patience_s: float = PATIENCE_S,
        echo: Callable[[str, str], None] | None = None,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._warm = WarmInterpreter(preload, after_fork, logger, environ, umask, warm_patience_s) if warm else None
        self._umask = umask
        self._echo = echo or repeat
        self._logger = logger
        self._handles: set[ProcessHandle] = set()
        self._said: set[str] = set()

    async def start(self) -> None:
        if self._warm is not None:
            self._warm.start()

    async def close(self) -> None:
        if self._warm is not None:
            await self._warm.close()
        for handle in tuple(self._handles):
            handle.release()

    async def launch(self, spec: LaunchSpec) -> ProcessHandle:
        run_dir = _own_folder(spec.run_dir)
        name = spec.label or spec.run_id
        job = _job(spec, run_dir)
        try:
            said = await self._start_warm(spec, name, run_dir, job)
            if said is None:
                said = await asyncio.to_thread(_start_cold, {"id": 0, **job}, self._umask)
            started: Started | None = files.build(Started, said)
        except (Interrupted, files.UnreadableError) as interrupted:
            # Nobody is left who could still start it. If it has begun, its handle ends and reports what is there.
            started = await self._find_or_revoke(run_dir)
            if started is None:
                raise LaunchError(str(interrupted)) from interrupted
        except (OSError, RuntimeError) as error:
            failed = LaunchError(str(error))
            failed.no_room = any(f"[Errno {number}]" in str(error) for number in supervisor.NO_ROOM)
            raise failed from error
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(spec.run_id, run_dir))
            raise
        assert started is not None
        return self._handle(spec.run_id, run_dir, started, 0, name, spec.stream_output)

    async def adopt(self, run_id: str, run_dir: Path) -> ProcessHandle | None:
        run_dir = _own_folder(run_dir)
        started = await self._find_or_revoke(run_dir)
        if started is None:
            return None
        output = run_dir / supervisor.OUTPUT
        offset = output.stat().st_size if output.exists() else 0
        return self._handle(run_id, run_dir, started, offset, run_id, True)

    def _handle(
        self, run_id: str, run_dir: Path, started: Started, offset: int, label: str, stream: bool
    ) -> ProcessHandle:
        echo = functools.partial(self._echo, label) if stream else None
        handle = ProcessHandle(run_id, run_dir, started, echo, offset, self._logger)
        self._handles.add(handle)
        handle.when_over(lambda: self._handles.discard(handle))
        return handle

    async def _start_warm(
        self, spec: LaunchSpec, name: str, run_dir: Path, job: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Start a run warm. Returns None, with nothing started, if it has to be started cold."""
        if self._warm is None:
            return None
        if unlike := unlike_warm(spec.argv, spec.env, spec.cwd):
            reason, expected_warm = unlike
            self._say_cold(name, reason, loudly=expected_warm)
            return None
        try:
            return await self._warm.launch(job)
        except Declined as declined:
            self._say_cold(name, str(declined), loudly=True)
            return None
        except Interrupted as interrupted:
            if (run_dir / supervisor.CLAIM).exists():
                raise
            self._say_cold(name, str(interrupted), loudly=True)
            return None

    def _say_cold(self, name: str, reason: str, *, loudly: bool) -> None:
        """Say why a run starts cold: loudly, but the same thing loudly only once."""
        level = "warning" if loudly and reason not in self._said else "info"
        self._said.add(reason)
        getattr(self._logger, level)("Run %s is started cold: %s.", name, reason)

    async def _abandon(self, run_id: str, run_dir: Path) -> None:
        started = await self._find_or_revoke(run_dir)
        if started is not None:
            await ProcessHandle(run_id, run_dir, started, None, 0, self._logger).stop(0)

    async def _find_or_revoke(self, run_dir: Path) -> Started | None:
        return await asyncio.to_thread(find_or_revoke, run_dir, self._logger.error)


def _own_folder(run_dir: Path) -> Path:
    folder = Path(run_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _job(spec: LaunchSpec, run_dir: Path) -> dict[str, Any]:
    return {
        "run_dir": str(run_dir),
        "argv": list(spec.argv),
        "env": dict(spec.env),
        "cwd": str(Path(spec.cwd).absolute()),
        "cpus": list(spec.cpus),
    }


def _start_cold(job: dict[str, Any], umask: int) -> dict[str, Any]:
    """Start a supervisor of its own for this run, and wait until it says that the run exists."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        umask=umask,
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        try:
            process.stdin.write(json.dumps(job).encode())
            process.stdin.close()
        except BrokenPipeError:
            pass  # it says why below, or its exit code does
        line = process.stdout.readline()
    if not line:
        raise Interrupted(f"its supervisor ended with exit code {process.wait()} before it had started the run")
    answer = json.loads(line)
    if "error" in answer:
        process.wait()
        raise RuntimeError(answer["error"])
    process.returncode = 0  # it is reaped by its pid when it ends (handle.reap), also by a later driver
    return answer["started"]
