"""Which kind of device a job gets, where there are several: the one that it likes, or the one that serves all best.

A fast device is worth most to the job that gains most from it. Which job that is follows from a plan: the waiting jobs
are put on the devices, one after the other on each, so that the sum of the times at which they end is least. For jobs
of one device on unlike machines that is an assignment problem (Horn, 1973; Bruno, Coffman and Sethi, 1974; AlloX, Le et
al., EuroSys 2020): the job that is the k-th from the end on a device lets k jobs wait for as long as it takes there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from prefect_gpu.scheduling.model.abilities import Abilities
from prefect_gpu.scheduling.model.cluster import Device, Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.model.kinds import LISTED
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.kernels.assignment import assign
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.endings import can_take
from prefect_gpu.scheduling.state.lengths import expected_left
from prefect_gpu.scheduling.state.state import State

MOST_PLANNED = 24
"""Waiting jobs that are planned together; those after them go by their own end alone."""

_MOST_SERVERS = 24  # devices of each kind that are planned with: those that are free first
_NEVER = 1e15  # seconds that a device takes which the job cannot have


class _Plan(NamedTuple):
    """Where the waiting jobs go.

    Attributes:
        kinds: The kind of device of each job that was planned.
        now: Those of them that start now.
    """

    kinds: dict[str, str]
    now: frozenset[str]


class ByKind(PlacementPolicy):
    """Tries the kinds of devices one by one, as the job likes them or as the plan of all waiting jobs has it.

    - A job that lists kinds gets the first of them that has room.
    - Of any other job of which the seconds on several kinds are known, the plan says on which it goes, and whether now.
      It is left waiting although another kind is free only if that is better for all together, and not once it has
      lost patience.
    - A job that takes several devices goes where it is expected to end first, as soon as it has them.
    - All others, and elastic jobs, are placed by the other policy; and so are all where there is one kind, and those
      of which no kind alone has enough devices.

    Args:
        otherwise: Chooses among the devices of a kind.
    """

    def __init__(self, otherwise: PlacementPolicy) -> None:
        self._otherwise = otherwise
        self._made: tuple[object, ...] = ()
        self._plan = _Plan({}, frozenset())

    def suited_to(self, abilities: Abilities) -> PlacementPolicy:
        """See :class:`.PlacementPolicy`."""
        return ByKind(self._otherwise.suited_to(abilities))

    def why(self, placement: Placement) -> str:
        """See :class:`.PlacementPolicy`."""
        return self._otherwise.why(placement)

    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """See the class."""
        if not self._chooses(job, state):
            return self._otherwise.place(job, state, sharing, kept)
        wants = job.request.wants
        if wants is not None and wants.kinds and wants.choice == LISTED:
            ranks = sorted({wants.rank(kind) for kind in state.kinds})
            groups = [frozenset(kind for kind in state.kinds if wants.rank(kind) == rank) for rank in ranks]
            if not any(state.capability.usable(job.request, job.room_bytes, group) for group in groups):
                return self._otherwise.place(job, state, sharing, kept)
        else:
            groups = [frozenset((kind,)) for kind in self._order(job, state)]
        for group in groups:
            place = self._otherwise.place(job, state, sharing, _Others(group, state, kept))
            if place is not None:
                return place
        return None

    def kind_for(self, job: Job, state: State) -> str | None:
        """See :class:`.PlacementPolicy`."""
        if not self._chooses(job, state) or job.impatient or self._lists(job):
            return None
        return self._planned(state).kinds.get(job.id)

    def declines(self, job: Job, state: State) -> str:
        """See :class:`.PlacementPolicy`."""
        if job.impatient or self._lists(job) or not self._chooses(job, state):
            return ""
        better = self._order(job, state)
        free = sorted({one.kind for one in _devices(job, state) if state.is_free(one.id)} - set(better))
        if not free or not better:
            return ""
        return f"{' and '.join(free)} would be free, but with the other runs it ends sooner on {better[0]}"

    @staticmethod
    def _lists(job: Job) -> bool:
        wants = job.request.wants
        return wants is not None and bool(wants.kinds) and wants.choice == LISTED

    def _chooses(self, job: Job, state: State) -> bool:
        request = job.request
        if len(state.kinds) < 2 or not request.total_gpus:
            return False
        if self._lists(job):
            return len(request.wants.kinds) > 1 if request.wants is not None else False
        if request.is_elastic or request.spans or not job.estimate.by_kind:
            return False
        speeds = _speeds(job, state)
        return len(speeds) > 1 and bool(_whole(speeds, job, state))

    def _order(self, job: Job, state: State) -> list[str]:
        """The kinds on which the job may start now, the best first."""
        speeds = _whole(_speeds(job, state), job, state)
        by_speed = sorted(speeds, key=lambda kind: (speeds[kind], kind))
        if job.impatient or job.request.shareable:
            return by_speed
        if not _is_planned(job):
            return _ends_first(job, by_speed, state)
        plan = self._planned(state)
        if job.id not in plan.kinds:
            return by_speed
        if job.id in plan.now:
            return [plan.kinds[job.id]]
        # Whoever stands before another that needs the same goes first, also where the plan has the other one start now.
        waiting = (state.jobs.get(other) for other in plan.now)
        alike = (one for one in waiting if one is not None and one.request == job.request and one.queue == job.queue)
        return sorted({plan.kinds[one.id] for one in alike if one.placement is None}) or [plan.kinds[job.id]]

    def _planned(self, state: State) -> _Plan:
        """Made anew when something has happened."""
        made = (state, state.version, state.changes, state.now, len(state.jobs))
        if self._made != made:
            self._made, self._plan = made, _plan_of(state)
        return self._plan


class _Others(Container[str]):
    """The devices of other kinds, and those that are kept."""

    def __init__(self, kinds: frozenset[str], state: State, kept: Container[str]) -> None:
        self._kinds, self._state, self._kept = kinds, state, kept

    def __contains__(self, device: object) -> bool:
        return device in self._kept or self._state.device(str(device)).kind not in self._kinds

    def __bool__(self) -> bool:
        return True


def _speeds(job: Job, state: State) -> dict[str, float]:
    """By kind that the job could have: its seconds there over those that its estimate counts."""
    devices = {device.kind: device for device in _devices(job, state)}
    return {kind: factor for kind, factor in job.estimate.by_kind if kind in devices and factor > 0.0}


def _whole(speeds: dict[str, float], job: Job, state: State) -> dict[str, float]:
    """Those of the kinds that have devices for all of the job, if nobody is on them."""
    if job.request.total_gpus == 1:
        return speeds
    usable, request = state.capability.usable, job.request
    return {kind: factor for kind, factor in speeds.items() if usable(request, job.room_bytes, frozenset((kind,)))}


def _devices(job: Job, state: State) -> Iterator[Device]:
    usable = state.capability.usable(job.request, job.room_bytes)
    return (one for one in map(state.device, usable) if can_take(job, one, state))


def _is_planned(job: Job) -> bool:
    return job.request.total_gpus == 1 and not job.request.is_gang


def _free_in_s(device: str, state: State) -> float:
    """Seconds until nobody is expected to be on a device."""
    return max(
        (
            expected_left(job, state.now, state.learned.lengths)[0] + job.estimate.saving_s
            for job in state.occupants(device)
        ),
        default=0.0,
    )


def _ends_first(job: Job, kinds: list[str], state: State) -> list[str]:
    """The kinds, as far as the one on which a job of several devices is expected to end first."""
    left_s, _ = expected_left(job, state.now, state.learned.lengths)
    ends: dict[str, float] = {}
    for kind in kinds:
        moments = sorted(_free_in_s(one.id, state) for one in _devices(job, state) if one.kind == kind)
        needed = job.request.total_gpus
        if len(moments) >= needed:
            ends[kind] = moments[needed - 1] + left_s * (job.estimate.slower_on(kind) or 1.0)
    first = min(ends, key=lambda kind: ends[kind], default=None)
    return kinds if first is None else [first]


def _plan_of(state: State) -> _Plan:
    """Where the first waiting jobs go, and which of them start now."""
    jobs = list(islice(_waiting(state), MOST_PLANNED))
    servers = list(_servers(state, len(jobs)))
    if not jobs or not servers:
        return _Plan({}, frozenset())
    free_in = np.array([free_s for _, free_s in servers])
    takes = np.array([[_seconds(job, device, state) for device, _ in servers] for job in jobs])
    places = np.arange(1, min(len(jobs), 2 + 3 * len(jobs) // len(servers)) + 1)
    prices = state.learned.demand.prices(Counter(device.kind for device in state.all_devices()))
    others = np.array([prices[device.kind] for device, _ in servers])
    costs = free_in[None, None, :] + (places[None, :, None] + others[None, None, :]) * takes[:, None, :]
    columns = assign(costs.reshape(len(jobs), -1))
    kinds: dict[str, str] = {}
    first: dict[int, tuple[int, str]] = {}  # by device: the job that is first there
    for job, column in zip(jobs, columns, strict=True):
        place, at = divmod(column, len(servers))
        kinds[job.id] = servers[at][0].kind
        first[at] = max(first.get(at, (-1, "")), (place, job.id))
    now = frozenset(job for at, (_, job) in first.items() if free_in[at] <= 0.0)
    return _Plan(kinds, now)


def _waiting(state: State) -> Iterator[Job]:
    """The jobs that are planned, in order; those of a worse queue come after all others have been."""
    best: int | None = None
    for line, job in state.queue_of_waiting.in_order():
        priority = state.queue(line.queue).priority
        best = priority if best is None else best
        if priority > best:
            return
        if _is_planned(job) and len(_speeds(job, state)) > 1 and state.limit_on(line.queue) is None:
            yield job


def _servers(state: State, jobs: int) -> Iterator[tuple[Device, float]]:
    """Devices, with the seconds until each is expected to be free; of each kind as many as the jobs could use."""
    by_kind: dict[str, list[tuple[float, int, Device]]] = {}
    for at, device in enumerate(state.all_devices()):
        by_kind.setdefault(device.kind, []).append((_free_in_s(device.id, state), at, device))
    for ranked in by_kind.values():
        for free_s, _, device in sorted(ranked, key=lambda one: one[:2])[: min(jobs, _MOST_SERVERS)]:
            yield device, free_s


def _seconds(job: Job, device: Device, state: State) -> float:
    factor = job.estimate.slower_on(device.kind)
    if factor is None or not can_take(job, device, state):
        return _NEVER
    left_s, _ = expected_left(job, state.now, state.learned.lengths)
    return job.estimate.launching_s + left_s * factor + job.estimate.saving_s
