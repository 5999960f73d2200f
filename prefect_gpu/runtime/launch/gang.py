"""A gang: several instances of one run that start together, end together, and find each other as torchrun's do."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import signal
from collections.abc import Awaitable, Callable, Sequence
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.drivers.base import Driver, ExitReport, LaunchError, LaunchSpec, RunHandle
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.storage.row import Part
from prefect_gpu.training import protocol

_GRACE_S = 10.0  # between SIGTERM and SIGKILL for those whose gang has fallen apart
_AFTERWARDS_S = 60.0  # for the others to end by themselves when instance 0 has ended well


def instance_environment(placement: Placement, rank: int, address: str, port: int) -> dict[str, str]:
    """What tells an instance who it is: torchrun's variables, and which part it plays.

    Workers come first, then the parameter servers, which hold no device.

    Args:
        placement: Of the whole gang.
        rank: Number of the part.
        address, port: Where instance 0 can be reached by the others.
    """
    parts = placement.parts
    workers = len(parts) - placement.servers
    here = [number for number, part in enumerate(parts) if part.node == parts[rank].node]
    nodes = list(dict.fromkeys(part.node for part in parts))
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(parts)),
        "LOCAL_RANK": str(here.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "GROUP_RANK": str(nodes.index(parts[rank].node)),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        protocol.ENV_ROLE: role_of(placement, rank),
        protocol.ENV_WORKERS: str(workers),
        protocol.ENV_SERVERS: str(placement.servers),
        **({protocol.ENV_RESTORES_ONLY: "1"} if rank else {}),
    }


def parts_of(placement: Placement) -> list[Part]:
    """Where each instance of a gang is, in the order of their ranks, as it is shown and kept in the history.

    Returns:
        Of each ``node``, ``devices`` and ``role`` (``worker`` or ``server``); nothing for a run that is no gang.
    """
    parts = placement.parts
    if len(parts) == 1:
        return []
    return [
        Part(node=part.node, devices=list(part.devices), role=role_of(placement, rank))
        for rank, part in enumerate(parts)
    ]


def role_of(placement: Placement, rank: int) -> str:
    """``worker``, or ``server`` for a parameter server: those come last, and hold no device."""
    return "worker" if rank < len(placement.parts) - placement.servers else "server"


def instance_id(run_id: str, rank: int) -> str:
    """What an instance is called; the first one is the run itself."""
    return run_id if rank == 0 else f"{run_id}.{rank}"


def instance_folder(folder: Path, rank: int) -> Path:
    """The folder of an instance's launch."""
    return folder if rank == 0 else folder / f"{folder.name}.{rank}"


def instances_in(folder: Path) -> int:
    """How many instances of a launch have a folder."""
    return next(rank for rank in itertools.count(1) if not instance_folder(folder, rank).exists())


async def launch_together(
    driver: Driver, specs: Sequence[LaunchSpec], logger: Logger | LoggerAdapter[Any]
) -> RunHandle:
    """Start all instances, or none.

    Args:
        specs: Of each instance, in the order of their ranks; one is no gang, and simply launched.

    Raises:
        LaunchError: One of them could not be started. Nothing of the others is left.
    """
    if len(specs) == 1:
        return await driver.launch(specs[0])
    launching = [asyncio.ensure_future(_launch_one(driver, spec, rank)) for rank, spec in enumerate(specs)]
    try:
        await asyncio.gather(*launching)
    except BaseException:
        done = await asyncio.gather(*launching, return_exceptions=True)
        started = [one for one in done if isinstance(one, RunHandle)]
        await asyncio.gather(*(handle.stop(0) for handle in started))
        raise
    return GangHandle(specs[0].run_id, [one.result() for one in launching], logger)


async def _launch_one(driver: Driver, spec: LaunchSpec, rank: int) -> RunHandle:
    try:
        return await driver.launch(spec)
    except LaunchError as error:  # which of them it was: they may be on different nodes
        error.args = (f"instance {rank}: {error}",)
        raise


async def adopt_together(
    driver: Driver, launches: Sequence[tuple[str, Path]], logger: Logger | LoggerAdapter[Any]
) -> RunHandle | None:
    """Take over a gang that an earlier worker launched.

    Args:
        launches: Id and folder of each instance; one is no gang, and simply adopted.

    Returns:
        None if not all of them were started: those that were have been stopped.
    """
    if len(launches) == 1:
        return await driver.adopt(*launches[0])
    found = [await driver.adopt(name, folder) for name, folder in launches]
    handles = [handle for handle in found if handle is not None]
    if len(handles) < len(found):
        await asyncio.gather(*(handle.stop(0) for handle in handles))
        return None
    return GangHandle(launches[0][0], handles, logger)


