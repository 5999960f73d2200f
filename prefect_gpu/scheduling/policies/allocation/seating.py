"""From the jobs that are to run to stops, starts and moves."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.abilities import Preemption
from prefect_gpu.scheduling.cluster import Device, Placement
from prefect_gpu.scheduling.jobs import Job
from prefect_gpu.scheduling.policies.allocation.packing import Spot
from prefect_gpu.scheduling.policies.placement import grant, joined

if TYPE_CHECKING:
    from prefect_gpu.scheduling.verbs import Desk

_COMES_FIRST = "it comes first in the order"


def seat(desk: Desk, chosen: dict[Job, list[Spot]]) -> None:
    """Stop who was not chosen, start who was, and move others only if there is no room otherwise.

    Args:
        chosen: The jobs that are to run, each with nodes that would hold all of them together.
    """
    state = desk.state
    for job in [job for job in state.running.values() if job not in chosen and desk.may_stop(job)]:
        desk.preempt(job, "others come first in the order")
    pending: list[Job] = []
    for job in chosen:
        if job.active:
            continue
        placement = None if pending else desk.profile.placement.place(job, state, desk.profile.sharing)
        if placement is None:
            pending.append(job)
        else:
            desk.launch(job, placement, _COMES_FIRST)
    if pending and desk.abilities.preemption is Preemption.INSTANT:
        _move_together(desk, chosen, pending)


def _move_together(desk: Desk, chosen: dict[Job, list[Spot]], pending: list[Job]) -> None:
    """Give every chosen job the nodes it was chosen with; those that are there already keep their devices."""
    state = desk.state
    movers = [job for job in chosen if job.placement is not None and _nodes_of(job, desk) != _as_counts(chosen[job])]
    for job in movers:
        state.vacate(job)
    free: dict[int, list[Device]] = {}
    for job in [*movers, *pending]:
        placement = _take(desk, job, chosen[job], free)
        if job.placement is None:
            desk.launch(job, placement, _COMES_FIRST)
        else:
            state.occupy(job)
            desk.move(job, placement, "others only fit if it moves")


def _take(desk: Desk, job: Job, spots: list[Spot], free: dict[int, list[Device]]) -> Placement:
    state = desk.state
    parts = []
    for number, gpus in spots:
        node = state.numbered[number].node
        if number not in free:
            free[number] = state.free_devices(node.id)
        devices, free[number] = free[number][:gpus], free[number][gpus:]
        parts.append(grant(job, node, tuple(device.id for device in devices), state, desk.profile.sharing))
    return joined(parts)


def _nodes_of(job: Job, desk: Desk) -> Counter[int]:
    assert job.placement is not None
    return Counter(
        {desk.state.number_of(part.devices[0]): len(part.devices) for part in job.placement.parts if part.devices}
    )


def _as_counts(spots: list[Spot]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for number, gpus in spots:
        counts[number] += gpus
    return counts
