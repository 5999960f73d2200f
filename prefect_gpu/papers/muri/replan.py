"""Place the whole order afresh at each decision: whoever is no longer among the first makes room."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

from prefect_gpu.papers.muri.node_packing import Packing, Spot, taken_by
from prefect_gpu.papers.muri.seating import seat
from prefect_gpu.scheduling.allocation.base import Action, tell_early, tell_limit, tell_line, why_not
from prefect_gpu.scheduling.model.cluster import Quotas
from prefect_gpu.scheduling.model.jobs import Job

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.state.state import State


class Replan(Action):
    """Preemptive scheduling as the simulators of Tiresias and Muri do it.

    1. Running jobs that cannot be stopped keep their devices.
    2. All others, running and waiting, are taken in order; each that fits beside those before it is *chosen*.
    3. Running jobs that were not chosen are stopped; chosen ones that wait are started. Running ones that were chosen
       stay where they are, unless what was chosen only fits if they move.
    """

    def act(self, decision: Decision) -> bool:
        """See the class."""
        tell_early(decision)
        chosen = self.choose(decision)
        seat(decision, chosen)
        limited = _limited(decision.state)
        for line in decision.state.queue_of_waiting.lines():
            if (line.untold or line.told is None or limited) and not tell_limit(decision, line):
                tell_line(decision, line, *why_not(decision, line))
        return True

    def choose(self, decision: Decision) -> dict[Job, list[Spot]]:
        """The jobs that are to run, with the nodes that they would have if all moved, in order."""
        state, order, now = decision.state, decision.order, decision.now
        nodes = [books.node for books in state.numbered]
        stays = []
        movable = []
        for job in state.running.values():
            if decision.may_stop(job):
                movable.append(((state.queue(job.queue).priority, 1, *order.key(job, state, now)), job))
            else:
                stays.append(job)
        movable.sort(key=_first)
        packing = Packing(nodes, taken_by(stays, decision))
        chosen: dict[Job, list[Spot]] = {}
        limited = _limited(state)
        counts = Counter[str]()  # chosen jobs that wait: they count as running, although nobody has started yet
        lines = state.queue_of_waiting.lines()
        heap: list[tuple[object, int, int]] = [(line.entries[0][0], at, 0) for at, line in enumerate(lines)]
        heapq.heapify(heap)
        at = 0
        while True:
            if at < len(movable) and (not heap or movable[at][0] <= heap[0][0]):  # type: ignore[operator]
                job = movable[at][1]
                at += 1
                spots = packing.put(job.request, job.room_bytes)
                if spots is not None:
                    chosen[job] = spots
                continue
            if not heap or (packing.total <= 0 and at >= len(movable)):
                return chosen
            _, number, place = heap[0]
            line = lines[number]
            kept_back = limited and state.limit_on(line.queue, counts) is not None
            spots = None if kept_back else packing.put(line.request, line.room_bytes)
            if spots is None:
                heapq.heappop(heap)  # whoever comes later in the line asks for the same
                continue
            chosen[line.entries[place][1]] = spots
            counts[line.queue] += 1
            if place + 1 < len(line.entries):
                heapq.heapreplace(heap, (line.entries[place + 1][0], number, place + 1))
            else:
                heapq.heappop(heap)


def _limited(state: State) -> bool:
    """Whether there are limits of the user's at all."""
    return state.draining or state.quotas != Quotas()


def _first(entry: tuple[tuple[object, ...], Job]) -> tuple[object, ...]:
    return entry[0]
