"""The agent: one on each node of an allocation. It starts runs there, and watches over them, as a worker does at home.

Started by ``srun`` in the allocation, it connects to the worker, and to the next one after that: where that is, and how
runs are started, stands in a file of the state folder, which the nodes see as the worker does. Where they do not, it
came with the job's script, and whatever else is needed travels by that connection. Without a worker, the runs go on.
It ends with its allocation, when the worker has given it up, and when nobody has needed it for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.devices.health_watch import watch_gpus
from prefect_gpu.runtime.disk import files
from prefect_gpu.runtime.drivers import intent, priority
from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.drivers.slurm import words
from prefect_gpu.runtime.drivers.slurm.client import called
from prefect_gpu.runtime.drivers.slurm.cluster import SlurmError
from prefect_gpu.runtime.drivers.slurm.cores import own_cores
from prefect_gpu.runtime.drivers.slurm.folders import Folders, OwnFolders, SharedFolders
from prefect_gpu.runtime.drivers.slurm.guard import adopt_orphans, guarded
from prefect_gpu.runtime.drivers.slurm.node_runs import NodeRuns
from prefect_gpu.runtime.drivers.slurm.tunnel import HUB, OPENS_S, SshTunnel, from_node
from prefect_gpu.runtime.telemetry import take_inventory
from prefect_gpu.runtime.telemetry.faults import Fault
from prefect_gpu.training.channel.client import ChannelClient

_LOOK_S = 1.0
_CUT_OFF_S = 15.0  # without a worker for so long, no run stays slowed down for others
_LAST_WORDS_S = 2.0
_ASKED_S = 10.0  # slurmctld has so long to say where a node is
_WARMS_UP_S = 30.0  # a new node's first run waits so long: from cold, it would import the same beside its interpreter

logger = logging.getLogger("prefect_gpu.slurm.agent")


class Agent:
    """See the module.

    Args:
        allocation: What its allocation is called.
        rank: Its node's number in it.
        record: Of its allocation.
        settings: Asked for what the worker has to say by now; None: that cannot be seen at the moment.
        folders: Where the files of runs are.
    """

    def __init__(
        self,
        allocation: str,
        rank: int,
        record: words.Record,
        settings: Callable[[], words.Settings | None],
        folders: Folders,
    ) -> None:
        self._record, self._settings, self._folders = record, settings, folders
        self._nodes = record.parts[record.part_of(rank)]
        first = settings()
        assert first is not None, "it has just been read"
        if first.umask != -1:
            os.umask(0o077)  # of its own files; runs get theirs
        self._driver = ProcessDriver(
            warm=first.warm,
            preload=first.preload,
            after_fork=first.after_fork,
            environ=None if first.environ is None else folders.environ(first.environ),
            umask=first.umask,
            warm_patience_s=_WARMS_UP_S,
            echo=lambda label, line: None,  # that is the worker's
            logger=logger,
        )
        self._alone_s = first.alone_s
        self._cores: tuple[int, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._tunnel = SshTunnel(first.tunnel.via if first.tunnel else "", logger)
        self._loop = asyncio.get_running_loop()
        self._client = ChannelClient(
            words.agent_id(allocation, rank),
            record.token,
            self._address,
            lambda kind, data: self._call(self._instructed, kind, data),
            superseded=lambda: self._call(self._over.set),
        )
        self._runs = NodeRuns(
            self._driver,
            folders,
            first.python,
            post=self._client.post,
            crowded=lambda: self._client.crowded,
            over=self._over,
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
                self._runs.hurry_all()
            met = met or self._client.connected
            if not met and self._tunnel.failing_s > min(OPENS_S, self._alone_s):
                logger.error("The worker cannot be reached: %s.", self._tunnel.trouble)
                break
            unneeded = not self._client.connected and not self._runs.any
            alone_s = alone_s + _LOOK_S if unneeded else 0.0
            if alone_s > self._alone_s and met:
                logger.warning("No worker has been there for %.0f s, and no run is: the node is given back.", alone_s)
                break
            if alone_s > self._alone_s:
                said = f" Ssh said last: {self._tunnel.said}" if self._tunnel.said else ""
                logger.error("No worker could be reached at %s for %.0f s.%s", self._address(), alone_s, said)
                break
        watching.cancel()
        await self._runs.end_all()
        await self._driver.close()
        await asyncio.to_thread(self._client.close, _LAST_WORDS_S)
        tunnel.cancel()
        await asyncio.gather(tunnel, return_exceptions=True)
        self._folders.close()
        return met or self._over.is_set()

    def _told_to_end(self) -> None:
        """Slurm ends the allocation. Runs are not given the time for last words, which would be of a crash."""
        self._over.set()
        self._runs.silence_all()
        self._client.post(words.ENDING, {})

    # -- what it is told ------------------------------------------------------------------------------------------

    def _call(self, what: Any, *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(what, *arguments)

    def _instructed(self, kind: str, data: dict[str, Any]) -> None:
        what, _, about = kind.partition(":")
        if what in (words.BIND, words.PRIORITY, words.DUTY):
            self._runs.adjust(what, about, data)
            return
        if what == words.FORGET:
            self._runs.forget(about)
            return
        task = asyncio.create_task(self._answer(what, about, data), name=what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, what: str, number: str, data: dict[str, Any]) -> None:
        known: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            words.DESCRIBE: self._describe,
            words.LAUNCH: self._runs.launch,
            words.ADOPT: self._runs.adopt,
            words.STOP: self._runs.stop,
            words.CANCELLED: partial(self._runs.announce, intent.CANCELLED),
            words.RELINQUISHED: partial(self._runs.announce, intent.RELINQUISHED),
            words.GIVE: self._runs.give,
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
            virtual_devices=self._nodes.virtual_devices,
            virtual_device_memory_bytes=self._nodes.virtual_device_memory_bytes,
        )
        if not self._cores:  # each worker asks anew
            granted = int(os.environ.get("SLURM_CPUS_ON_NODE") or 0) or len(inventory.cpus)
            self._cores = own_cores(inventory.cpus, granted)
        return {
            "host": socket.gethostname(),
            "job": job_of(os.environ) or self._record.job,
            "address": await own_address(),
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

    # -- the worker -----------------------------------------------------------------------------------------------

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


async def own_address() -> str:
    """Where other nodes reach this one, as Slurm itself does: its name, if the cluster says nothing else."""
    name = os.environ.get("SLURMD_NODENAME")
    if not name:  # nobody lends it
        return socket.gethostname()
    try:
        told = await called("scontrol", "--oneliner", "show", "node", name, env=os.environ, patience_s=_ASKED_S)
    except SlurmError as error:
        logger.info("The node's address is not to be had of Slurm, so its name has to do: %s", error)
        return name
    found = re.search(r"\bNodeAddr=(\S+)", told)
    return found[1] if found else name


def job_of(environ: Mapping[str, str]) -> str:
    """The number of this allocation: of a heterogeneous job, which has one for each part, the first one's.

    Example:
        >>> job_of({"SLURM_JOB_ID": "8", "SLURM_HET_JOB_ID": "7"}), job_of({"SLURM_JOB_ID": "8"}), job_of({})
        ('7', '8', '')
    """
    return environ.get("SLURM_HET_JOB_ID") or environ.get("SLURM_JOB_ID", "")


async def _serve(agent: Callable[[], Agent]) -> bool:
    return await agent().run()


def _from_folder(folder: Path, allocation: str, rank: int) -> Agent:
    """One that sees the worker's folders."""
    record: words.Record = files.build(words.Record, files.load(folder / f"{allocation}.json"))

    def settings() -> words.Settings | None:
        return files.read(words.Settings, folder / words.AGENTS, logger.warning)

    first = settings()
    assert first is not None, f"{folder / words.AGENTS} cannot be read"
    return Agent(allocation, rank, record, settings, SharedFolders(own_variables(first)))


