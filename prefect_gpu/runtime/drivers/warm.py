"""The driver's side of the warm interpreter: keep one ready, hand it launches, say loudly when it cannot help."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_gpu.runtime.drivers.zygote import PLACEHOLDER

PATIENCE_S = 10.0
"""For so long an interpreter that is still importing is waited for: a cold start would begin to import only now.

On an idle machine it takes one to three seconds. Where it takes longer, two that import at once slow each other down.
"""
_ATTEMPTS = 3  # in a row that did not become ready
_PAUSE_SECONDS = 1.0  # before another attempt, doubled each time
_WELL_S = 10.0  # one that was ready for so long was well, whatever ends it


class Declined(Exception):
    """This launch has to be started cold; nothing of it was started. The message says why."""


class Interrupted(Exception):
    """Whoever was to start this launch died meanwhile: whether the run began is in its folder."""


class WarmInterpreter:
    """One warm interpreter, replaced when it dies or when what it has loaded changes on disk.

    Args:
        preload: Modules to import ahead.
        after_fork: ``"module:function"``, called in each fork before the run's own module; or None.
        logger: Told when warm starts are not to be had, and why.
        environ: Its environment; None: the worker's own.
        umask: Its umask; -1: the worker's own.
        patience_s: For so long a launch waits for an interpreter that is still importing.
    """

    def __init__(
        self,
        preload: Sequence[str],
        after_fork: str | None,
        logger: Logger | LoggerAdapter[Any],
        environ: Mapping[str, str] | None = None,
        umask: int = -1,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._task = json.dumps({"preload": list(preload), "after_fork": after_fork})
        # Copied, since what the worker imports for itself may change it later.
        self._environ = dict(os.environ if environ is None else environ)
        self._umask, self._patience_s = umask, patience_s
        self._logger = logger
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()  # ready, or known not to become so
        self._ready = False
        self._died_at_once = 0  # in a row, interpreters that were just ready
        self._hopeless: str | None = None

    def start(self) -> None:
        """Begin to warm up, in the background."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="warm interpreter")

    async def close(self) -> None:
        """End the warm interpreter; what it has started goes on."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        self._ready, self._hopeless = False, "the driver is closed"
        self._settled.set()

    async def launch(self, job: dict[str, Any]) -> dict[str, Any]:
        """Start a run warm.

        Args:
            job: What :mod:`~prefect_gpu.runtime.drivers.zygote` takes, without the id.

        Returns:
            The contents of the run's ``process.json``.

        Raises:
            Declined: Start it cold.
            Interrupted: Look into the run's folder.
            RuntimeError: It could not be started, and could not be started cold either.
        """
        try:
            await asyncio.wait_for(self._settled.wait(), self._patience_s)
        except asyncio.TimeoutError:
            raise Declined("the warm interpreter is still importing") from None
        process = self._process
        if self._hopeless is not None:
            raise Declined(self._hopeless)
        if not self._ready or process is None or process.stdin is None:
            raise Declined("the warm interpreter has died and is being replaced")
        number = next(self._ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            process.stdin.write((json.dumps({"id": number, **job}) + "\n").encode())
            message = await answer
        finally:
            self._pending.pop(number, None)
        if "cold" in message:
            if message["stale"]:
                self._replace(process)
            raise Declined(message["cold"])
        if "gone" in message:
            raise Interrupted("the supervisor ended before it had started the run")
        if "error" in message:
            raise RuntimeError(message["error"])
        return message["started"]

    async def _keep(self) -> None:
        failures = 0
        while failures < _ATTEMPTS and self._hopeless is None:
            self._settled.clear()
            if await self._live():
                failures = 0
                if self._died_at_once > 1:  # it may have no room in memory: the next one is not begun at once
                    self._settled.set()
                    await asyncio.sleep(_PAUSE_SECONDS)
                continue
            failures += 1
            self._settled.set()  # let nobody wait for this
            if failures < _ATTEMPTS and self._hopeless is None:
                await asyncio.sleep(_PAUSE_SECONDS * 2 ** (failures - 1))
        if self._hopeless is None:
            self._give_up(f"the warm interpreter ended {_ATTEMPTS} times before it was ready")

    async def _live(self) -> bool:
        """One warm interpreter from its start to its end. Returns whether it became ready."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "prefect_gpu.runtime.drivers.zygote", self._task,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                env={**self._environ, PLACEHOLDER: " " * 128},
                start_new_session=True,  # Ctrl-C is for the worker
                limit=1 << 20,
                umask=self._umask,
            )  # fmt: skip
        except OSError as error:
            self._logger.warning("The warm interpreter could not be started: %s", error)
            return False
        ready_at: float | None = None
        self._process = process
        try:
            async for message in _messages(process):
                ready_at = time.monotonic() if ready_at is None and "ready" in message else ready_at
                self._heed(message)
            died = self._process is process and self._hopeless is None
            if died:
                self._logger.warning("The warm interpreter died (exit code %s).", await process.wait())
            at_once = died and ready_at is not None and time.monotonic() - ready_at < _WELL_S
            self._died_at_once = self._died_at_once + 1 if at_once else 0
            return ready_at is not None
        finally:
            if self._process is process:
                self._process, self._ready = None, False
                self._settled.clear()
            await _end(process)
            # Its forks hold the pipe until they have said that their run has begun: at the end of file, whoever
            # could still start a run for us is gone.
            async for message in _messages(process):
                self._heed(message)
            for waiting in self._pending.values():
                if not waiting.done():
                    waiting.set_exception(Interrupted("the warm interpreter died"))

    def _heed(self, message: dict[str, Any]) -> None:
        if "id" in message:
            waiting = self._pending.get(message["id"])
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        elif "unfit" in message:
            self._give_up(message["unfit"])
        else:
            for module, error in message["failed"].items():
                self._logger.warning("Warm starts go without %s, which cannot be imported: %s", module, error)
            self._ready = True
            self._settled.set()

    def _replace(self, process: asyncio.subprocess.Process) -> None:
        """Let this interpreter end once it has answered what it was asked; the keeper then starts another."""
        if self._process is process and process.stdin is not None:
            self._process, self._ready = None, False
            self._settled.clear()
            process.stdin.close()

    def _give_up(self, reason: str) -> None:
        self._hopeless = reason
        self._settled.set()
        self._logger.warning("No warm starts: %s. Every run is started cold.", reason)


async def _messages(process: asyncio.subprocess.Process) -> AsyncIterator[dict[str, Any]]:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        yield json.loads(line)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), 1.0)
    except asyncio.TimeoutError:
        process.kill()  # busy importing
        await process.wait()
