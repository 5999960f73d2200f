"""Does a job fit? The one answer, for all that place jobs.

Whether a device has room beside those that are on it is for the profile's :class:`.Sharing` to say, and its size and
how long it is there for :func:`.can_take`. Whether nodes could hold a job at all, if they were empty, is for
``state.capability`` to say.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from contextlib import contextmanager

from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.model.kinds import linked
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.endings import can_take, lasts_until
from prefect_gpu.scheduling.state.state import State


def devices_for(job: Job, node: Node, state: State, sharing: Sharing, kept: Container[str] = ()) -> list[Device]:
    """The devices of a node that the job could be given now, in the node's order.

    Args:
        kept: Ids of devices that are kept for another job.
    """
    found = [device for device in node.devices if device.id not in kept and sharing.fits(job, device, state)]
    return connected(job, found) if job.request.needs_links else found


def free_devices_for(job: Job, node_id: str, state: State, kept: Container[str] = ()) -> list[Device]:
    """Those of them that nobody is on: a rule of sharing has nothing to say about these."""
    free = state.free_devices(node_id)
    found = [device for device in free if device.id not in kept and can_take(job, device, state)]
    return connected(job, found) if job.request.needs_links else found


def connected(job: Job, devices: list[Device]) -> list[Device]:
    """Those of some devices of a node that the job gets which wants them connected over NVLink, in the same order.

    They are as many as it needs at least, of the smallest group that has so many: a larger one stays whole. A gang may
    use all of the largest group.
    """
    groups, request = linked(devices), job.request
    if not groups:
        return []
    if request.is_gang or request.most_gpus > request.gpus:
        chosen = groups[-1]
    else:
        chosen = next((group for group in groups if len(group) >= request.gpus), [])[: request.gpus]
    ids = {device.id for device in chosen}
    return [device for device in devices if device.id in ids]


def free_by_node(job: Job, state: State, kept: Container[str] = ()) -> dict[int, list[Device]]:
    """:func:`free_devices_for` on each node that has a free device at all, by its number."""
    numbers = sorted(number for _, _, alike in state.groups_with_free(1) for number in alike)
    return {number: free_devices_for(job, state.numbered[number].node.id, state, kept) for number in numbers}


def any_will_do(job: Job, node: Node, state: State) -> bool:
    """Whether all devices of a node are large enough, and there for long enough: they need only be counted then."""
    if job.request.wants is not None and not (
        not job.request.needs_links and all(map(job.request.wants.accepts, node.devices))
    ):
        return False
    return node.least_memory_bytes >= job.least_bytes and any_will_last(job, node, state)


def any_will_last(job: Job, node: Node, state: State) -> bool:
    """Whether a node and all its devices are there for long enough for a job that starts now."""
    if not lasts_until(job, node.first_end, state):
        return False
    promises = state.promises
    return not promises.jobs or all(promises.leaves_room(job, group) for group in set(node.groups.values()))


def usable_now(job: Job, state: State) -> frozenset[str]:
    """The devices that a waiting job could be given if nobody were on them; none that leaves service too soon."""
    usable = state.capability.usable(job.request, job.room_bytes)
    if not state.any_end:
        return usable
    return frozenset(device for device in usable if can_take(job, state.device(device), state))


def nodes_for(job: Job, state: State) -> list[int]:
    """Numbers of the nodes where a job that needs no device may start."""
    return [
        books.number
        for books in state.numbered
        if books.node.ends_at is None or lasts_until(job, books.node.ends_at, state)
    ]


def some_will_do(job: Job, node: Node, state: State) -> bool:
    """Whether the devices of a node that the job could be given can be counted by :func:`free_without`."""
    if job.request.wants is None:
        return any_will_do(job, node, state)
    return any(can_take(job, device, state) for device in node.devices)


def free_without(jobs: Collection[Job], node_id: str, state: State, among: Job | None = None) -> int:
    """Devices of a node that would be free if these jobs on it were gone, and those that are prepared behind them.

    Args:
        among: Only those that this job could be given, if it does not want just any.
    """
    gone = {job.id for job in jobs}
    if among is not None and among.request.wants is not None:
        wanted = [one.id for one in state.nodes[node_id].devices if can_take(among, one, state)]
        return sum(all(one.id in gone or one.behind in gone for one in state.occupants(device)) for device in wanted)
    parts = [part for job in jobs if job.placement for part in job.placement.parts if part.node == node_id]
    devices = {device for part in parts for device in part.devices}
    left = sum(all(one.id in gone or one.behind in gone for one in state.occupants(device)) for device in devices)
    return state.free_on(node_id) + left


@contextmanager
def without(jobs: Collection[Job], state: State) -> Iterator[None]:
    """The state as if these jobs held nothing, to see what would fit then."""
    for job in jobs:
        state.occupy(job, -1)
    try:
        yield
    finally:
        for job in jobs:
            state.occupy(job)