def _from_input(told: dict[str, Any], allocation: str, rank: int) -> Agent:
    """One that sees nothing of the worker's: what it must know came with its job's script, which only its user sees."""
    record: words.Record = files.build(words.Record, told["record"])
    settings: words.Settings = files.build(words.Settings, told["settings"])
    folders = OwnFolders(words.agent_id(allocation, rank), own_variables(settings))
    return Agent(allocation, rank, record, lambda: settings, folders)


def own_variables(settings: words.Settings) -> dict[str, str]:
    """The variables of which this node's values count, as far as it has them."""
    return {name: os.environ[name] for name in settings.own if name in os.environ}


def main(arguments: list[str]) -> None:
    """Take the folder of the pool's allocations, or ``-`` for standard input, and the name of this one.

    There is one agent on each node, and they are numbered through all parts of the job. Slurm does so within a step; a
    step that has not all parts is given the number of its first agent besides.
    """
    folder, allocation, *first = arguments
    rank = int(first[0] if first else 0) + int(os.environ.get("SLURM_PROCID") or 0)
    told = json.load(sys.stdin) if folder == "-" else None

    def make() -> Agent:
        if told is not None:
            return _from_input(told, allocation, rank)
        return _from_folder(Path(folder), allocation, rank)

    def work() -> None:
        adopt_orphans()  # what a run leaves behind when its supervisor ends is this process's
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        if not asyncio.run(_serve(make)):
            sys.exit(1)  # so that those who wait are told of it

    sys.exit(abs(guarded(work)))


if __name__ == "__main__":
    main(sys.argv[1:])
