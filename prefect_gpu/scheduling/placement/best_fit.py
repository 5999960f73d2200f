"""Liquid's best fit: one node for most jobs, whole nodes for the largest, and gangs near together."""

from __future__ import annotations

from collections.abc import Container, Iterable

from prefect_gpu.scheduling.model.cluster import Device, Node, Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.gangs import ClusterView, most_wanted, place_containers
from prefect_gpu.scheduling.placement.granting import grant, joined
from prefect_gpu.scheduling.placement.kernels.best_fit import NETWORK_WEIGHT, AnchoredBestFit
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.endings import can_take, cut_short
from prefect_gpu.scheduling.state.fits import devices_for, free_devices_for, nodes_for
from prefect_gpu.scheduling.state.state import State


class BestFit(PlacementPolicy):
    """Liquid's fitness on one node (§5.2, eq. 4): prefer the node that this job leaves fullest.

    A run that may share joins other runs first, where the fewest bytes are left over. Of whole devices the
    smallest that suffice are taken, so that large ones stay free for runs that need them. A run that may span nodes
    and is larger than any takes whole nodes and the best fit for the rest. A node that is expected to leave service
    before the run has ended comes after all others.

    The instances of a gang go where the plan scores best (eqs. 3, 4 and 6), the network first; see
    :class:`~prefect_gpu.scheduling.placement.kernels.best_fit.AnchoredBestFit`.

    Args:
        network_weight: The paper's lambda, for gangs: 0 counts only full nodes, 1 only the network.
    """

    def __init__(self, network_weight: float = NETWORK_WEIGHT) -> None:
        self._placer = AnchoredBestFit(network_weight)
        self._view = ClusterView()

    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """See the class; ties go to the first node and the first device, so that the choice is always the same."""
        request = job.request
        if request.is_gang:
            return place_containers(self._placer, job, state, sharing, kept, self._view)
        if request.spans and request.gpus > state.largest_node:
            return whole_nodes(job, state, sharing, kept)
        one_by_one = kept or request.shareable or request.needs_links or state.promises.jobs
        if request.gpus and not one_by_one and state.all_uniform:
            return _whole_devices(job, state, sharing)
        best: tuple[float, ...] | None = None
        found: tuple[Node, tuple[str, ...]] | None = None
        for number in self._candidates(job, state, kept):
            node = state.numbered[number].node
            devices = _devices(job, node, state, sharing, kept)
            if devices is None:
                continue
            opened = sum(1 for device in devices if state.is_free(device))
            used = opened + len(node.devices) - state.free_on(node.id)
            left = sum(sharing.left_over(job, state.device(device), state) for device in devices)
            leaves = cut_short(job, node.first_end, state)
            fitness = (leaves, opened, -used / max(1, len(node.devices)), left, number)
            if best is None or fitness < best:
                best, found = fitness, (node, devices)
        return grant(job, *found, state, sharing) if found else None

    @staticmethod
    def _candidates(job: Job, state: State, kept: Container[str]) -> Iterable[int]:
        """Numbers of the nodes worth looking at: of nodes that are alike, the first is as good as any.

        Where devices are kept or promised, nodes are not alike.
        """
        gpus = job.request.gpus
        if gpus == 0:
            return nodes_for(job, state) if state.any_end else range(len(state.numbered))
        numbers: set[int] = set()
        for _, _, alike in state.groups_with_free(gpus):
            numbers.update(alike if kept or state.promises.jobs else alike[:1])
        if job.request.shareable:
            numbers.update(state.number_of(device) for device in state.shared_devices() if state.has_node(device))
        return numbers


def _whole_devices(job: Job, state: State, sharing: Sharing) -> Placement | None:
    """The same choice where every node has devices of one kind only: a look at one node of each group will do."""
    gpus = job.request.gpus
    best: tuple[bool, float, int, int] | None = None
    for books, free, alike in state.groups_with_free(gpus):
        devices = books.node.devices
        if can_take(job, devices[0], state):
            leaves = cut_short(job, books.node.first_end, state)
            fitness = (leaves, (free - gpus) / len(devices), devices[0].memory_bytes, alike[0])
            if best is None or fitness < best:
                best = fitness
    if best is None:
        return None
    node = state.numbered[best[3]].node
    return grant(job, node, tuple(device.id for device in state.free_devices(node.id)[:gpus]), state, sharing)


def _devices(job: Job, node: Node, state: State, sharing: Sharing, kept: Container[str]) -> tuple[str, ...] | None:
    gpus = job.request.gpus
    if gpus == 0:
        return ()
    found = devices_for(job, node, state, sharing, kept)
    if len(found) < gpus:
        return None
    if len(found) == gpus:
        return tuple(device.id for device in found)
    taken = {device.id for device in most_wanted(found, job, state, sharing)[:gpus]}
    return tuple(device.id for device in node.devices if device.id in taken)


def whole_nodes(job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
    """A job larger than any node: as many of the largest nodes as it fills, wholly free, and one more for the rest.

    All of them are in one domain, the first that has them; the rest goes where the fewest devices are left over.
    """
    size = state.largest_node
    count, rest = divmod(job.request.gpus, size)
    by_domain: dict[str, list[Node]] = {}
    for _, free, numbers in sorted(state.groups_with_free(1), key=lambda group: (group[1], group[2])):
        for number in numbers:
            node = state.numbered[number].node
            if len(free_devices_for(job, node.id, state, kept)) == free:
                by_domain.setdefault(node.domain, []).append(node)
    for nodes in by_domain.values():
        whole = [node for node in nodes if len(node.devices) == size == state.free_on(node.id)][:count]
        if len(whole) < count:
            continue
        last = next((n for n in nodes if n not in whole and state.free_on(n.id) >= rest), None) if rest else None
        if rest and last is None:
            continue
        parts = [grant(job, node, tuple(d.id for d in node.devices), state, sharing) for node in whole]
        if last is not None:
            devices: list[Device] = state.free_devices(last.id)[:rest]
            parts.append(grant(job, last, tuple(d.id for d in devices), state, sharing))
        return joined(parts)
    return None
