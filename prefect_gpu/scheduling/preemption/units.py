"""What takes part in the choice of a whole set: a job, or those that share a device; and what it costs to stop it."""

from __future__ import annotations

from dataclasses import replace

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.preemption.best_set import STAYS, paid_back_s
from prefect_gpu.scheduling.preemption.pools import Pool, Shape, shape_of
from prefect_gpu.scheduling.preemption.seating import Spots

_MOST_DOUBLINGS = 64.0


class Unit:
    """A job, or those that share one device, which all go or all stay."""

    __slots__ = ("jobs", "placement", "rank", "shape", "shares", "spots", "width", "worth")

    def __init__(self, jobs: tuple[Job, ...], shape: Shape, width: int, spots: Spots = ()) -> None:  # type: ignore[assignment]
        self.jobs = jobs
        self.shape = shape
        self.width = width
        self.spots = spots
        self.placement = jobs[0].placement
        self.shares = jobs[0].request.shareable
        self.worth = 0.0
        self.rank: tuple[int, ...] = (0, 0)

    @property
    def job(self) -> Job:
        """The (first) job."""
        return self.jobs[0]


def unit_of(job: Job, pool: Pool, decision: Decision) -> Unit:
    """A running job, with those that share its device if there are any; of no width if they cannot all be stopped."""
    state, placement, none = decision.state, job.placement, Unit((job,), Shape(0, 0, 0), 0)
    assert placement is not None
    spots: dict[int, int] = {}
    for part in placement.parts:
        if part.devices:
            nodes = {pool.node_of(device, state) for device in part.devices}
            node = nodes.pop()
            if node is None or nodes:
                return none
            spots[node] = spots.get(node, 0) + len(part.devices)
    if not spots:
        return none
    jobs: tuple[Job, ...] = (job,)
    if job.request.shareable:
        on_it = [state.occupants(device) for device in placement.all_devices]
        if any(len(company) > 1 for company in on_it):
            if len(on_it) > 1 or on_it[0][0] is not job:
                return none
            if not all(len(one.placement.all_devices) == 1 and decision.may_stop(one) for one in on_it[0]):  # type: ignore[union-attr]
                return none
            jobs = tuple(on_it[0])
    width = sum(spots.values())
    if len(spots) == 1:
        shape: Shape | None = Shape.on_one_node(width, pool.size)
    else:
        asked = replace(job.request, workers=len(placement.parts)) if job.request.grows else job.request
        shape = shape_of(asked, pool.size, len(pool.numbers))
    return none if shape is None else Unit(jobs, shape, width, list(spots.items()))


def restart_s(job: Job) -> float:
    """Seconds that it costs to stop a job and to start it anew: as measured, if its last launch took longer."""
    estimate = job.estimate
    expected_s = estimate.launching_s + estimate.restart_s
    if job.trains_since is None or job.launched_at is None:
        return expected_s
    measured_s = job.trains_since - job.launched_at
    return measured_s if measured_s > expected_s else expected_s


def credit_of(job: Job, now: float) -> tuple[float, float]:
    """So many seconds is a running job treated as shorter than it is, and its stops that it has not paid back.

    Each of those doubles the credit. Whoever has less left than that is not stopped any more, so a job that holds its
    devices for `t` seconds in all, and never expects more than `u` seconds, is stopped at most
    `t / paid_back_s(R) + log2(u / (STAYS * R)) + 1` times, where R is what a restart costs.
    """
    cost_s = restart_s(job)
    if not cost_s:
        return 0.0, 0.0
    unpaid = job.stops - job.attained(now) / paid_back_s(cost_s)
    if unpaid <= 0.0:
        return STAYS * cost_s, 0.0
    return STAYS * cost_s * 2.0 ** min(unpaid, _MOST_DOUBLINGS), unpaid


def is_spared(credit: tuple[float, float], left_s: float) -> bool:
    """Whether a job that was stopped before has so little left that it is not stopped again.

    Args:
        credit: See :func:`credit_of`.
        left_s: Seconds that it is expected to need yet.
    """
    credit_s, unpaid = credit
    return unpaid > 0.0 and left_s <= credit_s
