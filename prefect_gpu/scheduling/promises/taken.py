"""What a promise is planned on: what a job needs, what is taken of the devices, and for how long at most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container
from typing import Protocol

from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.promises.gantt import Asked, Gantt, Planned
from prefect_gpu.scheduling.promises.reach import longest_left_s
from prefect_gpu.scheduling.state.capability import Capability
from prefect_gpu.scheduling.state.learned import Learned


class Facts(Protocol):
    """What must be known of everything else."""

    nodes: dict[str, Node]
    jobs: dict[str, Job]
    running: dict[str, Job]
    capability: Capability
    learned: Learned
    stops: bool

    @property
    def now(self) -> float: ...

    def group_of(self, device_id: str) -> str: ...

    def has_node(self, device_id: str) -> bool: ...


def left_s(job: Job, facts: Facts) -> float:
    """Seconds for which a job holds its devices yet, at most, as far as a promise goes."""
    return longest_left_s(job, facts.now, facts.learned.lengths, facts.learned.reach)


def stays(job: Job, facts: Facts, promised: Container[str]) -> bool:
    """Whether a job keeps its devices until it ends, whoever needs them.

    Args:
        promised: Jobs that are not to be stopped for others.
    """
    return job.id in promised or not (job.request.preemptible and facts.stops)


def needs(job: Job, facts: Facts) -> Asked | None:
    """What a job needs, from when on and for how long; None: no node can ever hold it."""
    request = job.request
    possible = facts.capability.usable(request, job.room_bytes)
    usable = [
        Counter(node.groups[device.id] for device in node.devices if job.fits_on(device))
        for node in facts.nodes.values()
        if any(device.id in possible for device in node.devices)
    ]
    if not usable:
        return None
    instances, devices, largest = request.workers, request.gpus, max(map(sum, (one.values() for one in usable)))
    if request.spans and request.gpus > largest:  # it takes whole nodes, and one more for the rest
        instances, devices = -(-request.gpus // largest), largest
    groups = {group: count for one in usable for group, count in one.items()}
    mixed = tuple(tuple(one) for one in usable if len(one) > 1)
    return Asked(instances, devices, left_s(job, facts), groups, max(facts.now, job.due_at), mixed)


def taken(facts: Facts, promised: Container[str]) -> Gantt:
    """What those take that run and cannot be stopped, and nodes that leave service.

    Args:
        promised: As for :func:`stays`.
    """
    now = facts.now
    gantt = Gantt(Counter(group for node in facts.nodes.values() for group in node.groups.values()), now)
    for node in facts.nodes.values():
        for device in node.devices:
            if device.ends_at is not None:
                gantt.take(Planned(max(now, device.ends_at), math.inf, {node.groups[device.id]: 1}))
    shared: dict[str, tuple[float, str]] = {}  # a device that several may be on counts once, for as long as the last
    for job in facts.running.values():
        if job.placement is None or not job.request.total_gpus or not stays(job, facts, promised):
            continue
        ahead = facts.jobs.get(job.behind or "")  # it has them until then, unless it may be stopped
        start = now + left_s(ahead, facts) if ahead is not None and stays(ahead, facts, promised) else now
        end = start + left_s(job, facts)
        # Devices out of service are no part of what their node has.
        held = [(facts.group_of(one), one) for one in job.placement.all_devices if facts.has_node(one)]
        if job.placement.shared:
            shared.update((one, max(shared.get(one, (end, name)), (end, name))) for name, one in held)
        elif held:
            gantt.take(Planned(start, end, Counter(name for name, _ in held)))
    for end, name in shared.values():
        gantt.take(Planned(now, end, {name: 1}))
    return gantt
