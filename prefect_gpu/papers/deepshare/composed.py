"""Who runs beside whom on each group of nodes, chosen for all of them at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from prefect_gpu.papers.deepshare.compositions import Chooser, Chosen, Floats, Latest, TooMany, Wide
from prefect_gpu.papers.deepshare.speeds import Speeds
from prefect_gpu.scheduling.allocation.base import Action, tell_early, tell_line
from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable
from prefect_gpu.scheduling.interference.spreading import pieces, placed, seconds_left
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.state.fits import free_by_node

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision

_LEAST_WIDE = 0.8  # part of its speed that a job must keep on all nodes, alone, for this to be thought of
_SMALLNESS, _SHORTNESS = 0.4, 0.35  # how much jobs are preferred that are small, or of which little remains
_COST = 0.09  # weight of lost speed in itself, whoever loses it, per device of a group
_LEAST_SHARE = 0.4  # of its speed, with less of which no job may run
_LEAST_S = 300.0  # what remains of a job counts as no less: the last seconds are not worth any price


@dataclass(frozen=True)
class _Problem:
    """Who can run, by class, and where.

    Attributes:
        classes: (model, devices) of each class.
        jobs: The jobs of each class, the first to run first.
        remaining_s: Seconds that remain of each of these, alone.
        width: Nodes of a group.
        capacity: Devices of a group.
        nodes: Numbers of the nodes.
    """

    classes: list[tuple[str, int]]
    jobs: list[list[Job]]
    remaining_s: list[list[float]]
    width: int
    capacity: int
    nodes: list[int]

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Neighbouring nodes, so many as the narrowest spread has."""
        ends = range(0, len(self.nodes) + 1, self.width)
        return [tuple(self.nodes[begin:end]) for begin, end in pairwise(ends)]


