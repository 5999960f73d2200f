"""Nodes and devices that leave service: which jobs may still start there, and when those that run must save.

A spot node, a node that is to be drained, an allocation of another scheduler: all are nodes with an end. Until then
they are as good as others for whoever gets something done there that is not lost.
"""

from __future__ import annotations

import math

from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.state.lengths import expected_left
from prefect_gpu.scheduling.state.state import State

UNKNOWN_CHECKPOINT_S = 60.0
"""So long is a checkpoint taken to last as long as nobody has seen one of the program."""

CHECKPOINT_FACTOR, CHECKPOINT_MARGIN_S = 2.0, 2.0
"""A checkpoint may last twice as long as usual, and those who ask for it and look at its end need a moment."""

PAYS = 2.0
"""A run that will have to leave starts only where it trains for as long as it takes to start and to save."""


def notice_s(job: Job) -> float:
    """Seconds before the end of its devices at which a run is asked to save and leave."""
    checkpoint_s = job.estimate.checkpoint_s
    if checkpoint_s is None:
        return max(UNKNOWN_CHECKPOINT_S, job.estimate.restart_s)
    return CHECKPOINT_FACTOR * checkpoint_s + CHECKPOINT_MARGIN_S


def needs_s(job: Job, state: State) -> float:
    """Seconds that a device must be there for, so that a job which started there now would lose nothing.

    Of a job that may be stopped: until it has reached a checkpoint that is worth its start, or has ended before it
    would be asked for one; else it would be sent away as soon as it came. Of any other: until its end.
    """
    whole_s = ends_in_s(job, state)
    if not (job.request.preemptible and state.stops):
        return whole_s
    before_s = notice_s(job)
    return min(whole_s + before_s, PAYS * (job.estimate.launching_s + before_s))


def ends_in_s(job: Job, state: State) -> float:
    """Seconds until a job would have ended that started now, as far as is expected."""
    left_s, _ = expected_left(job, state.now, state.learned.lengths)
    return job.estimate.launching_s + left_s + job.estimate.saving_s


def lasts_until(job: Job, end: float, state: State, *, from_s: float = 0.0) -> bool:
    """Whether devices that leave service then are there for long enough, if a job starts now or some seconds later."""
    return end == math.inf or state.now + from_s + needs_s(job, state) <= end


def can_take(job: Job, device: Device, state: State) -> bool:
    """Whether a device is large enough for a job, and there for long enough, whoever else is on it.

    It is there until it leaves service, or until it was promised to others and the job could not be stopped then.
    """
    if not job.fits_on(device) or (device.ends_at is not None and not lasts_until(job, device.ends_at, state)):
        return False
    promises = state.promises
    return not promises.jobs or not state.has_node(device.id) or promises.leaves_room(job, state.group_of(device.id))


def cut_short(job: Job, end: float, state: State) -> bool:
    """Whether a job is expected to be there still when its devices leave service then."""
    return end != math.inf and state.now + ends_in_s(job, state) > end


def end_of(job: Job, state: State) -> tuple[float, str, str]:
    """When the first device or node of a running job leaves service, which one it is, and why; infinite: none."""
    placement = job.placement
    first: tuple[float, str, str] = (math.inf, "", "")
    if placement is None or not state.any_end:
        return first
    for part in placement.parts:
        node = state.nodes.get(part.node)
        if node is None or node.first_end == math.inf:
            continue
        devices = set(part.devices)
        ending: tuple[Node | Device, ...] = (node, *(one for one in node.devices if one.id in devices))
        for one in ending:
            if one.ends_at is not None and one.ends_at < first[0]:
                first = (one.ends_at, _name(one), one.ends_why)
    return first


def _name(one: Node | Device) -> str:
    return f"node {one.id}" if isinstance(one, Node) else one.id
