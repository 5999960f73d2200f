"""The books of the nodes as the kernels of ``kernels`` want them: one number per node."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.model.cluster import Device
from prefect_gpu.scheduling.placement.kernels.topology import Topology
from prefect_gpu.scheduling.state.fits import any_will_do, devices_for

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.jobs import Job
    from prefect_gpu.scheduling.sharing.rules import Sharing
    from prefect_gpu.scheduling.state.state import State


class ClusterView:
    """Remembers the topology of a cluster until its nodes change."""

    def __init__(self) -> None:
        self._state: State | None = None
        self._version = -1
        self._topology: Topology | None = None

    def topology(self, state: State) -> Topology:
        """The nodes by domain and rack. There must be one at least."""
        if self._topology is None or self._state is not state or self._version != state.version:
            self._state, self._version = state, state.version
            nodes = [books.node for books in state.numbered]
            self._topology = Topology(
                numbered(node.domain for node in nodes),
                numbered(node.rack for node in nodes),
                [len(node.devices) for node in nodes],
                [len(node.cpus) for node in nodes],
            )
        return self._topology

    def free_gpus(self, job: Job, state: State, sharing: Sharing, kept: Container[str]) -> list[int]:
        """Devices of each node that could take (an instance of) the job now."""
        plain = not job.request.shareable and not kept
        return [
            len(books.free)
            if plain and any_will_do(job, books.node)
            else len(devices_for(job, books.node, state, sharing, kept))
            for books in state.numbered
        ]


def numbered(names: Iterable[str]) -> list[int]:
    """A number for each name, the same for the same name."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


def most_wanted(devices: list[Device], job: Job, state: State, sharing: Sharing) -> list[Device]:
    """Devices that have company first, then the free ones; of each the one where the least is left over first."""
    return sorted(devices, key=lambda device: (state.is_free(device.id), sharing.left_over(job, device, state)))
