"""Choose as a whole which jobs run next, where stopping a job costs something."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter, itemgetter

from prefect_gpu.scheduling.allocation.base import Action, why_not
from prefect_gpu.scheduling.allocation.reservations import Reservations
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.fair_share.ranked import rank_by_share
from prefect_gpu.scheduling.interference.guard import contention_known
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.preemption.best_set import STAYS, best_set, blocks_of, value
from prefect_gpu.scheduling.preemption.carry_out import carry_out
from prefect_gpu.scheduling.preemption.give_way import GiveWay
from prefect_gpu.scheduling.preemption.minimum_runtime import left_alone_until
from prefect_gpu.scheduling.preemption.pools import Pool, Shape, pools_of, shape_of
from prefect_gpu.scheduling.preemption.seating import Seating, Spots
from prefect_gpu.scheduling.preemption.units import Unit, credit_of, is_spared, restart_s, unit_of
from prefect_gpu.scheduling.state.endings import lasts_until
from prefect_gpu.scheduling.state.lengths import expected_left, next_step_s
from prefect_gpu.scheduling.state.state import State
from prefect_gpu.scheduling.state.waiting import Key, Line

_MOST_WAITING = 64  # of each width, looked at in one decision: what fits besides is started without stopping anybody
_MOST_LATE = 8
_AHEAD = 4
_REMEMBERED = 16
_LEAST_REVIEW_S = 30.0  # between two looks at jobs that go on longer than was thought
_TIE = 1.0 + 1e-9  # of equals, those that run go on
_LARGEST = 1e290  # what the worth of a rank may be multiplied by
_ABOVE = 1e9  # so many times is a job of a better queue worth what another is: nothing makes up for it
_entry_key = itemgetter(0)
_rank = attrgetter("rank")


def _some_cannot_stop(decision: Decision) -> bool:
    """Whether some run that is not late goes on, whoever waits."""
    graceful = decision.abilities.preemption is Preemption.GRACEFUL
    return any(
        not job.late
        and job.status is not Status.SAVING
        and not (decision.may_stop(job) and not (graceful and left_alone_until(job) > decision.now))
        for job in decision.state.running.values()
        if job.request.total_gpus
    )


def _firsts(lines: Iterable[Line], count: int) -> set[tuple[str, bool]]:
    return {(job.id, job.impatient) for line in lines for _, job in line.entries[:count]}


class WholeSet(Action):
    """Stops, moves and starts jobs, so that those run together which are worth most.

    A job's value is :func:`.value` of its devices and the seconds that it still needs: what remains, and what a restart
    costs if it waits and has run before; a running job is taken to need :data:`.STAYS` restarts less. Jobs that wait
    compete with those that run for the devices that these have and those that are free. Nobody takes part who may not
    be stopped, is left alone for a while (:func:`.left_alone_until`), is about to end, or is followed by a prepared
    job. A job of a queue with a better priority is worth more than all others together, and so is, within its queue,
    one that is late (:class:`.Profile`). After that a higher priority of the run itself counts. Where owners have
    shares, these come right after the queue's priority: see :func:`.rank_by_share`.

    The chosen ones that run stay where they are; the others start, the widest first, and where one only fits if smaller
    jobs move, those move. Only then it is decided who is stopped: whoever is not in the way goes on. What is left is
    for the actions after it, which stop nobody.

    While runs that are not late cannot be stopped, devices are kept for the late jobs which they keep out, as
    :class:`.Backfill` does it. Whoever is stopped for these uses them meanwhile, see :class:`.GiveWay`.

    Where no running job may be stopped it does nothing. Runs that share start beside others where there is room, which
    is not decided here; one that has no room competes for a whole device. Jobs whose effect on others over the network
    is known are the guard's.
    """

    ranks_running = True

    def __init__(self) -> None:
        self._give_way = GiveWay()
        self._version = -1
        self._pools: list[Pool] = []
        self._seen = (-1, -1)
        self._left: set[tuple[str, bool]] = set()
        self._again_at = math.inf

    def act(self, decision: Decision) -> bool:
        """See the class."""
        state = decision.state
        if state.ranking is None or not state.ranking.alike:
            return False
        waiting = [line for line in state.queue_of_waiting.lines() if line.request.total_gpus]
        # Whoever was left waiting waits on, and whoever comes behind several others that need the same changes nothing.
        seen = (state.version, state.changes)
        if seen == self._seen and decision.now < self._again_at and _firsts(waiting, _AHEAD) <= self._left:
            return False
        self._seen, self._again_at = seen, math.inf
        lines = [line for line in waiting if self._suits(decision, line)]
        standing = decision.standing() if lines else None
        if standing is not None:  # whose turn it is depends on the time
            self._again_at = decision.now
            decision.look_again_at(decision.now + standing.look_again_s)
        if not lines:
            self._left = _firsts(waiting, _REMEMBERED)
            return False
        if self._version != state.version:
            self._pools, self._version = pools_of(state), state.version
        kept = self._kept_for_the_late(decision, lines)
        for pool in self._pools:
            self._decide(decision, pool, lines, kept.devices())
        if kept:
            self._use_meanwhile(decision, lines, kept)
        self._left = _firsts(waiting, _REMEMBERED)
        for pool in self._pools:
            if len(pool.units) > 2 * len(state.running) + 64:
                pool.units = {job: unit for job, unit in pool.units.items() if job in state.running}
        return False

    @staticmethod
    def _suits(decision: Decision, line: Line) -> bool:
        state, request = decision.state, line.request
        return (
            state.limit_on(line.queue) is None
            and decision.kept_back(request) is None
            and not (state.promises.jobs and not decision.can_stop(line.entries[0][1]))  # they may not start anywhere
            and state.capability.possible(request)
            and not contention_known(line.entries[0][1], state)
            and (not request.shareable or decision.placement.place(line.entries[0][1], state, decision.sharing) is None)
        )

    def _use_meanwhile(self, decision: Decision, lines: Sequence[Line], kept: Reservations) -> None:
        """Whoever gives way for those who are late competes for what is kept for them."""
        by_devices: dict[Container[str], list[Line]] = {}
        for line in lines:
            job = line.entries[0][1] if line.entries else None
            if job is None or job.late:
                continue
            left_alone = self._give_way.left_alone_until(decision, job)
            if left_alone < math.inf:
                by_devices.setdefault(kept.kept_from(job, decision.now, left_alone), []).append(line)
        for devices, some in by_devices.items():
            if devices != kept.devices():
                for pool in self._pools:
                    self._decide(decision, pool, some, devices)

    def _kept_for_the_late(self, decision: Decision, lines: Sequence[Line]) -> Reservations:
        """Devices that nobody gets now, because somebody late waits for others there that cannot be stopped."""
        kept, standing = Reservations(), decision.standing()
        late = [(line.entries[0][0], line) for line in lines if line.entries[0][1].late]
        if standing is not None:  # nothing is kept for those who would borrow
            late = [(key, line) for key, line in late if not standing.would_borrow(line.request)]
        if not late or not _some_cannot_stop(decision):
            return kept
        for _, line in heapq.nsmallest(_MOST_LATE, late, key=_entry_key):
            if not any(self._starts(decision, pool, line, kept.devices()) for pool in self._pools):
                kept.keep(self._give_way.reserve(decision, line.entries[0][1], kept.devices()))
        return kept

    def _starts(self, decision: Decision, pool: Pool, line: Line, kept: Container[str]) -> bool:
        chosen = self._choose(decision, pool, [line], kept, alone=True)
        return chosen is not None and bool(chosen[1])

    def behind(self, job: Job, decision: Decision) -> set[str] | None:
        """Which waiting jobs would start if a running one had ended; None if that is not decided here."""
        state, placement = decision.state, job.placement
        if state.ranking is None or not state.ranking.alike or placement is None:
            return None
        lines = [line for line in state.queue_of_waiting.lines() if line.request.total_gpus]
        lines = [line for line in lines if self._suits(decision, line)]
        if self._version != state.version:
            self._pools, self._version = pools_of(state), state.version
        for pool in self._pools:
            unit = unit_of(job, pool, decision)
            if unit.width:
                chosen = self._choose(decision, pool, lines, frozenset(), ending=unit)
                return None if chosen is None else {one.id for unit in chosen[1] for one in unit.jobs}
        return None

    # -- the choice -----------------------------------------------------------------------------------------------

    def _decide(self, decision: Decision, pool: Pool, lines: Sequence[Line], kept: Container[str]) -> None:
        chosen = self._choose(decision, pool, lines, kept)
        if chosen is None or not chosen[1]:
            return
        state = decision.state
        free, starts, stays, leaves = chosen
        all_move = state.quotas.shares is None and pool.ends_at == math.inf  # who may not be stopped is not among them
        movable = {
            unit
            for unit in stays
            if len(unit.spots) == 1
            and not unit.shares
            and (all_move or (decision.may_stop(unit.job) and lasts_until(unit.job, pool.ends_at, state)))
        }
        seating = Seating(free, stays, {unit: unit.spots for unit in leaves}, movable)
        counts: Counter[str] = Counter()
        given: Counter[str] = Counter()  # devices by owner
        for unit in sorted(starts, key=lambda unit: (-unit.width, -unit.worth, unit.job.id)):
            queue, shape, request = unit.job.queue, unit.shape, unit.job.request
            if state.limit_on(queue, counts) is not None or decision.kept_back(request, given) is not None:
                continue
            if seating.start(unit, shape.nodes, shape.devices, shape.rest):
                counts[queue] += 1
                given[request.owner] += request.total_gpus
        carry_out(decision, pool, seating.finish())

    def _choose(
        self,
        decision: Decision,
        pool: Pool,
        lines: Sequence[Line],
        kept: Container[str],
        *,
        alone: bool = False,
        ending: Unit | None = None,
    ) -> tuple[dict[int, int], list[Unit], dict[Unit, Spots], list[Unit]] | None:
        """The free devices by node, and who starts, stays and leaves; None if there is nothing to choose.

        Args:
            ending: A running job whose devices are taken to be free.
        """
        state, now = decision.state, decision.now
        size, count = pool.size, len(pool.numbers)
        shapes = {line: shape_of(line.request, size, count) for line in lines if line.entries}
        if not any(shapes.values()):
            return None
        widest = max(shape.nodes + (shape.rest > 0) for shape in shapes.values() if shape is not None)
        window = pool.window(state, widest, lambda job: value(1, expected_left(job, now, state.learned.lengths)[0]))
        best = min(state.queue(line.queue).priority for line in lines)
        running = self._running(decision, pool, window, kept, best)
        free = {node: pool.free_count(node, state, kept) for node in window}
        if ending is not None:
            running = [unit for unit in running if unit.job is not ending.job]
            for node, devices in ending.spots:
                if node in free:
                    free[node] += devices
        room = dict(free)
        for unit in running:
            for node, devices in unit.spots:
                room[node] += devices
        blocks = blocks_of(room.values(), size)
        top = len(blocks) - 1
        if top < 0:
            return None
        waiting = self._waiting(decision, pool, shapes, sum(room.values()), alone=alone)
        if not waiting:
            return None
        standing = decision.standing()
        if standing is not None:
            rank_by_share(standing, running, waiting)
        if len(ranks := set(map(_rank, running)).union(map(_rank, waiting))) > 1:
            base = min(_ABOVE, _LARGEST ** (1 / len(ranks)))
            above = {rank: base**place for place, rank in enumerate(sorted(ranks, reverse=True))}
            for unit in (*running, *waiting):
                unit.worth *= above[unit.rank]
        table: list[list[tuple[float, Unit]]] = [[] for _ in blocks]
        for unit in (*running, *waiting):
            level = unit.shape.level
            table[level if level < top else top].append((unit.worth, unit))
        for entries in table:
            entries.sort(key=_entry_key, reverse=True)
        chosen = set(best_set(table, blocks))
        starts = [unit for unit in waiting if unit in chosen]
        stays = {unit: unit.spots for unit in running if unit in chosen}
        leaves = sorted((unit for unit in running if unit not in chosen), key=lambda unit: (unit.worth, unit.job.id))
        return free, starts, stays, leaves

    def _running(
        self, decision: Decision, pool: Pool, window: dict[int, None], kept: Container[str], best: int
    ) -> list[Unit]:
        """Those that may be stopped, with what they are worth."""
        state, now, known, lengths = decision.state, decision.now, pool.units, decision.state.learned.lengths
        graceful = decision.abilities.preemption is Preemption.GRACEFUL
        partly, priorities, crowded = not pool.has_all(window), dict[str, int](), state.crowded
        shares = state.quotas.shares is not None  # what is guaranteed is given back at any time
        may_stop = decision.may_give_way if shares else decision.may_stop
        review_s = math.inf  # what is expected of those that go on changes, though nothing happens
        found = []
        for job in pool.running(window, state):
            if job.status is Status.SAVING or not may_stop(job):
                continue
            unit = known.get(job.id)
            if unit is None or unit.placement is not job.placement or unit.shares:
                unit = known[job.id] = unit_of(job, pool, decision)
            if not unit.width:
                continue
            if partly and any(node not in window for node, _ in unit.spots):
                continue
            if kept or crowded:
                devices = unit.placement.all_devices  # type: ignore[union-attr]
                if any(device in kept for device in devices):
                    continue
                if any(device in crowded and _others_on(device, unit, state, shares) for device in devices):
                    continue  # whoever saves there, or was found there, keeps the device
            priority = priorities.get(job.queue)
            if priority is None:
                priority = priorities[job.queue] = state.queue(job.queue).priority
            late = job.late and state.queue_of_waiting.still_late(job, state, now)
            unit.rank = (priority, 0 if late else 2, -job.request.priority)
            if graceful:
                until = max(map(left_alone_until, unit.jobs))
                if until > now:
                    self._again_at = min(self._again_at, until)
                    decision.look_again_at(until)
                    if not shares and (priority <= best or any(one.stops for one in unit.jobs)):
                        continue
                    unit.rank = (priority, 1, 0)  # only one of a better queue need not wait for that
            worth = 0.0
            for one in unit.jobs:
                left_s, certain = expected_left(one, now, lengths)
                if not certain:
                    self._again_at = now  # what is expected of it changes while it runs
                    review_s = min(review_s, next_step_s(one, now, lengths))
                if one.stops:
                    credit = credit_of(one, now)
                    if is_spared(credit, left_s) and not shares:
                        break
                    credit_s = credit[0]
                else:
                    credit_s = STAYS * restart_s(one)
                worth += value(unit.width, left_s - credit_s)
            else:
                unit.worth = _TIE * worth
                found.append(unit)
        if review_s < math.inf:
            decision.look_again_at(now + max(_LEAST_REVIEW_S, review_s))
        return found

    @staticmethod
    def _waiting(
        decision: Decision, pool: Pool, shapes: Mapping[Line, Shape | None], devices: int, *, alone: bool
    ) -> list[Unit]:
        """The first of each width that could fit, with what they are worth."""
        state, now = decision.state, decision.now
        by_shape: dict[tuple[int, Shape, str], list[list[tuple[Key, Job]]]] = {}
        shares = state.quotas.shares is not None  # then nobody's many jobs hide those of others
        for line, shape in shapes.items():
            request = line.request
            least = max(line.room_bytes, request.gpu_memory_bytes or 0)
            if (
                shape is not None
                and request.total_gpus <= devices
                and least <= pool.least_bytes
                and pool.accepts(request)
            ):
                owner = request.owner if shares else ""
                by_shape.setdefault((request.total_gpus, shape, owner), []).append(line.entries)
        found = []
        for (width, shape, _), queues in by_shape.items():
            merged: Iterable[tuple[Key, Job]] = queues[0] if len(queues) == 1 else heapq.merge(*queues, key=_entry_key)
            for _, job in islice(merged, 1 if alone else min(_MOST_WAITING, max(1, devices // width))):
                if not lasts_until(job, pool.ends_at, state):
                    continue
                left, _ = expected_left(job, now, state.learned.lengths)
                if pool.kind and job.estimate.by_kind:
                    if decision.placement.kind_for(job, state) not in (None, pool.kind):
                        continue
                    left *= job.estimate.slower_on(pool.kind) or 1.0
                left += restart_s(job) if job.attained_s else 0.0
                unit = Unit((job,), shape, width)
                unit.rank = (state.queue(job.queue).priority, 0 if job.late else 2, -job.request.priority)
                unit.worth = value(width, left)
                found.append(unit)
        return found


def _others_on(device: str, unit: Unit, state: State, shares: bool) -> bool:
    """Whether somebody else is there; one that is prepared behind the unit goes with it, where there are shares."""
    on_it = state.occupants(device)
    return sum(not shares or one.behind is None for one in on_it) > len(unit.jobs)


def why_it_waits(decision: Decision, line: Line) -> tuple[str, Callable[[], str]]:
    """As :func:`.why_not`; where others could be stopped, also which run it waits for."""
    code, words = why_not(decision, line)
    ranking = decision.state.ranking
    if code != "devices" or ranking is None:
        return code, words

    def longer() -> str:
        ends = [ranked[0] for alike, ranked in ranking.alike.items() if not alike.unknown]
        if not ends:
            return words()
        first = min(ends)[2].label
        return f"{words()}. What trains there is worth more now; it waits for {first} or another to end"

    return code, longer
