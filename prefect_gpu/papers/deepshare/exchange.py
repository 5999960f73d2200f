"""Running jobs that others should take the place of, or that should move: by what gets done on a shared network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from prefect_gpu.papers.deepshare.compositions import DECIMALS
from prefect_gpu.papers.deepshare.speeds import Speeds
from prefect_gpu.scheduling.interference.sensitivity import Key, Running, SensitivityTable, Start
from prefect_gpu.scheduling.interference.spreading import avoided, key_of, running_jobs, seconds_left
from prefect_gpu.scheduling.model.jobs import Job, Status

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision

_LAUNCHES = 4.0  # what a stop must bring, in launches: it takes one, and the saving and loading of a checkpoint
_MOST_CHANGES = 3  # of one job
_MOST_RUNNING = 64
_MOST_TRIALS = 512
_MOST_NODES = 8

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """What should change for one running job.

    Attributes:
        job: It is stopped or moved.
        nodes: Where it moves; None: it is stopped.
        start: What starts in its place; or, if it moves, in the room that it leaves. ``start.job`` is a number among
            the waiting jobs.
    """

    job: Job
    nodes: frozenset[int] | None
    start: Start


class Exchange:
    """Looks for the one change that gets most more done, if it is worth a stop.

    - *Somebody else in its place*: a running job is stopped, and a waiting one of as many devices starts on its nodes,
      if those beside it and the new one lose less of their speed by that.
    - *Room*: a job moves to other nodes, if one that waits then has room: devices that are free on too many nodes, or
      on the wrong ones, help nobody.

    What gets done is the sum of everybody's ratio × weight; a change is made if what it brings until the job would have
    been done is more than four launches of the job cost. Jobs of which it is not known how long a launch takes stay,
    and so does whoever was stopped or moved three times. With more than 64 running jobs nothing is looked for.

    Args:
        speeds: On how many nodes jobs go.
    """

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._moves: dict[str, int] = {}

    def find(self, decision: Decision, waiting: Sequence[Job], weights: Mapping[Key, float]) -> Change | None:
        """The best change, or None if none is worth it.

        Args:
            waiting: Jobs that may start, each of which stands for those like it.
            weights: Of the ratios, by key: what a second of all devices of a job is worth.
        """
        self._moves = {name: count for name, count in self._moves.items() if name in decision.state.running}
        running = running_jobs(decision)
        if not waiting or len(running) > _MOST_RUNNING:
            return None
        movable = [at for at, name in enumerate(running) if self._may_change(decision.state.running[name], decision)]
        if not movable:
            return None
        state = decision.state
        company = Company(list(running.values()), state.learned.sensitivity, weights, len(state.numbered))
        jobs = [decision.state.running[name] for name in running]
        found = [
            *self._places(decision, jobs, movable, waiting, company),
            *self._rooms(decision, jobs, movable, waiting, company),
        ]
        worth, change = max(found, key=itemgetter(0), default=(0.0, None))
        if change is None or worth <= 0:
            return None
        self._moves[change.job.id] = self._moves.get(change.job.id, 0) + (change.nodes is not None)
        return change

    def _may_change(self, job: Job, decision: Decision) -> bool:
        changes = job.stops + self._moves.get(job.id, 0)
        trains = job.status is Status.TRAINING and decision.may_stop(job)
        return trains and changes < _MOST_CHANGES and job.estimate.launching_s > 0 and not job.request.shareable

    def _worth(self, job: Job, gain: float, decision: Decision) -> float:
        cost = _LAUNCHES * job.estimate.launching_s * job.request.total_gpus
        return gain * seconds_left(job, decision.now) - cost

    def _places(
        self, decision: Decision, jobs: Sequence[Job], movable: Sequence[int], waiting: Sequence[Job], company: Company
    ) -> Iterator[tuple[float, Change]]:
        """Waiting jobs in the place of running ones."""
        places: dict[tuple[int, int], list[int]] = {}
        for at in movable:
            key = company.running[at].key
            places.setdefault((key.gpus, key.nodes), []).append(at)
        seen: set[Key] = set()
        for number, other in enumerate(waiting):
            for width in self._widths(other, decision):
                key = key_of(other, width)
                found = places.get((key.gpus, width))
                if found is None or key in seen or other.request.shareable:
                    continue
                seen.add(key)
                gains = company.gains_of_places(key)
                shunned = avoided(other, decision.state)
                for at in found:
                    nodes = company.running[at].nodes
                    if gains[at] > 0 and company.running[at].key != key and nodes.isdisjoint(shunned):
                        worth = self._worth(jobs[at], float(gains[at]), decision)
                        yield worth, Change(jobs[at], None, Start(number, key, nodes))

    def _rooms(
        self, decision: Decision, jobs: Sequence[Job], movable: Sequence[int], waiting: Sequence[Job], company: Company
    ) -> Iterator[tuple[float, Change]]:
        """Running jobs that move, and who has room then."""
        state = decision.state
        free = {books.number: len(books.free) for books in state.numbered}
        total = sum(free.values())
        starved: dict[Key, tuple[int, Job]] = {}
        for number, other in enumerate(waiting):
            for width in self._widths(other, decision):
                key = key_of(other, width)
                if key.gpus <= total and key not in starved and not _sets(decision, free, key):
                    starved[key] = number, other
        trials = 0
        for at in movable if starved else ():
            own = company.running[at]
            each = own.key.gpus // own.key.nodes
            vacated = {n: count + each * (n in own.nodes) for n, count in free.items()}
            shunned = avoided(jobs[at], state)
            for nodes in _sets(decision, vacated, own.key):
                if nodes == own.nodes or not nodes.isdisjoint(shunned):
                    continue
                room = {n: count - each * (n in nodes) for n, count in vacated.items()}
                for key, (number, other) in starved.items():
                    for there in _sets(decision, room, key):
                        trials += 1
                        if trials > _MOST_TRIALS:
                            return
                        if there.isdisjoint(avoided(other, state)):
                            gain = company.gain_of_room(at, nodes, key, there)
                            yield (
                                self._worth(jobs[at], gain, decision),
                                Change(jobs[at], nodes, Start(number, key, there)),
                            )

    def _widths(self, job: Job, decision: Decision) -> Iterable[int]:
        return self._speeds.worthwhile(job.request, len(decision.state.numbered), decision.state.largest_node)


class Company:
    """Who shares nodes with whom, and how much all of them get done."""

    def __init__(
        self, running: Sequence[Running], table: SensitivityTable, weights: Mapping[Key, float], nodes: int
    ) -> None:
        self.running = running
        self._table, self._of, self._nodes = table, weights, nodes
        keys = [one.key for one in running]
        self._suffers = np.array([[table.ratio(own, other) for other in keys] for own in keys])
        self._weights = np.array([self._weight(key) for key in keys])
        self._on = np.array([self._row(one.nodes) for one in running])
        self._beside = (self._on @ self._on.T) > 0
        np.fill_diagonal(self._beside, False)
        count = len(keys)
        among = np.where(self._beside, self._suffers, 1.0)
        worst = among.argmin(axis=1)
        ratios = among.min(axis=1)
        # _without[j, i]: the ratio of i if j were gone.
        self._without = np.tile(ratios, (count, 1))
        rest = among.copy()
        rest[np.arange(count), worst] = 1.0
        self._without[worst, np.arange(count)] = rest.min(axis=1)
        np.fill_diagonal(self._without, 0.0)
        self._now = float(self._weights @ ratios)

    def gains_of_places(self, key: Key) -> Floats:
        """For each running job: how much more gets done with one of this key in its place."""
        from_it, of_it = self._both(key)
        after = np.where(self._beside, np.minimum(self._without, from_it), self._without)
        own = np.where(self._beside, of_it, 1.0).min(axis=1)
        return np.round(after @ self._weights + self._weight(key) * own - self._now, DECIMALS)

    def gain_of_room(self, at: int, nodes: frozenset[int], key: Key, there: frozenset[int]) -> float:
        """How much more gets done if one job moves, and one of this key starts where there is room then."""
        beside = (self._on @ self._row(nodes)) > 0
        beside[at] = False
        after = np.where(beside, np.minimum(self._without[at], self._suffers[:, at]), self._without[at])
        after[at] = self._suffers[at][beside].min(initial=1.0)
        on = self._on.copy()
        on[at] = self._row(nodes)
        meets = (on @ self._row(there)) > 0
        from_it, of_it = self._both(key)
        after = np.where(meets, np.minimum(after, from_it), after)
        own = of_it[meets].min(initial=1.0)
        return round(float(after @ self._weights) + self._weight(key) * float(own) - self._now, DECIMALS)

    def _both(self, key: Key) -> tuple[Floats, Floats]:
        """What everybody keeps beside a job of this key, and it beside each of them."""
        ratio = self._table.ratio
        return (
            np.array([ratio(one.key, key) for one in self.running]),
            np.array([ratio(key, one.key) for one in self.running]),
        )

    def _weight(self, key: Key) -> float:
        return self._of.get(key, float(key.gpus))

    def _row(self, nodes: frozenset[int]) -> Floats:
        row = np.zeros(self._nodes)
        row[list(nodes)] = 1.0
        return row


def _sets(decision: Decision, free: Mapping[int, int], key: Key) -> list[frozenset[int]]:
    """Sets of nodes of one domain that would have room; of many nodes, those with the fewest devices free."""
    each = key.gpus // key.nodes
    by_domain: dict[str, list[int]] = {}
    for number in sorted((n for n, count in free.items() if count >= each), key=lambda n: (free[n], n)):
        by_domain.setdefault(decision.state.numbered[number].node.domain, []).append(number)
    return [
        frozenset(some)
        for numbers in by_domain.values()
        for some in combinations(numbers[: max(_MOST_NODES, key.nodes)], key.nodes)
    ]
