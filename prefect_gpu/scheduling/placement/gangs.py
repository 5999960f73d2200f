"""Jobs of several instances through the kernels: whole or not at all, in one domain; and several jobs at once."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence

from prefect_gpu.scheduling.model.cluster import Device, Placement
from prefect_gpu.scheduling.model.jobs import Job, Request
from prefect_gpu.scheduling.placement.granting import granted_gang
from prefect_gpu.scheduling.placement.kernels import containers as asked
from prefect_gpu.scheduling.placement.kernels.containers import Free
from prefect_gpu.scheduling.placement.kernels.genetic import Genetic
from prefect_gpu.scheduling.placement.kernels.placer import Placer
from prefect_gpu.scheduling.placement.kernels.topology import Topology
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.fits import any_will_do, devices_for
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
            if plain and any_will_do(job, books.node, state)
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


def containers(request: Request, cores: int = 0) -> asked.Gang:
    """What a request asks for as a gang: its workers, then its parameter servers, so many cores each."""
    worker = asked.Container(request.gpus, cores)
    return (worker,) * request.workers + (asked.Container(0, cores, role="ps"),) * request.servers


def place_containers(
    placer: Placer,
    job: Job,
    state: State,
    sharing: Sharing,
    kept: Container[str],
    view: ClusterView,
) -> Placement | None:
    """The place that a kernel chooses for all instances of a job, or None. Cores are not counted."""
    request = job.request
    if not state.numbered or (not request.shareable and state.free_count < request.total_gpus):
        return None
    if not state.capability.possible(request):  # before a plan is made for more instances than anybody could count
        return None
    topology = view.topology(state)
    free = Free(view.free_gpus(job, state, sharing, kept), topology.cpus_total)
    plan = placer.place(containers(request), free, topology)
    return None if plan is None else granted(job, plan, state, sharing, kept)


def granted(
    job: Job, plan: Sequence[int], state: State, sharing: Sharing, kept: Container[str] = (), taken: Container[str] = ()
) -> Placement | None:
    """The placement of a plan, workers first; None if a node has not enough devices after all.

    Args:
        plan: The node's number for each instance.
        taken: Devices that others of the same batch have been given.
    """
    request = job.request
    left: dict[int, list[str]] = {}
    workers = []
    for number in plan[: request.workers]:
        node = state.numbered[number].node
        if number not in left:
            found = [device for device in devices_for(job, node, state, sharing, kept) if device.id not in taken]
            left[number] = [device.id for device in most_wanted(found, job, state, sharing)]
        devices, left[number] = left[number][: request.gpus], left[number][request.gpus :]
        if len(devices) < request.gpus:
            return None
        workers.append((node, tuple(device.id for device in node.devices if device.id in devices)))
    servers = [state.numbered[number].node for number in plan[request.workers :]]
    return granted_gang(job, workers, servers, state, sharing)


def suits_batch(job: Job, state: State) -> bool:
    """Whether Liquid's grouping genetic algorithm (§5.3), which counts whole GPUs, can place the job.

    It knows no sharing, no spanning, no kinds of devices and no promises, and memory must be no matter.
    """
    request = job.request
    if not state.numbered or state.promises.jobs or request.total_gpus == 0:
        return False
    if request.shareable or request.spans or request.wants is not None:
        return False
    return min(state.device_sizes, default=0) >= job.least_bytes


def place_batch(jobs: Sequence[Job], state: State, sharing: Sharing, view: ClusterView) -> list[tuple[Job, Placement]]:
    """Places for those of the jobs for which there is room, earlier jobs first; see :func:`suits_batch`."""
    topology = view.topology(state)
    # Devices that leave service are for those who are placed one by one: not all of the batch may have the time.
    there = [0 if books.node.first_end != math.inf else len(books.free) for books in state.numbered]
    free = Free(there, topology.cpus_total)
    plans = Genetic().place_batch([containers(job.request) for job in jobs], free, topology)
    found = []
    taken: set[str] = set()
    for job, plan in zip(jobs, plans, strict=True):
        placement = None if plan is None else granted(job, plan, state, sharing, (), taken)
        if placement is not None:
            taken.update(placement.all_devices)
            found.append((job, placement))
    return found
