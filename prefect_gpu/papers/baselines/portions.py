"""How the devices of a node are handed out: as they come, in slots of a fixed size, or in cells of powers of two."""

from __future__ import annotations

import abc
from collections.abc import Container
from typing import TYPE_CHECKING

from prefect_gpu.papers.baselines.hived import cell_gpus
from prefect_gpu.scheduling.placement.gangs import ClusterView, most_wanted
from prefect_gpu.scheduling.state.fits import devices_for

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.jobs import Job
    from prefect_gpu.scheduling.sharing.rules import Sharing
    from prefect_gpu.scheduling.state.devices import NodeBooks
    from prefect_gpu.scheduling.state.state import State


class Portions(abc.ABC):
    """Cuts what is free on a node into portions, each for one instance of a job."""

    @abc.abstractmethod
    def size(self, gpus: int) -> int:
        """Devices that an instance with so many takes in fact."""

    @abc.abstractmethod
    def cut(
        self, job: Job, books: NodeBooks, state: State, sharing: Sharing, kept: Container[str]
    ) -> list[tuple[str, ...]]:
        """The portions of the node that the job's instances could take now, the best first; ids of devices.

        A node whose devices are no multiple of the size is one portion as long as it is wholly free, for a job that
        would never start otherwise.
        """

    def free_gpus(self, job: Job, state: State, sharing: Sharing, kept: Container[str], view: ClusterView) -> list[int]:
        """What each node has for the job, in devices: its portions, each counted at its full size."""
        size = max(1, self.size(job.request.gpus))
        return [size * len(self.cut(job, books, state, sharing, kept)) for books in state.numbered]


class Whole(Portions):
    """Any devices that fit."""

    def size(self, gpus: int) -> int:
        """As many as asked for."""
        return gpus

    def free_gpus(self, job: Job, state: State, sharing: Sharing, kept: Container[str], view: ClusterView) -> list[int]:
        """What each node has for the job, in devices."""
        return view.free_gpus(job, state, sharing, kept)

    def cut(
        self, job: Job, books: NodeBooks, state: State, sharing: Sharing, kept: Container[str]
    ) -> list[tuple[str, ...]]:
        """See the class."""
        found = most_wanted(devices_for(job, books.node, state, sharing, kept), job, state, sharing)
        size = max(1, job.request.gpus)
        return [
            tuple(device.id for device in found[at : at + size]) for at in range(0, len(found) // size * size, size)
        ]


class _Aligned(Portions):
    """Runs of devices that begin at multiples of a size."""

    def _runs(
        self, size: int, job: Job, books: NodeBooks, state: State, sharing: Sharing, kept: Container[str]
    ) -> list[tuple[str, ...]]:
        devices = books.node.devices
        usable = {device.id for device in devices_for(job, books.node, state, sharing, kept)} - self._blocked(
            books, state
        )
        runs = [tuple(d.id for d in devices[at : at + size]) for at in range(0, len(devices) - size + 1, size)]
        return [run for run in runs if usable.issuperset(run)]

    def _blocked(self, books: NodeBooks, state: State) -> set[str]:
        """Devices that are free and yet part of what a job has taken."""
        blocked: set[str] = set()
        devices = books.node.devices
        for at, device in enumerate(devices):
            for job in state.occupants(device.id):
                for part in job.placement.parts if job.placement else ():
                    if device.id in part.devices:
                        size = self._reach(len(part.devices))
                        first = at // size * size
                        blocked.update(other.id for other in devices[first : first + size])
        return blocked

    @abc.abstractmethod
    def _reach(self, gpus: int) -> int:
        """Size of the aligned run that one device of an instance blocks."""


class Slots(_Aligned):
    """Slots of n devices, which need not be neighbours (the baseline of F-scheduling, §5)."""

    def __init__(self, slot_gpus: int) -> None:
        self._slot = slot_gpus

    def size(self, gpus: int) -> int:
        """Whole slots."""
        return -(-gpus // self._slot) * self._slot

    def cut(
        self, job: Job, books: NodeBooks, state: State, sharing: Sharing, kept: Container[str]
    ) -> list[tuple[str, ...]]:
        """See the class."""
        needed = max(1, -(-job.request.gpus // self._slot))
        slots = self._runs(self._slot, job, books, state, sharing, kept)
        portions = [sum(slots[at : at + needed], ()) for at in range(0, len(slots) // needed * needed, needed)]
        total = len(books.node.devices)
        if needed * self._slot > total // self._slot * self._slot and job.request.gpus <= total:
            portions = _whole_node(job, books, state, sharing, kept)
        return portions

    def _reach(self, gpus: int) -> int:
        return self._slot


class Cells(_Aligned):
    """Buddy cells in the manner of HiveD: neighbours, as many as a power of two."""

    def size(self, gpus: int) -> int:
        """The next power of two."""
        return cell_gpus(gpus)

    def cut(
        self, job: Job, books: NodeBooks, state: State, sharing: Sharing, kept: Container[str]
    ) -> list[tuple[str, ...]]:
        """See the class."""
        size = max(1, cell_gpus(job.request.gpus))
        if job.request.gpus <= len(books.node.devices) < size:
            return _whole_node(job, books, state, sharing, kept)
        return self._runs(size, job, books, state, sharing, kept)

    def _reach(self, gpus: int) -> int:
        return cell_gpus(gpus)


def _whole_node(
    job: Job, books: NodeBooks, state: State, sharing: Sharing, kept: Container[str]
) -> list[tuple[str, ...]]:
    devices = books.node.devices
    found = devices_for(job, books.node, state, sharing, kept)
    whole = len(found) == len(devices) == state.free_on(books.node.id)
    return [tuple(device.id for device in devices)] if whole else []