class Composed(Action):
    """Divides the nodes into groups, and chooses for each of them the best composition of jobs, for all jobs at once.

    Each class of jobs has a price: what a second of its work costs if all work that is left is done in the best company
    (see :meth:`~prefect_gpu.papers.deepshare.compositions.Compositions.prices`). A second of a job is worth

        price × devices × (4 devices ÷ group's)^−0.4 × (remaining ÷ median)^−0.35

    and what runs on a group is the composition with the largest sum of worth × ratio, less 0.09 × devices of a group ×
    what everybody loses of its speed. Jobs that are hardly slower on all nodes than on one group may be spread so. It
    is decided anew when jobs have come or gone, and running jobs may be stopped and moved for it.

    This is for a world in which moving is free, on nodes that are alike, and for jobs that may be stopped and have been
    measured on the same narrowest number of nodes. Everywhere else it leaves all to the actions after it.

    Args:
        speeds: See :class:`~prefect_gpu.scheduling.interference.spreading.Speeds`.
    """

    def __init__(self, speeds: Mapping[Key, float] | None = None) -> None:
        self._speeds = Speeds(speeds)
        self._seen: tuple[frozenset[str], frozenset[str]] | None = None
        self._latest = Latest()

    def act(self, decision: Decision) -> bool:
        """See the class."""
        tell_early(decision)
        problem = self._problem(decision)
        if problem is None:
            return False
        there = (frozenset(job.id for jobs in problem.jobs for job in jobs), frozenset(decision.state.nodes))
        if there == self._seen or not there[0]:
            return True
        try:
            chosen, prices = self._compose(problem, decision.state.learned.sensitivity)
        except TooMany:
            return False
        self._seen = there
        self._seat(decision, problem, chosen, prices)
        for line in decision.state.queue_of_waiting.lines():
            words = "other jobs make better use of these nodes now, by the price of their work, their size and length"
            tell_line(decision, line, "contention", words)
        return True

    def _problem(self, decision: Decision) -> _Problem | None:
        """What there is to decide; None if this is no case for compositions."""
        state = decision.state
        lines = state.queue_of_waiting.lines()
        queues = {line.queue for line in lines} | {job.queue for job in state.running.values()}
        if (
            not decision.abilities.free_moves
            or not state.nodes
            or any(state.limit_on(queue) is not None for queue in queues)
            or len({state.queue(queue).priority for queue in queues}) > 1
            or len({len(books.node.devices) for books in state.numbered}) > 1
            or len({books.node.domain for books in state.numbered}) > 1
            or any(not decision.may_stop(job) for job in state.running.values())
            or any(not decision.can_stop(line.entries[0][1]) for line in lines)
        ):
            return None
        by_class: dict[tuple[str, int], list[Job]] = {}
        requests: dict[tuple[str, int], Job] = {}
        for job in [*state.running.values(), *(entry[1] for line in lines for entry in line.entries)]:
            found = (job.request.kind, job.request.total_gpus)
            if requests.setdefault(found, job).request != job.request:
                return None
            by_class.setdefault(found, []).append(job)
        nodes = sorted(books.number for books in state.numbered)
        narrowest = {min(self._speeds.widths(job.request, len(nodes)), default=0) for job in requests.values()}
        if len(narrowest) != 1 or 0 in narrowest:
            return None
        width = narrowest.pop()
        capacity = width * len(state.numbered[nodes[0]].node.devices)
        fit = all(pieces(job.request)[1] == 1 and gpus <= capacity for (_, gpus), job in requests.items())
        usable = all(
            state.capability.possible(job.request) and not job.request.shareable and not job.request.gpu_memory_bytes
            for job in requests.values()
        )
        if len(nodes) % width or not fit or not usable:
            return None
        classes = sorted(by_class)
        jobs, remaining_s = [], []
        for one in classes:
            known = sorted(
                (
                    (max(_LEAST_S, seconds_left(job, decision.now)), job.submitted_at, job.id, job)
                    for job in by_class[one]
                ),
                key=lambda entry: entry[:3],
            )
            jobs.append([entry[3] for entry in known])
            remaining_s.append([entry[0] for entry in known])
        return _Problem(classes, jobs, remaining_s, width, capacity, nodes)

    def _compose(self, problem: _Problem, table: SensitivityTable) -> tuple[Chosen, Floats]:
        """What is to run, and the price of a second of each class, in devices."""
        keys = [Key(model, gpus, problem.width) for model, gpus in problem.classes]
        sizes = np.array([key.gpus for key in keys], dtype=float)
        groups = len(problem.groups)
        ratio = table.ratio
        ratios = np.array([[ratio(own, other) for other in keys] for own in keys])
        capacity = problem.capacity
        compositions = self._latest.of([gpus for _, gpus in problem.classes], ratios, capacity)
        work_s = np.array([sum(seconds) for seconds in problem.remaining_s])
        prices = compositions.prices(work_s) * capacity / sizes
        most = groups * (capacity // int(sizes.min()))
        middle_s = median(seconds for one in problem.remaining_s for seconds in one)
        weights = np.full((len(keys), most), -np.inf)
        worth = sizes * prices * (4 * sizes / capacity) ** -_SMALLNESS
        for at, seconds in enumerate(problem.remaining_s):
            first = np.array(seconds[:most])
            weights[at, : len(first)] = worth[at] * (first / middle_s) ** -_SHORTNESS
        wide = self._wide(problem, keys, table)
        chooser = Chooser(compositions, weights, groups, cost=_COST * capacity, least_ratio=_LEAST_SHARE, wide=wide)
        return chooser.choose(), prices

    def _wide(self, problem: _Problem, narrow: Sequence[Key], table: SensitivityTable) -> Wide | None:
        """Jobs that are hardly slower on all nodes, or even faster."""
        nodes = len(problem.nodes)
        keys = [key._replace(nodes=nodes) for key in narrow]
        ratio = table.ratio
        if nodes == problem.width:
            return None
        speedups = [1 / self._speeds.stretch(key) for key in keys]
        may = [
            at
            for at, key in enumerate(keys)
            if nodes in self._speeds.widths(problem.jobs[at][0].request, nodes) and speedups[at] >= _LEAST_WIDE
        ]
        return Wide(
            may,
            np.array(speedups),
            np.array([[ratio(own, other) for other in keys] for own in narrow]),
            np.array([[ratio(own, other) for other in narrow] for own in keys]),
            np.array([[ratio(own, other) for other in keys] for own in keys]),
        )

    def _seat(self, decision: Decision, problem: _Problem, chosen: Chosen, prices: Floats) -> None:
        """Stop who is not to run where it runs, and start the others, the longest first."""
        state = decision.state
        places = [tuple(problem.nodes), *self._nearest(decision, problem, chosen)]
        parts = [(chosen.wide, chosen.wide_ratios), *zip(chosen.groups, chosen.ratios, strict=True)]
        queues = [iter(jobs) for jobs in problem.jobs]
        seats: dict[Job, tuple[tuple[int, ...], float, int]] = {}
        for (classes, ratios), nodes in zip(parts, places, strict=True):
            for one, ratio in zip(classes, ratios, strict=True):
                seats[next(queues[one])] = (nodes, ratio, one)
        for job in list(state.running.values()):
            if job not in seats or _nodes_of(decision, job) != frozenset(seats[job][0]):
                decision.preempt(job, "a better composition of jobs needs its devices")
        starting = [job for job in seats if job.placement is None]
        for job in sorted(starting, key=lambda job: -seconds_left(job, decision.now)):
            nodes, ratio, one = seats[job]
            others = Counter(
                problem.classes[at] for _, (where, _, at) in seats.items() if set(where) & set(nodes)
            ) - Counter([problem.classes[one]])
            room = free_by_node(job, state)
            each = problem.classes[one][1] // len(nodes)
            if any(len(room.get(number, ())) < each for number in nodes):
                continue  # a device is lost or in use by others
            decision.launch(
                job,
                placed(job, nodes, room, state, decision.sharing),
                f"it is expected to keep {ratio:.0%} of its speed {_told(others)}; beside the best other jobs, a "
                f"second of its work costs {prices[one]:.2f} times its devices",
            )

    def _nearest(self, decision: Decision, problem: _Problem, chosen: Chosen) -> list[tuple[int, ...]]:
        """Which nodes each composition is for: those where most of its classes are running already."""
        left = problem.groups
        on = {
            nodes: Counter(
                (job.request.kind, job.request.total_gpus)
                for job in decision.state.running.values()
                if _nodes_of(decision, job) == frozenset(nodes)
            )
            for nodes in left
        }
        found = []
        for classes in chosen.groups:
            wanted = Counter(problem.classes[at] for at in classes)
            best = max(left, key=lambda nodes: (wanted & on[nodes]).total())
            left.remove(best)
            found.append(best)
        return found


def _told(others: Mapping[tuple[str, int], int]) -> str:
    named: Iterable[str] = (
        f"{count} {model or 'run'}{'s' if count > 1 else ''} on {gpus} devices"
        for (model, gpus), count in sorted(others.items())
    )
    return f"beside {', '.join(named)}" if others else "alone on its nodes"


def _nodes_of(decision: Decision, job: Job) -> frozenset[int]:
    devices = job.placement.all_devices if job.placement else ()
    return frozenset(decision.state.number_of(device) for device in devices if decision.state.has_node(device))
