"""Where does a job go?"""

from __future__ import annotations

import abc
from collections.abc import Container
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.cluster import Node, Placement

if TYPE_CHECKING:
    from prefect_gpu.scheduling.jobs import Job
    from prefect_gpu.scheduling.policies.sharing import Sharing
    from prefect_gpu.scheduling.state import State


class PlacementPolicy(abc.ABC):
    """Chooses among the places that can hold a job."""

    @abc.abstractmethod
    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """The place for a job, or None if nothing can hold it now. Must not change the state.

        Args:
            kept: Ids of devices that are kept for another job.
        """


class BestFit(PlacementPolicy):
    """Liquid's fitness on one node (§5.2, eq. 4): prefer the node that this job leaves fullest.

    A run that may share joins company first, there where the fewest bytes are left over. Of whole devices the
    smallest that suffice are taken, so that large ones stay free for runs that need them.
    """

    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """See the class; ties go to the first node and the first device, so that the choice is always the same."""
        best: tuple[float, ...] | None = None
        chosen: Placement | None = None
        for number, node in enumerate(state.nodes.values()):
            devices = self._devices(job, node, state, sharing, kept)
            if devices is None:
                continue
            opened = sum(1 for device in devices if not state.occupants(device))
            used = opened + sum(1 for device in node.devices if state.occupants(device.id))
            left = sum(sharing.left_over(job, state.device(device), state) for device in devices)
            fitness = (opened, -used / max(1, len(node.devices)), left, number)
            if best is None or fitness < best:
                best = fitness
                chosen = Placement(
                    node=node.id,
                    devices=devices,
                    cpus=choose_cpus(job, node, devices, state),
                    memory_bytes=sharing.granted_bytes(job, [state.device(device) for device in devices]),
                    shared=job.request.shareable,
                )
        return chosen

    @staticmethod
    def _devices(job: Job, node: Node, state: State, sharing: Sharing, kept: Container[str]) -> tuple[str, ...] | None:
        fitting = [device for device in node.devices if device.id not in kept and sharing.fits(job, device, state)]
        if len(fitting) < job.request.gpus:
            return None
        fitting.sort(key=lambda device: (not state.occupants(device.id), sharing.left_over(job, device, state)))
        taken = {device.id for device in fitting[: job.request.gpus]}
        return tuple(device.id for device in node.devices if device.id in taken)


def choose_cpus(job: Job, node: Node, devices: tuple[str, ...], state: State) -> tuple[int, ...]:
    """Cores for a job: those with the fewest runs on them, near the device if that is known.

    Without a request, a run gets its devices' share of the node's cores (at least one). Cores are shared when more
    are asked for than are free: a run is never kept from a free device by a busy core.
    """
    if not node.cpus:
        return ()
    wanted = job.request.cpus
    if wanted is None:
        share = len(node.cpus) // max(1, len(node.devices))
        wanted = max(1, share * max(1, job.request.gpus))
    near = {core for device in devices for core in state.device(device).cores}
    load = state.core_load(node.id)
    ranked = sorted(node.cpus, key=lambda core: (load.get(core, 0), core not in near, core))
    return tuple(sorted(ranked[: min(wanted, len(ranked))]))
