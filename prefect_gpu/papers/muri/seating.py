"""From what is to run to stops, starts and moves.

A *group* is one job, or several that share the same devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect_gpu.papers.muri.node_packing import Spot, lasting
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.cluster import Device, Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.placement.granting import grant, joined

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision

COMES_FIRST = "it comes first in the order"
_ROOM = "other jobs only fit if it moves"
_COMPANY = "it shares better there"

Seats = dict[Job, list[Spot]]


class _Changes:
    """Who moves and who starts, once it is clear for all."""

    def __init__(self) -> None:
        self._moves: list[tuple[Job, Placement]] = []
        self._starts: list[tuple[Job, Placement]] = []

    def bring(self, jobs: Sequence[Job], home: Placement) -> None:
        """These jobs are to be there."""
        for job in jobs:
            if job.placement is None:
                self._starts.append((job, home))
            elif job.placement.all_devices != home.all_devices:
                self._moves.append((job, home))

    def carry_out(self, decision: Decision, why_move: str) -> None:
        """Moves first: they make room."""
        if self._moves:
            decision.rearrange(self._moves, why_move)
        for job, home in self._starts:
            decision.launch(job, home, COMES_FIRST)


def seat(decision: Decision, chosen: Seats) -> None:
    """Stop who was not chosen, start who was, and move others only if there is no room otherwise.

    Args:
        chosen: The jobs that are to run, each with nodes that would hold all of them together; none for those that stay
            where they are, or need no devices.
    """
    state = decision.state
    _stop_others(decision, set(chosen))
    together = _must_be_seated_together(decision, chosen)
    for job, spots in chosen.items():
        if job.active:
            continue
        placement = None if together and spots else decision.placement.place(job, state, decision.sharing)
        if placement is not None:
            decision.launch(job, placement, COMES_FIRST)
        elif spots:
            together = True
    if together and decision.abilities.preemption is Preemption.INSTANT:
        _reseat(decision, [((job,), spots) for job, spots in chosen.items() if spots])


def _must_be_seated_together(decision: Decision, chosen: Seats) -> bool:
    """Whether a job that may not be stopped would start now, although another then finds no room without moves.

    Where it starts is where it stays: it would be in the way of the nodes that all of them were chosen with.
    """
    state = decision.state
    waiting = [job for job, spots in chosen.items() if spots and not job.active]
    if decision.abilities.preemption is not Preemption.INSTANT or all(map(decision.can_stop, waiting)):
        return False
    tried: list[Job] = []
    for job in waiting:
        job.placement = decision.placement.place(job, state, decision.sharing)
        if job.placement is None:
            break
        state.occupy(job)
        tried.append(job)
    for job in tried:
        state.occupy(job, -1)
        job.placement = None
    return len(tried) < len(waiting)


def seat_groups(decision: Decision, groups: Sequence[tuple[tuple[Job, ...], list[Spot]]]) -> None:
    """Stop who is in no group, and bring the members of each group together on the same devices.

    A group stays where its first running member is, unless there is no room for a new group then.

    Args:
        groups: Jobs of equal size, each with nodes that would hold all groups together.
    """
    state = decision.state
    _stop_others(decision, {job for jobs, _ in groups for job in jobs})
    claimed: set[str] = set()
    homes: list[Placement | None] = []
    for jobs, _ in groups:
        home = None
        for job in jobs:
            if job.placement is not None and claimed.isdisjoint(job.placement.all_devices):
                home = job.placement
                claimed.update(home.all_devices)
                break
        homes.append(home)
    free: dict[int, list[Device]] = {}
    for books in state.numbered:
        free[books.number] = [device for device in lasting(books.node) if device.id not in claimed]
    plan = _Changes()
    for (jobs, spots), home in zip(groups, homes, strict=True):
        if home is None:
            home = _new_home(decision, jobs[0], spots, free)
            if home is None:
                _reseat(decision, groups)
                return
        plan.bring(jobs, home)
    plan.carry_out(decision, _COMPANY)


def _stop_others(decision: Decision, chosen: set[Job]) -> None:
    for job in [job for job in decision.state.running.values() if job not in chosen and decision.may_stop(job)]:
        decision.preempt(job, "other jobs come first in the order")


def _new_home(decision: Decision, job: Job, spots: list[Spot], free: dict[int, list[Device]]) -> Placement | None:
    """Devices that no group has: as few nodes as planned, each the fullest that has room."""
    sizes = sorted((gpus for _, gpus in spots), reverse=True)
    taken: list[Spot] = []
    for gpus in sizes:
        open_ = [(len(left), number) for number, left in free.items() if len(left) >= gpus]
        open_ = [(left, number) for left, number in open_ if all(number != other for other, _ in taken)]
        if not open_:
            return None
        taken.append((min(open_)[1], gpus))
    return _take(decision, job, taken, free)


def _reseat(decision: Decision, groups: Sequence[tuple[tuple[Job, ...], list[Spot]]]) -> None:
    """Give every group the nodes it was chosen with; those that are there already keep their devices."""
    state = decision.state
    free = {books.number: list(lasting(books.node)) for books in state.numbered}
    for job in state.running.values():
        if not decision.may_stop(job):
            _cross_out(job, decision, free)
    staying: dict[int, Placement] = {}
    for at, (jobs, spots) in enumerate(groups):
        placement = jobs[0].placement
        if placement is None or _counts(placement, decision) != sorted(spots):
            continue
        if _all_free(placement, decision, free):
            staying[at] = placement
            _cross_out(jobs[0], decision, free)
    plan = _Changes()
    for at, (jobs, spots) in enumerate(groups):
        home = staying.get(at) or _take(decision, jobs[0], spots, free)
        plan.bring(jobs, home)
    plan.carry_out(decision, _ROOM)


def _take(decision: Decision, job: Job, spots: list[Spot], free: dict[int, list[Device]]) -> Placement:
    state = decision.state
    parts = []
    for number, gpus in spots:
        node = state.numbered[number].node
        devices, free[number] = free[number][:gpus], free[number][gpus:]
        parts.append(grant(job, node, tuple(device.id for device in devices), state, decision.sharing))
    if not job.request.servers:
        return joined(parts)
    node = state.nodes[max(parts, key=lambda part: sum(len(p.devices) for p in parts if p.node == part.node)).node]
    return joined(
        [*parts, *(grant(job, node, (), state, decision.sharing),) * job.request.servers], job.request.servers
    )


def _counts(placement: Placement, decision: Decision) -> list[Spot]:
    state = decision.state
    there = (part for part in placement.parts if part.devices and state.has_node(part.devices[0]))
    return sorted((state.number_of(part.devices[0]), len(part.devices)) for part in there)


def _all_free(placement: Placement, decision: Decision, free: dict[int, list[Device]]) -> bool:
    return all(
        {device.id for device in free[decision.state.number_of(part.devices[0])]}.issuperset(part.devices)
        for part in placement.parts
        if part.devices
    )


def _cross_out(job: Job, decision: Decision, free: dict[int, list[Device]]) -> None:
    for part in job.placement.parts if job.placement else ():
        if part.devices and decision.state.has_node(part.devices[0]):
            number = decision.state.number_of(part.devices[0])
            free[number] = [device for device in free[number] if device.id not in part.devices]
