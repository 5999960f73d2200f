"""Cores that are a run's alone: a placement that starts nothing without them."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.cores.ledger import free_cores
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.best_fit import BestFit
from prefect_gpu.scheduling.state.fits import free_devices_for

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.jobs import Job
    from prefect_gpu.scheduling.sharing.rules import Sharing
    from prefect_gpu.scheduling.state.state import State


class FreeCores(PlacementPolicy):
    """Best fit on one node where as many cores are free as the job asks for: what a batch system such as SLURM does.

    Of the nodes that have the devices and the cores free, the one on which the fewest devices are left over, and then
    the fewest cores. A job that asks for no number of cores takes one for each device. Where a node's cores are not
    handed out, they keep nobody from it. Gangs, and runs larger than a node, are placed by :class:`.BestFit`.
    """

    def __init__(self) -> None:
        self._others = BestFit()

    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """See the class."""
        request = job.request
        if request.workers > 1 or request.servers or (request.spans and request.gpus > state.largest_node):
            return self._others.place(job, state, sharing, kept)
        gpus, cores = request.gpus, request.cpus if request.cpus is not None else max(1, request.gpus)
        best: tuple[int, int, int] | None = None
        devices: tuple[str, ...] = ()
        for books in state.numbered:
            if len(books.free) < gpus or (books.cores and books.free_cores < cores):
                continue
            fitness = (len(books.free) - gpus if gpus else 0, books.free_cores - cores, books.number)
            if best is None or fitness < best:
                chosen = smallest_free(job, books.node.id, state, kept)
                if chosen is not None:
                    best, devices = fitness, chosen
        if best is None:
            return None
        return alone(job, state.numbered[best[2]].node.id, devices, cores, state, sharing)


def smallest_free(job: Job, node_id: str, state: State, kept: Container[str] = ()) -> tuple[str, ...] | None:
    """Devices of a node that nobody is on, as many as the job asks for, the smallest first; None: too few."""
    gpus = job.request.gpus
    if gpus == 0:
        return ()
    free = free_devices_for(job, node_id, state, kept)
    if len(free) < gpus:
        return None
    taken = {device.id for device in sorted(free, key=lambda device: device.memory_bytes)[:gpus]}
    return tuple(device.id for device in free if device.id in taken)


def alone(job: Job, node_id: str, devices: tuple[str, ...], cores: int, state: State, sharing: Sharing) -> Placement:
    """The placement of a job on free devices of a node, with up to so many of its free cores."""
    return Placement(
        node_id,
        devices,
        free_cores(node_id, cores, state, devices),
        sharing.granted_bytes(job, [state.device(device) for device in devices]),
        job.request.shareable,
    )
