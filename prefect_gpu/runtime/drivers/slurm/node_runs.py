"""The runs of one node, as its agent starts them, watches over them, and tells of them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.drivers import intent, supervisor
from prefect_gpu.runtime.drivers.base import LaunchSpec
from prefect_gpu.runtime.drivers.handle import ProcessHandle
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.drivers.slurm import words
from prefect_gpu.runtime.drivers.slurm.folders import Folders
from prefect_gpu.runtime.drivers.slurm.pump import OutputPump

_SIGNALS_S = 0.5


class NodeRuns:
    """See the module. A launch is known by the folder that the worker has for it.

    Args:
        driver: Starts them.
        folders: Where their files are.
        python: The worker's interpreter, which stands for this one.
        post: Tells the worker something: kind and data.
        crowded: Whether so much waits for the worker that output must wait.
        over: Set when the allocation ends.
    """

    def __init__(
        self,
        driver: ProcessDriver,
        folders: Folders,
        python: str,
        *,
        post: Callable[[str, dict[str, Any]], None],
        crowded: Callable[[], bool],
        over: asyncio.Event,
    ) -> None:
        self._driver, self._folders, self._python = driver, folders, python
        self._post, self._crowded, self._over = post, crowded, over
        self._handles: dict[str, ProcessHandle] = {}
        self._pumps: dict[str, tuple[OutputPump, asyncio.Task[None]]] = {}
        self._ended: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}  # what was said of each: its begin, its end
        self._listeners: dict[str, intent.Listener] = {}
        self._slowed: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def any(self) -> bool:
        """Whether any runs."""
        return bool(self._handles)

    def silence_all(self) -> None:
        """Have none of them say anything more to Prefect: see :meth:`.ProcessHandle.silence`."""
        for handle in self._handles.values():
            handle.silence()

    async def end_all(self) -> None:
        """The allocation is over, and so are they."""
        for run_dir in self._handles:
            (self._folders.of(run_dir) / words.CUT_OFF).touch()
        await asyncio.gather(*(handle.stop(0) for handle in list(self._handles.values())))

    async def launch(self, run_dir: str, spec: dict[str, Any] | None = None) -> dict[str, Any]:
        told = await asyncio.to_thread(self._folders.specified, run_dir, spec)
        if told["told_at"]:
            listener = self._listeners[run_dir] = intent.Listener()
            listener.listen()
            told["env"] |= listener.variables(*told["told_at"])
        program, *arguments = told["argv"]
        launch = LaunchSpec(
            run_id=told["run_id"],
            run_dir=self._folders.of(run_dir),
            argv=(sys.executable if program == self._python else program, *arguments),
            env=told["env"],
            cwd=Path(told["cwd"]),
            cpus=tuple(told["cpus"]),
            label=told["label"],
            stream_output=False,
        )
        try:
            handle = await self._driver.launch(launch)
        except BaseException:
            self._unlisten(run_dir)
            raise
        return self._follow(run_dir, handle)

    async def adopt(self, run_id: str, run_dir: str) -> dict[str, Any]:
        if run_dir in self._ended:  # this worker may not have heard it, nor the one before
            began, end = self._ended[run_dir]
            self._post(words.EXIT, end)
            return began
        if self._folders.own and run_dir in self._handles:
            return self._began(self._handles[run_dir])
        handle = self._handles.get(run_dir) or await self._driver.adopt(run_id, self._folders.of(run_dir))
        return {} if handle is None else self._follow(run_dir, handle)

    @staticmethod
    def _began(handle: ProcessHandle) -> dict[str, Any]:
        return {"pid": handle.pid, "warm": handle.warm}

    def _follow(self, run_dir: str, handle: ProcessHandle) -> dict[str, Any]:
        self._handles[run_dir] = handle
        if self._folders.own:
            pump = OutputPump(
                self._folders.of(run_dir) / supervisor.OUTPUT,
                lambda at, block: self._post(words.OUTPUT, {"run_dir": run_dir, "at": at, "block": block}),
                self._crowded,
            )
            self._pumps[run_dir] = pump, asyncio.create_task(pump.run(), name=f"output {handle.run_id}")
        task = asyncio.create_task(self._report(run_dir, handle), name=f"run {handle.run_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return self._began(handle)

    async def _report(self, run_dir: str, handle: ProcessHandle) -> None:
        report = await handle.wait()
        if report.returncode in words.ENDED_BY_SLURM:  # its signal goes to all of the allocation, in any order
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), _SIGNALS_S)
        if self._over.is_set() and report.returncode != 0:
            (self._folders.of(run_dir) / words.CUT_OFF).touch()
            return  # it is the allocation that ended, which the worker hears of Slurm
        if run_dir in self._pumps:
            pump, pumping = self._pumps.pop(run_dir)
            pump.finish()
            await asyncio.wait((pumping,))
        self._handles.pop(run_dir, None)
        self._slowed.discard(run_dir)
        self._unlisten(run_dir)
        # Its last lines may be longer than a frame, and the worker has them.
        told = {"run_dir": run_dir, **dataclasses.asdict(dataclasses.replace(report, tail=()))}
        if self._folders.own:
            self._ended[run_dir] = self._began(handle), told
        self._post(words.EXIT, told)

    def _unlisten(self, run_dir: str) -> None:
        if (listener := self._listeners.pop(run_dir, None)) is not None:
            listener.end()

    async def stop(self, run_dir: str, grace_seconds: float) -> dict[str, Any]:
        if (handle := self._handles.get(run_dir)) is not None:
            await handle.stop(grace_seconds)
        return {}

    async def give(self, run_dir: str, name: str, content: str) -> dict[str, Any]:
        if run_dir in self._handles:
            path = self._folders.of(run_dir) / Path(name).name
            await asyncio.to_thread(words.write_secret_bytes, path, base64.b64decode(content))
        return {}

    async def announce(self, what: str, run_dir: str) -> dict[str, Any]:
        if (listener := self._listeners.get(run_dir)) is not None:
            await asyncio.to_thread(listener.say, what)
        return {}

    def adjust(self, what: str, run_dir: str, data: dict[str, Any]) -> None:
        handle = self._handles.get(run_dir)
        if handle is None:
            return
        if what == words.BIND:
            handle.bind(tuple(data["cpus"]))
        elif what == words.PRIORITY:
            handle.set_priority(data["weight"])
        else:
            handle.set_duty(data["part"])
            self._slowed.add(run_dir)

    def hurry_all(self) -> None:
        """No run may stand still for others while nobody is there who would let it go on."""
        while self._slowed:
            if (handle := self._handles.get(self._slowed.pop())) is not None:
                handle.set_duty(1.0)

    def forget(self, run_dir: str) -> None:
        """The worker has all that there is of one that has ended."""
        if self._ended.pop(run_dir, None) is not None:
            self._folders.forget(run_dir)
