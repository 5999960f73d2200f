"""Tiresias-L: discretised two-dimensional least attained service, with queues that jobs sink through."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prefect_gpu.papers.telling import tell_the_rest
from prefect_gpu.scheduling.allocation.base import Action, tell_early
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.placement.granting import grant, joined
from prefect_gpu.scheduling.state.fits import free_by_node

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision

TIRESIAS_LIMITS = (3250.0, 7200.0)


class TiresiasQueues(Action):
    """Jobs sink from queue to queue as they attain service; jobs of the first queues run (Gu et al., NSDI 2019, §3).

    1. A running job whose attained service × GPUs has reached its queue's limit joins the next queue's end.
    2. Jobs are taken queue by queue as long as there are free devices, wherever these are: only their number counts.
    3. Those that run and were not taken are stopped. In each queue, jobs that run move before those that do not.

    A moment at which a running job reaches its limit is a moment of decision, in whole seconds of service as in the
    simulator of Tiresias.

    Args:
        limits: GPU seconds at which a job leaves the first queue, the second, … The last queue is open.
    """

    def __init__(self, limits: tuple[float, ...] = TIRESIAS_LIMITS) -> None:
        self._limits = limits
        self._queues: list[list[str]] = [[] for _ in range(len(limits) + 1)]
        self._level: dict[str, int] = {}

    def act(self, decision: Decision) -> bool:
        """See the class."""
        tell_early(decision)
        self._follow(decision)
        chosen = self._choose(decision)
        for job in [job for job in decision.state.running.values() if job.id not in chosen and decision.may_stop(job)]:
            decision.preempt(job, "jobs with less attained service come first")
        for job in chosen.values():
            if job.placement is None:
                place = decision.placement.place
                wide = job.request.spans and job.request.gpus > 0
                spot = anywhere(job, decision) if wide else place(job, decision.state, decision.sharing)
                if spot is not None:
                    decision.launch(job, spot, "it has attained little service")
        tell_the_rest(decision)
        self._settle(decision)
        return True

    def _follow(self, decision: Decision) -> None:
        """Take in new jobs, leave out those that are gone, and let jobs sink that have reached their limit."""
        jobs = decision.state.jobs
        for level, queue in enumerate(self._queues):
            self._queues[level] = [id_ for id_ in queue if id_ in jobs]
        self._level = {id_: level for id_, level in self._level.items() if id_ in jobs}
        for job in jobs.values():
            if job.id not in self._level:
                self._level[job.id] = 0
                self._queues[0].append(job.id)
        sinking = [
            id_
            for level, limit in enumerate(self._limits)
            for id_ in self._queues[level]
            if jobs[id_].active and self._service(jobs[id_], decision) >= limit
        ]
        for id_ in sinking:
            level = self._level[id_]
            self._queues[level].remove(id_)
            self._queues[level + 1].append(id_)
            self._level[id_] = level + 1

    @staticmethod
    def _service(job: Job, decision: Decision) -> float:
        return round(job.attained(decision.now), 6) * job.request.total_gpus

    def _choose(self, decision: Decision) -> dict[str, Job]:
        state = decision.state
        pinned = [job for job in state.running.values() if not decision.may_stop(job)]
        free = state.device_count - sum(len(job.placement.all_devices) for job in pinned if job.placement)
        chosen = {job.id: job for job in pinned}
        for queue in self._queues:
            for id_ in queue:
                job = state.jobs[id_]
                if id_ in chosen or not (job.active or job.status is Status.WAITING) or job.due_at > decision.now:
                    continue
                if job.request.total_gpus <= free and (job.active or state.limit_on(job.queue) is None):
                    chosen[id_] = job
                    free -= job.request.total_gpus
        return chosen

    def _settle(self, decision: Decision) -> None:
        """Running jobs first in each queue; and ask to be woken when the next one reaches its limit."""
        jobs = decision.state.jobs
        for level, queue in enumerate(self._queues):
            running = [id_ for id_ in queue if jobs[id_].active]
            self._queues[level] = running + [id_ for id_ in queue if not jobs[id_].active]
            if level < len(self._limits):
                for id_ in running:
                    job = jobs[id_]
                    if job.request.total_gpus:  # of those without devices, none ever reaches it
                        at_s = math.ceil(self._limits[level] / job.request.total_gpus)
                        decision.look_again_at(decision.now + max(0.0, at_s - job.attained(decision.now)))


def anywhere(job: Job, decision: Decision) -> Placement | None:
    """Free devices of one domain for a job, on whichever nodes have most of them; None if there are not enough."""
    state, needed = decision.state, job.request.total_gpus
    room = free_by_node(job, state)
    by_domain: dict[str, list[int]] = {}
    for number in sorted(room, key=lambda number: (-len(room[number]), number)):
        by_domain.setdefault(state.numbered[number].node.domain, []).append(number)
    for _, numbers in sorted(by_domain.items()):
        if sum(len(room[number]) for number in numbers) < needed:
            continue
        parts, left = [], needed
        for number in numbers:
            devices = tuple(device.id for device in room[number][:left])
            if devices:
                parts.append(grant(job, state.numbered[number].node, devices, state, decision.sharing))
                left -= len(devices)
        return joined(parts)
    return None
