"""Profiles where stopping, starting and moving a job cost nothing, as in the simulators of Muri and DeepShare."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from prefect_gpu.papers.muri.fill import Filling
from prefect_gpu.papers.muri.interleaved import Interleaved
from prefect_gpu.papers.muri.replan import Replan
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.allocation.base import When
from prefect_gpu.scheduling.elastic.resize import Resize

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.profiles.profile import Profile


def with_free_moves(profile: Profile) -> Profile:
    """The same profile in a world where moving a job costs nothing: whoever runs is chosen afresh at each decision.

    ``adaptive`` fills the devices, or lets jobs take turns on them; the preemptive orders replan. All others are as
    they were.
    """
    actions = profile.allocation
    if not any(isinstance(action, Backfill) and action.make_room is not None for action in actions):
        return profile
    if any(isinstance(action, Resize) for action in actions):
        return replace(profile, allocation=(Resize(), When(_all_interleave, Interleaved()), Filling()))
    return replace(profile, allocation=(Replan(),))


def _all_interleave(decision: Decision) -> bool:
    """Whether all jobs share, can be moved, say how long their stages take, and could have any of the devices."""
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
