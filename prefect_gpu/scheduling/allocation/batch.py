"""Place the jobs that wait together (Liquid's batch mode, §5.3)."""

from __future__ import annotations

from collections import Counter

from prefect_gpu.scheduling.allocation.base import Action
from prefect_gpu.scheduling.decision import Decision, names
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.placement.gangs import ClusterView, place_batch, suits_batch


class Batch(Action):
    """Places the jobs that wait, in their order, together: the grouping genetic algorithm places those that fit.

    All others (runs that share, that span nodes, or for which there is no room) are left to the actions after it. It
    does nothing as long as somebody has lost patience: devices are kept for him, and the algorithm knows of no such
    thing.

    Args:
        most_jobs: Jobs in a batch at most.
    """

    def __init__(self, most_jobs: int = 64) -> None:
        if most_jobs < 1:
            raise ValueError(f"most_jobs={most_jobs}: give 1 job or more")
        self._most_jobs = most_jobs
        self._view = ClusterView()

    def act(self, decision: Decision) -> bool:
        """See the class."""
        state = decision.state
        if not state.free_count:
            return False
        jobs, impatient = batch_of(decision, self._most_jobs)
        if len(jobs) > 1 and not impatient:
            words = f"when {len(jobs)} runs are placed together"
            for job, placement in place_batch(jobs, state, decision.sharing, self._view):
                decision.launch(job, placement, f"{names(placement.all_devices)} suit it best {words}")
        return False


def batch_of(decision: Decision, most_jobs: int) -> tuple[list[Job], bool]:
    """The first jobs in the order that the algorithm can place, within the limits; and whether one is impatient."""
    state = decision.state
    chosen: list[Job] = []
    counts: Counter[str] = Counter()
    impatient = False
    walk = state.queue_of_waiting.in_order()
    for line, job in walk:
        impatient |= job.impatient
        suited = suits_batch(job, state) and state.capability.possible(job.request)
        if not suited or state.limit_on(line.queue, counts) is not None:
            walk.leave()
            continue
        chosen.append(job)
        counts[line.queue] += 1
        if len(chosen) >= most_jobs:
            break
    return chosen, impatient
