"""Profiles where stopping, starting and moving a job cost nothing, as in the simulators of Muri and DeepShare."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from prefect_gpu.papers.muri.fill import Filling
from prefect_gpu.papers.muri.interleaved import Interleaved
from prefect_gpu.papers.muri.replan import Replan
from prefect_gpu.scheduling.allocation.adaptive import Adaptive
from prefect_gpu.scheduling.allocation.base import Allocation
from prefect_gpu.scheduling.elastic.allocation import Elastic
from prefect_gpu.scheduling.preemption.make_room import MakeRoom

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.profiles.profile import Profile
    from prefect_gpu.scheduling.state.state import State


def with_free_moves(profile: Profile) -> Profile:
    """The same profile in a world where moving a job costs nothing: whoever runs is chosen afresh at each decision.

    ``adaptive`` fills the devices, or lets jobs take turns on them; the preemptive orders replan. All others are as
    they were.
    """
    allocation = profile.allocation
    if isinstance(allocation, Elastic) and isinstance(allocation.others, Adaptive):
        return replace(profile, allocation=Elastic(FillOrInterleave()))
    if type(allocation) is MakeRoom:
        return replace(profile, allocation=Replan())
    return profile


class FillOrInterleave(Allocation):
    """:class:`Interleaved` if all jobs may share and say how long their stages take; else :class:`Filling`."""

    ranks_running = True

    def __init__(self) -> None:
        self._interleaved, self._filling = Interleaved(), Filling()

    def bind(self, state: State) -> None:
        """Called once, before anything else."""
        super().bind(state)
        self._interleaved.bind(state)
        self._filling.bind(state)

    def allocate(self, decision: Decision) -> None:
        """See the class."""
        (self._interleaved if _all_interleave(decision) else self._filling).allocate(decision)


def _all_interleave(decision: Decision) -> bool:
    """Whether every job may share, can be moved, says how long its stages take, and could have any of the devices."""
    state = decision.state
    smallest = min(state.device_sizes, default=0)
    for line in state.queue_of_waiting.lines():
        request = line.request
        if not (request.shareable and request.preemptible and request.spans and request.total_gpus):
            return False
        if not line.entries[0][1].estimate.stages_s or line.entries[0][1].least_bytes > smallest:
            return False
    return all(
        job.request.shareable
        and job.request.total_gpus
        and decision.may_stop(job)
        and job.estimate.stages_s
        and job.least_bytes <= smallest
        for job in state.running.values()
    )
