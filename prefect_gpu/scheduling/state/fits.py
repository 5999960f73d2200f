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
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.endings import can_take, lasts_until, leaves_room
from prefect_gpu.scheduling.state.state import State


def devices_for(job: Job, node: Node, state: State, sharing: Sharing, kept: Container[str] = ()) -> list[Device]:
    """The devices of a node that the job could be given now, in the node's order.

    Args:
        kept: Ids of devices that are kept for another job.
    """
    return [device for device in node.devices if device.id not in kept and sharing.fits(job, device, state)]


def free_devices_for(job: Job, node_id: str, state: State, kept: Container[str] = ()) -> list[Device]:
    """Those of them that nobody is on: a rule of sharing has nothing to say about these."""
    return [device for device in state.free_devices(node_id) if device.id not in kept and can_take(job, device, state)]


def free_by_node(job: Job, state: State, kept: Container[str] = ()) -> dict[int, list[Device]]:
    """:func:`free_devices_for` on each node that has a free device at all, by its number."""
    numbers = sorted(number for _, _, alike in state.groups_with_free(1) for number in alike)
    return {number: free_devices_for(job, state.numbered[number].node.id, state, kept) for number in numbers}


def any_will_do(job: Job, node: Node, state: State) -> bool:
    """Whether all devices of a node are large enough, and there for long enough: they need only be counted then."""
    return node.least_memory_bytes >= job.least_bytes and any_will_last(job, node, state)


def any_will_last(job: Job, node: Node, state: State) -> bool:
    """Whether a node and all its devices are there for long enough for a job that starts now."""
    return lasts_until(job, node.first_end, state) and leaves_room(job, node.id, state)


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


def free_without(jobs: Collection[Job], node_id: str, state: State) -> int:
    """Devices of a node that would be free if these jobs on it were gone, and those that are prepared behind them."""
    gone = {job.id for job in jobs}
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
