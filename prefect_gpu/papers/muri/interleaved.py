"""Groups of jobs that share devices by taking turns on each stage, formed afresh at each decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.papers.muri.grouping import form_groups
from prefect_gpu.papers.muri.interleaving import Interleaving
from prefect_gpu.papers.muri.interleaving import Profile as StageTimes
from prefect_gpu.papers.muri.node_packing import Spot, lasting
from prefect_gpu.papers.muri.seating import seat_groups
from prefect_gpu.papers.telling import tell_the_rest
from prefect_gpu.scheduling.allocation.base import Action, tell_early
from prefect_gpu.scheduling.model.jobs import Job

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.state.waiting import Key

_MOST_JOBS = 2000


class Interleaved(Action):
    """Jobs of one size share devices where that makes the sum of completion times fall faster.

    The jobs, running and waiting, are taken in the profile's order; see
    :func:`~prefect_gpu.papers.muri.grouping.form_groups` for how groups are formed. Only for a world in which
    moving is free, and for jobs that say how long their stages take and do not mind company.

    Args:
        most_jobs: Only so many jobs, the first in the order, are looked at.
    """

    def __init__(self, most_jobs: int = _MOST_JOBS) -> None:
        self._most_jobs = most_jobs
        self._model = Interleaving()

    def act(self, decision: Decision) -> bool:
        """See the class."""
        tell_early(decision)
        jobs = self._in_order(decision)
        node_gpus = [len(lasting(books.node)) for books in decision.state.numbered]
        groups = form_groups(
            [job.request.total_gpus for job in jobs],
            [self._number(job) for job in jobs],
            node_gpus,
            self._model,
        )
        free = list(node_gpus)
        seats = []
        for group in groups:
            spots = best_fit(free, jobs[group[0]].request.total_gpus, max(node_gpus, default=0))
            if spots is not None:
                seats.append((tuple(jobs[at] for at in group), spots))
        seat_groups(decision, seats)
        tell_the_rest(decision)
        return True

    def _in_order(self, decision: Decision) -> list[Job]:
        state, order, now = decision.state, decision.order, decision.now
        ranked: list[tuple[Key, Job]] = [
            ((state.queue(job.queue).priority, 1, *order.key(job, state, now)), job) for job in state.running.values()
        ]
        walk = state.queue_of_waiting.in_order()
        for line, job in walk:
            if state.limit_on(line.queue) is not None or not state.capability.possible(line.request):
                walk.leave()
                continue
            key = state.queue_of_waiting.key_of(job)
            assert key is not None
            ranked.append((key, job))
            if len(ranked) >= self._most_jobs + len(state.running):
                break
        ranked.sort(key=lambda entry: entry[0])
        return [job for _, job in ranked[: self._most_jobs]]

    def _number(self, job: Job) -> int:
        estimate = job.estimate
        return self._model.number(StageTimes(estimate.iteration_s, *estimate.stages_s))


def best_fit(free: list[int], gpus: int, largest: int) -> list[Spot] | None:
    """Take devices on the fullest node that has enough, whole nodes and one for the rest if no node is large enough.

    Args:
        free: Free devices of each node; changed if the job fits.
    """
    whole, rest = divmod(gpus, largest) if gpus > largest else (0, gpus)
    empty = [number for number, count in enumerate(free) if count == largest][:whole]
    if len(empty) < whole:
        return None
    spots = [(number, largest) for number in empty]
    if rest:
        fits = [(count, number) for number, count in enumerate(free) if count >= rest and number not in empty]
        if not fits:
            return None
        spots.append((min(fits)[1], rest))
    for number, count in spots:
        free[number] -= count
    return spots
