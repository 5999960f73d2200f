"""Jobs on several nodes start where, and beside whom, they and the others there lose the least, as far as is known."""

from __future__ import annotations

from collections import Counter

from prefect_gpu.scheduling.allocation.base import tell_line
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.interference.sensitivity import Gains, choose_start, in_words
from prefect_gpu.scheduling.interference.spreading import (
    Spreads,
    avoided,
    can_spread,
    key_of,
    placed,
    running_jobs,
    ways_to_start,
)
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.state.fits import any_will_last, free_by_node
from prefect_gpu.scheduling.state.state import State
from prefect_gpu.scheduling.state.waiting import Line

_WORTH_POWER = 2.0
_MOST_LINES = 64
_ROUNDING = 1e-9


def contention_known(job: Job, state: State) -> bool:
    """Whether something is known of what a job, if it is spread, does to others, or they to it."""
    return can_spread(job.request) and state.learned.sensitivity.knows(job.request.kind)


class InterferenceGuard:
    """Keeps jobs on several nodes from slowing each other down; a part of :class:`.Backfill`.

    It says nothing as long as nothing is known of how jobs slow each other down on the network. When it is the turn of
    a job that would go on several nodes, and of whose program something is known, DeepShare's greedy rule
    (:func:`.choose_start`) says which of the waiting jobs that spread, of the same queue's priority, starts now, and on
    which nodes; each change of a ratio is weighted with what that job's work is worth. If nobody gains more than others
    lose, these jobs wait. A place where nobody loses anything is taken as it is.

    Whoever has lost patience goes where there is room; nobody is considerate while devices are kept for such a one.
    Jobs that were parted do not meet. If the quotas limit the slowdown, nobody is started who would be slowed down
    more than that, or slow down others.

    Args:
        spreads: On how many nodes jobs go, if that was measured.
    """

    def __init__(self, spreads: Spreads | None = None) -> None:
        self._spreads = spreads or Spreads()

    def check(
        self, decision: Decision, line: Line, job: Job, placement: Placement
    ) -> tuple[tuple[Job, Placement], str] | None:
        """Who starts, and where, if the first job of a line has found this place.

        Returns:
            The job and its place, and why it is this one (empty: nothing speaks against the first). None: all of the
            line wait, and have been told why.
        """
        if contention_known(job, decision.state):
            nodes = frozenset(decision.state.number_of(device) for device in placement.all_devices)
            if len(nodes) > 1 and not (self._calm(decision, job, nodes) and self._usual(decision, job, nodes)):
                chosen = self._chosen(decision, line, job, placement)
                if chosen is None:
                    words = "starting it now would slow down the runs beside it by more than it would progress"
                    tell_line(decision, line, "contention", words)
                return chosen
        return (job, placement), ""

    def _calm(self, decision: Decision, job: Job, nodes: frozenset[int]) -> bool:
        """Whether nobody loses anything if the job starts there, and it meets none that it was parted from."""
        key = key_of(job, len(nodes))
        there = [one.key for one in running_jobs(decision).values() if one.nodes & nodes]
        ratio = decision.state.learned.sensitivity.ratio
        loses = any(ratio(key, other) < 1 or ratio(other, key) < 1 for other in there)
        return not loses and nodes.isdisjoint(avoided(job, decision.state))

    def _usual(self, decision: Decision, job: Job, nodes: frozenset[int]) -> bool:
        """Whether it would be on as many nodes as it should: not on more than it needs, if it is no faster there."""
        state = decision.state
        return len(nodes) in self._spreads.worthwhile(job.request, len(state.numbered), state.largest_node)

    def _chosen(
        self, decision: Decision, line: Line, first: Job, placement: Placement
    ) -> tuple[tuple[Job, Placement], str] | None:
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
        ways = ways_to_start(decision, jobs, self._spreads)
        running, table = list(running_jobs(decision).values()), state.learned.sensitivity
        limit = state.quotas.slowdown_limit
        least_ratio = 0.0 if limit is None else 1 / limit - _ROUNDING
        worths = table.worths((*(way.key for way in ways), *(one.key for one in running)), _WORTH_POWER)
        gains = Gains(running, table, least_ratio, least_gain=0.0, worths=worths)
        room = {
            books.number: len(books.free) if all(any_will_last(job, books.node, state) for job in jobs) else 0
            for books in state.numbered
        }
        start = choose_start(ways, room, gains)
        if start is None:
            on = Counter(state.number_of(device) for device in placement.all_devices)
            nodes = frozenset(on)
            gain = gains.of(key_of(first, len(on)), nodes)
            even = len(set(on.values())) == 1
            waits = even or gain is None or not nodes.isdisjoint(avoided(first, state))
            return None if waits else ((first, placement), "")
        job, words = jobs[start.job], in_words(start, running, table)
        there = placed(job, sorted(start.nodes), free_by_node(job, state), state, sharing)
        if job is not first:
            words += f"; {first.label} comes first in the order, but would lose more speed or cost others more"
        return (job, there), words
