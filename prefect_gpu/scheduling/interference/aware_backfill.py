"""Jobs on several nodes start where, and beside whom, they and the others there lose the least, as far as is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.allocation.base import tell_line
from prefect_gpu.scheduling.interference.sensitivity import (
    Key,
    Running,
    Start,
    choose_start,
    gain_of,
    in_words,
    ratios_of,
)
from prefect_gpu.scheduling.interference.snapshot import Speeds, key_of, look, running_jobs, worths_in
from prefect_gpu.scheduling.interference.spreading import avoided, can_spread, free_devices, placed
from prefect_gpu.scheduling.preemption.make_room import MakeRoom

if TYPE_CHECKING:
    from prefect_gpu.scheduling.allocation.reservations import Reservations
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.model.cluster import Placement
    from prefect_gpu.scheduling.model.jobs import Job
    from prefect_gpu.scheduling.state.state import State
    from prefect_gpu.scheduling.state.waiting import Line

_WORTH_POWER = 2.0
_MOST_LINES = 64
_ROUNDING = 1e-9


class InterferenceAwareBackfill(MakeRoom):
    """:class:`MakeRoom`, and nothing else as long as nothing is known of how jobs slow each other down on the network.

    When it is the turn of a job that would go on several nodes, and of whose program something is known, DeepShare's
    greedy rule (:func:`.choose_start`) says which of the waiting jobs that
    spread, of the same queue's priority, starts now, and on which nodes: the one with the largest sum of changes of
    everybody's ratio, each weighted with what that job's work is worth, ÷ the GPU seconds that it needs. If nobody has
    more by it than others lose, these jobs wait. A place where nobody loses anything is taken as it is.

    Whoever has lost patience goes where there is room; nobody is considerate while devices are kept for such a one.
    Jobs that were parted do not meet. If the quotas limit the slowdown, nobody is started who would be slowed down
    more than that, or slow down others.

    Args:
        speeds: Speeds alone by how jobs are spread, if measured.
        advantage: As for :class:`MakeRoom`.
    """

    def __init__(self, speeds: Mapping[Key, float] | None = None, advantage: float = 1.0) -> None:
        super().__init__(advantage, grace=True)
        self._speeds = Speeds(speeds, fewest=True)
        self._words: dict[str, str] = {}  # of the job that is about to start
        self._kept_back = False

    def bind(self, state: State) -> None:
        """Called once, before anything else."""
        super().bind(state)
        self._table = state.learned.sensitivity

    def concerns(self, job: Job) -> bool:
        """Whether something is known of what a job, if it is spread, does to others, or they to it."""
        return can_spread(job.request) and self._table.knows(job.request.kind)

    def _first_that_fits(
        self, decision: Decision, line: Line, first: Job, reservations: Reservations
    ) -> tuple[Job, Placement] | None:
        """See the class."""
        self._kept_back, self._words = False, {}
        found = super()._first_that_fits(decision, line, first, reservations)
        if found is None or first.impatient or reservations or not self.concerns(first):
            return found
        job, placement = found
        nodes = frozenset(decision.state.number_of(device) for device in placement.all_devices)
        if len(nodes) == 1 or (self._calm(decision, job, nodes) and self._usual(decision, job, nodes)):
            return found
        return self._chosen(decision, line, job, placement)

    def _calm(self, decision: Decision, job: Job, nodes: frozenset[int]) -> bool:
        """Whether nobody loses anything if the job starts there, and it meets none that it was parted from."""
        key = key_of(job, len(nodes))
        there = [one.key for one in running_jobs(decision).values() if one.nodes & nodes]
        loses = any(self._table.ratio(key, other) < 1 or self._table.ratio(other, key) < 1 for other in there)
        return not loses and nodes.isdisjoint(avoided(job, decision.state))

    def _usual(self, decision: Decision, job: Job, nodes: frozenset[int]) -> bool:
        """Whether it would be on as many nodes as it should: not on more than it needs, if it is no faster there."""
        state = decision.state
        return len(nodes) in self._speeds.worthwhile(job.request, len(state.numbered), state.largest_node)

    def _chosen(self, decision: Decision, line: Line, first: Job, placement: Placement) -> tuple[Job, Placement] | None:
        """The job that starts now instead of the first of the line, which may be the same one, and where.

        The rule spreads jobs evenly. Where only uneven parts find room, it is asked of these, too, before all wait.
        """
        state, sharing = decision.state, decision.sharing
        priority = state.queue(line.queue).priority
        jobs = []
        walk = state.queue_of_waiting.in_order()
        for other, job in walk:
            walk.leave()
            same = state.queue(other.queue).priority == priority and state.limit_on(other.queue) is None
            if same and can_spread(job.request):
                jobs.append(job)
                if len(jobs) == _MOST_LINES:
                    break
        view = look(decision, jobs, self._speeds)
        limit = state.quotas.slowdown_limit
        least_ratio = 0.0 if limit is None else 1 / limit - _ROUNDING
        worths = worths_in(view, _WORTH_POWER)
        start = choose_start(
            view.candidates, view.running, view.free, self._table, least_ratio, least_gain=0.0, worths=worths
        )
        if start is None:
            on = Counter(state.number_of(device) for device in placement.all_devices)
            key, nodes, running = key_of(first, len(on)), frozenset(on), view.running
            ratios = ratios_of(running, self._table)
            gain = gain_of(key, nodes, running, ratios, self._table, worths, least_ratio, least_gain=0.0)
            even = len(set(on.values())) == 1
            self._kept_back = even or gain is None or not nodes.isdisjoint(avoided(first, state))
            return None if self._kept_back else (first, placement)
        job = jobs[start.job]
        room = free_devices(job, state, sharing)
        self._words = {job.id: self._told(start, job, line, view.running)}
        return job, placed(job, sorted(start.nodes), room, state, sharing)

    def _told(self, start: Start, job: Job, line: Line, running: Iterable[Running]) -> str:
        words = in_words(start, running, self._table)
        first = line.entries[0][1]
        return (
            words
            if job is first
            else f"{words}; {first.label} is next in the order, but would lose more or slow down others more"
        )

    def _reason(self, decision: Decision, job: Job, placement: Placement) -> str:
        return self._words.get(job.id) or super()._reason(decision, job, placement)

    def _make_room(self, decision: Decision, job: Job, reservations: Reservations) -> bool:
        return not self._kept_back and super()._make_room(decision, job, reservations)

    def _blocked(self, decision: Decision, line: Line, reservations: Reservations) -> None:
        if self._kept_back:
            words = "starting it now would slow down the runs beside it by more than it would progress"
            tell_line(decision, line, "contention", lambda: words)
        else:
            super()._blocked(decision, line, reservations)
