"""Where elastic gangs of other sizes, and jobs that start beside them, would go; the books stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.elastic.goodput import Growing
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.placement.granting import granted_gang
from prefect_gpu.scheduling.state.fits import without
from prefect_gpu.scheduling.state.state import State

Placed = list[tuple[Job, Placement]]


@dataclass
class Outcome:
    """Who goes where: to be carried out in this order.

    Attributes:
        shrinks: Gangs that keep some of their devices.
        starts: Jobs that waited.
        grows: Gangs that get more workers.
        failed: Jobs that were to start and have no place; nothing else counts then.
        elastic: Whether an elastic gang is among those that start.
    """

    shrinks: Placed = field(default_factory=list)
    starts: Placed = field(default_factory=list)
    grows: Placed = field(default_factory=list)
    failed: list[Job] = field(default_factory=list)
    elastic: bool = False

    @property
    def changes(self) -> bool:
        """Whether anything is to be done that the other actions would not do by themselves."""
        return bool(self.shrinks or self.grows or self.elastic)


def try_out(
    decision: Decision,
    running: Sequence[Job],
    waiting: Sequence[Job],
    growing: Mapping[str, Growing],
    wanted: Mapping[str, int],
    pays: Callable[[Growing, int], bool],
) -> Outcome:
    """Places for the sizes that are wanted.

    Args:
        running: Elastic gangs that may be resized.
        waiting: Jobs that may start, those that come first before others.
        growing: What is known of all of them.
        wanted: Devices by job; waiting jobs that are left out wait.
        pays: Whether another number of devices is worth a restart to a gang for its own sake.
    """
    outcome = Outcome()
    with _Trial(decision) as trial:
        shrinking = [job for job in running if wanted[job.id] < len(growing[job.id].nodes)]
        room = trial.room(running)
        for job in shrinking:
            trial.put(job, trial.shrunk(job, wanted[job.id] // job.request.gpus, room))
        for job in sorted((job for job in waiting if job.id in wanted), key=lambda job: not job.late):
            sizes = _sizes(growing[job.id], wanted[job.id], growing[job.id].least or 1)
            if not trial.place(job, growing[job.id], sizes):
                outcome.failed.append(job)
            outcome.elastic |= job.request.grows
        if outcome.failed:
            return outcome
        outcome.starts = [(job, trial.places[job.id]) for job in waiting if job.id in trial.places]
        growers = [job for job in running if wanted[job.id] > len(growing[job.id].nodes)]
        for job in sorted(growers, key=lambda job: -_gain(growing[job.id], wanted[job.id])):
            one = growing[job.id]
            sizes = [size for size in _sizes(one, wanted[job.id], len(one.nodes) + 1) if pays(one, size)]
            if trial.place(job, one, sizes, pays):
                outcome.grows.append((job, trial.places[job.id]))
        for job in sorted(shrinking, key=lambda job: _gain(growing[job.id], wanted[job.id])):
            trial.give_back(job, growing[job.id], pays)
        outcome.shrinks = [(job, trial.places[job.id]) for job in shrinking if job.id in trial.places]
    return outcome


def speed_on(job: Job, devices: int, nodes: int) -> float:
    """Steps per second of an elastic gang, as far as is known; 0 where it cannot run."""
    told = job.estimate
    curve = told.apart if nodes > 1 and told.apart else told.throughput
    return curve[devices - 1] if devices <= len(curve) else 0.0


def _sizes(one: Growing, most: int, least: int) -> list[int]:
    """The sizes between these that the job may have, the largest first: each is faster than all that are smaller."""
    found, fastest = list[int](), 0.0
    for size, speed in sorted(one.speed.items()):
        if size <= most and speed > fastest:
            fastest = speed
            if size >= least:
                found.append(size)
    return found[::-1]


def _gain(one: Growing, size: int) -> float:
    """Speed with so many devices ÷ speed with those that it has."""
    return one.speed[size] / one.speed[len(one.nodes)]


class _Trial:
    """The books as if jobs were elsewhere; at the end they are as they were.

    Attributes:
        places: Where jobs would be, of those that would be elsewhere than now.
    """

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self._state: State = decision.state
        self._twins: dict[str, Job] = {}
        self._away: dict[str, Job] = {}
        self.places: dict[str, Placement] = {}

    def __enter__(self) -> _Trial:
        return self

    def __exit__(self, *_: object) -> None:
        for twin in self._twins.values():
            self._state.occupy(twin, -1)
        for job in self._away.values():
            self._state.occupy(job)

    def put(self, job: Job, place: Placement | None) -> None:
        """The job would be there; None: where it is now."""
        before = self._twins.pop(job.id, None)
        if before is not None:
            self._state.occupy(before, -1)
        elif job.placement is not None and job.id not in self._away:
            self._away[job.id] = job
            self._state.occupy(job, -1)
        self.places.pop(job.id, None)
        if place is not None:
            twin = self._twins[job.id] = copy(job)
            twin.placement = self.places[job.id] = place
            self._state.occupy(twin)
        elif self._away.pop(job.id, None) is not None:
            self._state.occupy(job)

    def place(
        self, job: Job, one: Growing, sizes: Sequence[int], pays: Callable[[Growing, int], bool] | None = None
    ) -> bool:
        """Let the profile's placement place it, with the number of devices with which it is fastest; whether it can.

        Args:
            one: What is known of it.
            sizes: Numbers of devices, the largest first, each faster than those after it: the first for which there is
                room is taken, unless it is slower there, as it would be on more nodes than was thought.
            pays: Whether that speed is worth it; None: any is.
        """
        decision, own = self._decision, job.placement
        decision.about = job if own is None else None
        best, fastest = None, 0.0
        with without([job] if own is not None else [], self._state):
            for size in sizes:
                if size > self._state.free_count and not job.request.shareable:
                    continue
                twin = copy(job)
                twin.placement = None
                if job.request.grows:
                    twin.request = replace(job.request, workers=size // job.request.gpus)
                place = decision.placement.place(twin, self._state, decision.sharing)
                if place is None:
                    continue
                expected = one.speed[size]
                speed = (
                    speed_on(job, size, len(place.nodes)) if any(job.estimate.throughput) and job.request.grows else 1.0
                )
                if speed > fastest and (pays is None or pays(replace(one, speed={**one.speed, size: speed}), size)):
                    best, fastest = place, speed
                if speed >= expected:
                    break
        if best is not None:
            self.put(job, best)
        return best is not None

    def room(self, running: Sequence[Job]) -> dict[str, int]:
        """Devices of each node that would be free without these gangs."""
        state = self._state
        found = {name: state.free_on(name) for name in state.nodes}
        for job in running:
            for part in job.placement.parts if job.placement is not None else ():
                if part.node in found:
                    found[part.node] += len(part.devices)
        return found

    def shrunk(self, job: Job, workers: int, room: Mapping[str, int]) -> Placement:
        """So many of its workers where they are: those go that are on nodes where most room could be made.

        All that shrink clear the same nodes so, and wide jobs find room there. Of equal nodes, those with the fewest of
        its workers are left.
        """
        own = job.placement
        assert own is not None
        here = {part.node: sum(other.node == part.node for other in own.parts) for part in own.parts}
        stays = sorted(range(len(own.parts)), key=lambda at: (room[own.parts[at].node], -here[own.parts[at].node], at))
        return self._kept(job, sorted(stays[:workers]))

    def give_back(self, job: Job, one: Growing, pays: Callable[[Growing, int], bool]) -> None:
        """Let a gang that shrinks keep what nobody takes, if that makes it faster; all, unless fewer are worth it."""
        own, state = job.placement, self._state
        assert own is not None
        kept = {device for part in self.places[job.id].parts for device in part.devices}
        mine = [
            at
            for at, part in enumerate(own.parts)
            if kept.issuperset(part.devices) or all(map(state.is_free, part.devices))
        ]
        best = _sizes(one, len(mine) * job.request.gpus, len(kept))[:1]
        if len(mine) == len(own.parts) and not any(pays(one, size) for size in (len(kept), *best)):
            self.put(job, None)
        elif best and best[0] > len(kept):
            first = sorted(mine, key=lambda at: not kept.issuperset(own.parts[at].devices))
            self.put(job, self._kept(job, sorted(first[: best[0] // job.request.gpus])))

    def _kept(self, job: Job, parts: Sequence[int]) -> Placement:
        own, state = job.placement, self._state
        assert own is not None
        workers = [(state.nodes[own.parts[at].node], own.parts[at].devices) for at in parts]
        here = self._twins.get(job.id, job)
        with without([here], state):  # its own cores are its own to choose
            return granted_gang(job, workers, (), state, self._decision.sharing)
