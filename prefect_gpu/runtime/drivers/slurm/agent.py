"""The agent: one on each node of an allocation. It starts runs there, and watches over them, as a worker does at home.

Started by ``srun`` in the allocation, it connects to the worker, and to the next one after that: where that is, and how
runs are started, stands in a file of the state folder, which the nodes see as the worker does. Without a worker, the
runs go on. It ends with its allocation, when the worker has given it up, and when nobody has needed it for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect_gpu.runtime import files
from prefect_gpu.runtime.drivers import intent, priority, supervisor
from prefect_gpu.runtime.drivers.base import LaunchError, LaunchSpec
from prefect_gpu.runtime.drivers.handle import ProcessHandle
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.drivers.slurm import words
from prefect_gpu.runtime.drivers.slurm.cores import own_cores
from prefect_gpu.runtime.drivers.slurm.tunnel import HUB, OPENS_S, SshTunnel, from_node
from prefect_gpu.runtime.health_watch import watch_gpus
from prefect_gpu.runtime.telemetry import take_inventory
from prefect_gpu.runtime.telemetry.faults import Fault
from prefect_gpu.training.client import ChannelClient

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 1.0
_CUT_OFF_S = 15.0  # without a worker for so long, no run stays slowed down for others
_LAST_WORDS_S = 2.0
_WARMS_UP_S = 30.0  # a new node's first run waits so long: from cold, it would import the same beside its interpreter
_ENDED_BY_SLURM = (None, -signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM)
_SIGNALS_S = 0.5

logger = logging.getLogger("prefect_gpu.slurm.agent")


class Agent:
    """See the module.

    Args:
        folder: Of the pool's allocations.
        allocation: Its name.
        rank: Which of the allocation's nodes this is.
    """

    def __init__(self, folder: Path, allocation: str, rank: int) -> None:
        self._folder = folder
        self._record: words.Record = files.build(words.Record, files.load(folder / f"{allocation}.json"))
        settings = self._settings()
        assert settings is not None, f"{folder / words.AGENTS} cannot be read"
        self._python = settings.python
        self._own = {name: os.environ[name] for name in settings.own if name in os.environ}
        if settings.umask != -1:
            os.umask(0o077)  # of its own files; runs get theirs
        self._driver = ProcessDriver(
            warm=settings.warm,
            preload=settings.preload,
            after_fork=settings.after_fork,
            environ=None if settings.environ is None else settings.environ | self._own,
            umask=settings.umask,
            warm_patience_s=_WARMS_UP_S,
            echo=lambda label, line: None,  # the worker reads it where it is written
            logger=logger,
        )
        self._alone_s = settings.alone_s
        self._cores: tuple[int, ...] = ()
        self._handles: dict[str, ProcessHandle] = {}
        self._listeners: dict[str, intent.Listener] = {}
        self._slowed: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._tunnel = SshTunnel(settings.tunnel.via if settings.tunnel else "", logger)
        self._loop = asyncio.get_running_loop()
        self._client = ChannelClient(
            words.agent_id(allocation, rank),
            self._record.token,
            self._address,
            lambda kind, data: self._call(self._instructed, kind, data),
            superseded=lambda: self._call(self._over.set),
        )

    async def run(self) -> bool:
        """Serve until it is over; then nothing that it has started is left.

        Returns:
            Whether it has ever reached a worker, or was told to end before that.
        """
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(signum, self._told_to_end)
        await self._driver.start()
        tunnel = asyncio.create_task(self._tunnel.run(), name="tunnel")
        self._client.start()
        watching = asyncio.create_task(self._watch_gpus(), name="health")
        alone_s, met = 0.0, False
        while not self._over.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), _LOOK_S)
            if self._client.broken_seconds() > _CUT_OFF_S:
                self._hurry_all()
            met = met or self._client.connected
            if not met and self._tunnel.failing_s > min(OPENS_S, self._alone_s):
                logger.error("The worker cannot be reached: %s.", self._tunnel.trouble)
                break
            unneeded = not self._client.connected and not self._handles
            alone_s = alone_s + _LOOK_S if unneeded else 0.0
            if alone_s > self._alone_s and met:
                logger.warning("No worker has been there for %.0f s, and no run is: the node is given back.", alone_s)
                break
            if alone_s > self._alone_s:
                said = f" Ssh said last: {self._tunnel.said}" if self._tunnel.said else ""
                logger.error("No worker could be reached at %s for %.0f s.%s", self._address(), alone_s, said)
                break
        watching.cancel()
        for run_dir in self._handles:
            (Path(run_dir) / words.CUT_OFF).touch()
        await asyncio.gather(*(handle.stop(0) for handle in list(self._handles.values())))
        await self._driver.close()
        await asyncio.to_thread(self._client.close, _LAST_WORDS_S)
        tunnel.cancel()
        await asyncio.gather(tunnel, return_exceptions=True)
        return met or self._over.is_set()

    def _told_to_end(self) -> None:
        """Slurm ends the allocation. Runs are not given the time for last words, which would be of a crash."""
        self._client.post(words.ENDING, {})
        self._over.set()

    # -- what it is told ------------------------------------------------------------------------------------------

    def _call(self, what: Any, *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(what, *arguments)

    def _instructed(self, kind: str, data: dict[str, Any]) -> None:
        what, _, about = kind.partition(":")
        if what in (words.BIND, words.PRIORITY, words.DUTY):
            self._adjust(what, about, data)
            return
        task = asyncio.create_task(self._answer(what, about, data), name=what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, what: str, number: str, data: dict[str, Any]) -> None:
        known: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            words.DESCRIBE: self._describe,
            words.LAUNCH: self._launch,
            words.ADOPT: self._adopt,
            words.STOP: self._stop,
            words.CANCELLED: self._cancelled,
        }
        does = known.get(what)
        try:
            if does is None:
                raise LaunchError(f"the agent is of another version than the worker, and cannot {what!r}")
            told: dict[str, Any] = await does(**data)
        except LaunchError as error:
            told = words.error_as_json(error)
        except Exception as error:
            logger.exception("%s failed", what)
            told = words.error_as_json(LaunchError(f"{type(error).__name__}: {error}"))
        self._client.post(words.ANSWER, {"id": number, **told})

    async def _describe(self) -> dict[str, Any]:
        inventory = await asyncio.to_thread(
            take_inventory,
            virtual_devices=self._record.virtual_devices,
            virtual_device_memory_bytes=self._record.virtual_device_memory_bytes,
        )
        if not self._cores:  # each worker asks anew
            granted = int(os.environ.get("SLURM_CPUS_ON_NODE") or 0) or len(inventory.cpus)
            self._cores = own_cores(inventory.cpus, granted)
        return {
            "host": socket.gethostname(),
            "job": os.environ.get("SLURM_JOB_ID", self._record.job),
            "switches": switches_of(os.environ),
            "cpus": list(self._cores),
            "devices": [
                {"id": one.id, "kind": one.kind, "memory_bytes": one.memory_bytes, "virtual": one.virtual}
                | {"cores": list(one.cores), "capability": one.capability, "links": list(one.links)}
                for one in inventory.devices
            ],
            "findings": [f"{one.text} {one.remedy or ''}".strip() for one in inventory.findings if one.level != "ok"],
            "adjustable": priority.adjustable(),
        }

    async def _watch_gpus(self) -> None:
        """Tell the worker, which decides, of what befalls the GPUs that Slurm has granted here."""
        inventory = await asyncio.to_thread(take_inventory, virtual_devices=0, virtual_device_memory_bytes=0)
        own = [device.id for device in inventory.devices if not device.virtual]

        def found(faults: Sequence[Fault]) -> None:
            self._client.post(words.FAULTS, {"faults": [dataclasses.asdict(fault) for fault in faults]})

        await watch_gpus(own, found, logger)

    async def _launch(self, run_dir: str) -> dict[str, Any]:
        path = Path(run_dir) / words.SPEC
        told = await asyncio.to_thread(files.load, path)
        path.unlink()
        if told["told_at"]:
            listener = self._listeners[run_dir] = intent.Listener()
            listener.listen()
            told["env"] |= listener.variables(*told["told_at"])
        program, *arguments = told["argv"]
        spec = LaunchSpec(
            run_id=told["run_id"],
            run_dir=Path(run_dir),
            argv=(sys.executable if program == self._python else program, *arguments),
            env=told["env"] | self._own,
            cwd=Path(told["cwd"]),
            cpus=tuple(told["cpus"]),
            label=told["label"],
            stream_output=False,
        )
        return self._follow(run_dir, await self._driver.launch(spec))

    async def _adopt(self, run_id: str, run_dir: str) -> dict[str, Any]:
        handle = self._handles.get(run_dir) or await self._driver.adopt(run_id, Path(run_dir))
        return {} if handle is None else self._follow(run_dir, handle)

    def _follow(self, run_dir: str, handle: ProcessHandle) -> dict[str, Any]:
        self._handles[run_dir] = handle
        task = asyncio.create_task(self._report(run_dir, handle), name=f"run {handle.run_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return {"pid": handle.pid, "warm": handle.warm}

    async def _report(self, run_dir: str, handle: ProcessHandle) -> None:
        report = await handle.wait()
        if report.returncode in _ENDED_BY_SLURM:  # whose signal goes to all processes of the allocation, in any order
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), _SIGNALS_S)
        if self._over.is_set() and report.returncode != 0:
            (Path(run_dir) / words.CUT_OFF).touch()
            return  # it is the allocation that ended, which the worker hears of Slurm
        self._handles.pop(run_dir, None)
        self._slowed.discard(run_dir)
        if (listener := self._listeners.pop(run_dir, None)) is not None:
            listener.close()
        told = dataclasses.asdict(dataclasses.replace(report, tail=()))  # it may be longer than a frame
        self._client.post(words.EXIT, {"run_dir": run_dir, **told})

    async def _stop(self, run_dir: str, grace_seconds: float) -> dict[str, Any]:
        if (handle := self._handles.get(run_dir)) is not None:
            await handle.stop(grace_seconds)
        return {}

    async def _cancelled(self, run_dir: str) -> dict[str, Any]:
        if (listener := self._listeners.get(run_dir)) is not None:
            await asyncio.to_thread(listener.cancel)
        return {}

    def _adjust(self, what: str, run_dir: str, data: dict[str, Any]) -> None:
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

    def _hurry_all(self) -> None:
        """No run may stand still for others while nobody is there who would let it go on."""
        while self._slowed:
            if (handle := self._handles.get(self._slowed.pop())) is not None:
                handle.set_duty(1.0)

    # -- the worker -----------------------------------------------------------------------------------------------

    def _settings(self) -> words.Settings | None:
        return files.read(words.Settings, self._folder / words.AGENTS, logger.warning)

    def _address(self) -> str | None:
        settings = self._settings()
        if settings is None:
            return None
        self._alone_s = settings.alone_s
        tunnel, ports = settings.tunnel, self._record.ports
        if tunnel is None or not ports:
            return settings.url
        # Another worker may be elsewhere, and the tunnel has to lead there then.
        self._call(self._tunnel.aim, from_node(tunnel, ports) if tunnel.opened_by == "node" else [])
        return f"ws://127.0.0.1:{ports[HUB]}"


def switches_of(environ: Mapping[str, str]) -> list[str]:
    """The switches above this node, from the topmost to the one that it is at, as Slurm knows them; none: it does not.

    Example:
        >>> told = {"SLURM_TOPOLOGY_ADDR": "core.rack4.gpu17", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
        >>> switches_of(told)
        ['core', 'rack4']
    """
    count = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".").count("switch")
    return environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")[:count]


async def _serve(folder: str, allocation: str) -> bool:
    return await Agent(Path(folder), allocation, int(os.environ.get("SLURM_NODEID") or 0)).run()


def guard(work: Callable[[], None]) -> int:
    """Do the work in a process of its own; when that ends, however it does, end whatever it has started.

    Not every Slurm finds processes again whose parents have ended (``ProctrackType``): a run must not outlive the agent
    that watches over it, since it is then started anew elsewhere.

    Returns:
        The exit code.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    worker = os.fork()
    if worker == 0:
        work()
        return 0
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)  # Slurm's, for the agent
    status = 0
    while True:
        try:
            ended, ended_with = os.waitpid(-1, 0)
        except ChildProcessError:
            return os.waitstatus_to_exitcode(status)
        if ended == worker:
            status, worker = ended_with, 0
        if not worker:
            for process in supervisor.descendants(os.getpid()):
                supervisor.send(process.pid, process.start_ticks, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Take the folder of the pool's allocations, and the name of this one."""

    def work() -> None:
        # What a run leaves behind when its supervisor ends is this process's.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        if not asyncio.run(_serve(*arguments)):
            sys.exit(1)  # so that those who wait are told of it

    sys.exit(abs(guard(work)))


if __name__ == "__main__":
    main(sys.argv[1:3])