async def _nobody_asks() -> None:
    return


class GangHandle(RunHandle):
    """All instances of a run, as one.

    It is over when instance 0 is, or when any instance ends badly: then the others are stopped, since they would wait
    for it for ever.

    Args:
        run_id: The flow run's id.
        instances: In the order of their ranks.
        logger: Told which instance broke the gang.

    Attributes:
        on_broken: Called before instance 0 is stopped because another one has ended. It speaks for the run to Prefect.
    """

    def __init__(self, run_id: str, instances: Sequence[RunHandle], logger: Logger | LoggerAdapter[Any]) -> None:
        self.run_id, self.pid, self.warm = run_id, instances[0].pid, instances[0].warm
        self.instances = tuple(instances)
        self._logger = logger
        self.on_broken: Callable[[], Awaitable[None]] = _nobody_asks
        self._broken = self._stopped = False  # by itself, or by whoever wants it stopped: what came first
        self._watcher = asyncio.create_task(self._watch(), name=f"gang {run_id}")

    async def wait(self) -> ExitReport:
        return await asyncio.shield(self._watcher)

    async def announce_cancellation(self) -> None:
        await self.instances[0].announce_cancellation()

    async def relinquish(self) -> None:
        await self.instances[0].relinquish()

    async def stop(self, grace_seconds: float) -> None:
        self._stopped = not self._broken
        await asyncio.gather(*(handle.stop(grace_seconds) for handle in self.instances))
        await self.wait()

    async def give(self, name: str, content: bytes) -> None:
        await asyncio.gather(*(handle.give(name, content) for handle in self.instances))

    def bind(self, cpus: tuple[int, ...]) -> bool:
        return False  # each instance has cores of its own

    def set_priority(self, weight: float) -> bool:
        done = [handle.set_priority(weight) for handle in self.instances]
        return all(done)

    def set_duty(self, part: float) -> bool:
        done = [handle.set_duty(part) for handle in self.instances]
        return all(done)

    def busy_seconds(self) -> float | None:
        spent = [handle.busy_seconds() for handle in self.instances]
        known = [seconds for seconds in spent if seconds is not None]
        return sum(known) if known else None

    async def _watch(self) -> ExitReport:
        ends = [asyncio.ensure_future(handle.wait()) for handle in self.instances]
        try:
            first = await self._first_that_matters(ends)
            self._broken = not self._stopped
            if first == 0 and not ends[0].result().returncode:
                await asyncio.wait(ends, timeout=_AFTERWARDS_S)
            elif first != 0 and self._broken:
                await self.on_broken()
            await asyncio.gather(*(handle.stop(_GRACE_S) for handle in self.instances))
            reports = await asyncio.gather(*ends)
        finally:
            for end in ends:
                end.cancel()
        return self._together(reports, 0 if self._stopped else self._earliest(reports, first))

    async def _first_that_matters(self, ends: Sequence[asyncio.Future[ExitReport]]) -> int:
        """The instance that ends the gang: number 0, or one that ended badly."""
        left = set(ends)
        while True:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            broken = [rank for rank, end in enumerate(ends) if end in done and end.result().returncode != 0]
            if broken:
                return broken[0]
            if ends[0] in done:
                return 0

    def _earliest(self, reports: Sequence[ExitReport], heard: int) -> int:
        """The instance that broke the gang. The one that was heard of first may only have missed it.

        Those that we stopped ourselves broke nothing, and clocks of nodes differ: they are left out by their signals.
        """
        if not reports[heard].returncode:
            return heard
        broken = [
            (report.ended_at, rank)
            for rank, report in enumerate(reports)
            if report.ended_at is not None
            and (rank == heard or report.returncode not in (None, 0, -signal.SIGTERM, -signal.SIGKILL))
        ]
        return min(broken, default=(0.0, heard))[1]

    def _together(self, reports: Sequence[ExitReport], first: int) -> ExitReport:
        """The report of the instance that ended it, with what all of them used."""
        report = reports[first]
        if first != 0:
            self._logger.warning(
                "Run %s: instance %d ended with %s; all are stopped.", self.run_id, first, report.returncode
            )
            report = dataclasses.replace(
                report,
                tail=tuple(f"[instance {first}] {line}" for line in report.tail),
                cause=f"Instance {first} of {len(reports)} ended first, so all were stopped. {report.cause}".strip(),
            )
        memory = [one.max_rss_bytes for one in reports if one.max_rss_bytes is not None]
        spent = [one.cpu_seconds for one in reports if one.cpu_seconds is not None]
        return dataclasses.replace(
            report, max_rss_bytes=max(memory, default=None), cpu_seconds=sum(spent) if spent else None
        )
