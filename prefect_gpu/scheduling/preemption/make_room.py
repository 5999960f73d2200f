"""Let jobs make room for those that come before them in the order, and disturb nobody else."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from heapq import merge
from operator import itemgetter

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.cluster import Node, Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.preemption.minimum_runtime import left_alone_until
from prefect_gpu.scheduling.state.fits import free_without, some_will_do, without
from prefect_gpu.scheduling.state.state import State
from prefect_gpu.scheduling.state.waiting import Key

_MOST_VICTIMS = 512
_MOST_TRIALS = 16


class MakeRoom:
    """Preemptive scheduling where stopping a job costs something; a part of :class:`.Backfill`.

    For a job that finds no place, running jobs that may be stopped and come later in the order are looked at, the last
    one first, until those seen on one node (or, for a job larger than a node, on enough nodes) leave enough room. If
    the job then has a place in fact, these are stopped, and it is started in their place; otherwise nobody is. A job
    that has lost patience has devices kept for it, and stops nobody by that.

    Args:
        urgent: Only for a job of a queue with a better priority than theirs. Where stopping takes time, those that
            were stopped before are left alone for a while after each launch (:func:`.left_alone_until`).
    """

    def __init__(self, *, urgent: bool = False) -> None:
        self._urgent = urgent

    def start(self, decision: Decision, job: Job, kept: Container[str] = ()) -> bool:
        """Stop others for a job that finds no place, and start it there; whether it did: the order has changed then.

        Args:
            kept: Devices that are kept for other jobs.
        """
        victims = self._victims(decision, job, kept)
        if not victims:
            return False
        for victim in victims:
            decision.preempt(victim, f"{job.label} comes first in the order")
        placement = decision.placement.place(job, decision.state, decision.sharing, kept)
        assert placement is not None, "it had a place without them"
        decision.launch(job, placement, f"it comes before {victims[0].label} in the order")
        return True

    def _victims(self, decision: Decision, job: Job, kept: Container[str]) -> list[Job]:
        """The jobs that make room for this one: the last in the order, as few nodes as it takes. None: no room."""
        request, state = job.request, decision.state
        if (
            state.ranking is None
            or not state.ranking.alike
            or request.total_gpus == 0
            or (self._urgent and not self._behind(job.queue, state))
            or not state.capability.possible(request)
        ):
            return []
        # Patience does not count here: two jobs that have lost it would take turns.
        key = (state.queue(job.queue).priority, 1, *decision.order.key(job, state, decision.now))
        room = _Room(decision, job)
        trials = 0
        for count, victim in enumerate(self._later(decision, key)):
            if count >= _MOST_VICTIMS or trials >= _MOST_TRIALS:
                return []
            found = room.with_(victim)
            if found is not None:
                if self._placed_without(found, decision, job, kept) is not None:
                    return self._fewest(found, decision, job, kept)
                trials += 1
        return []

    @staticmethod
    def _behind(queue: str, state: State) -> bool:
        """Whether somebody who may be stopped runs in a queue with a worse priority."""
        assert state.ranking is not None
        priority, queues = state.queue(queue).priority, {alike.queue for alike in state.ranking.alike}
        return any(state.queue(other).priority > priority for other in queues if other != queue)

    def _fewest(self, found: list[Job], decision: Decision, job: Job, kept: Container[str]) -> list[Job]:
        """Of jobs that share devices, those that need not go stay, the ones early in the order first."""
        if not job.request.shareable:  # it needs the devices alone: they have been counted
            return found
        for victim in reversed(found):
            fewer = [other for other in found if other is not victim]
            if self._placed_without(fewer, decision, job, kept) is not None:
                found = fewer
        return found

    @staticmethod
    def _placed_without(victims: Sequence[Job], decision: Decision, job: Job, kept: Container[str]) -> Placement | None:
        """Where the job would go if these were gone, and who is prepared behind them."""
        state = decision.state
        behind = [state.successor(victim.id) for victim in victims]
        gone = [*victims, *(successor for successor in behind if successor is not None)]
        with without(gone, state):
            return decision.placement.place(job, state, decision.sharing, kept)

    def _later(self, decision: Decision, key: Key) -> Iterator[Job]:
        """Running jobs that may give way and come later in the order than a key, the last one first."""
        state, order, now = decision.state, decision.order, decision.now
        promised = state.promises.jobs
        assert state.ranking is not None

        def from_the_last(ranked: list[tuple[float, str, Job]]) -> Iterator[tuple[Key, Job]]:
            for _, _, job in reversed(ranked):
                own = (state.queue(job.queue).priority, 1, *order.key(job, state, now))
                if own <= key or (self._urgent and own[0] == key[0]):
                    return
                if job.id not in promised and decision.may_give_way(job) and not self._spared(job, decision):
                    yield own, job

        alike = map(from_the_last, state.ranking.alike.values())
        return (job for _, job in merge(*alike, key=itemgetter(0), reverse=True))

    def _spared(self, victim: Job, decision: Decision) -> bool:
        """Whether the job is left alone for a while yet. Asks to look again when that is over."""
        if not self._urgent or decision.abilities.preemption is Preemption.INSTANT or not victim.stops:
            return False
        until = left_alone_until(victim)
        if until > decision.now:
            decision.look_again_at(until)
        return until > decision.now


class _Room:
    """How much room there would be on each node if the jobs seen so far were gone."""

    def __init__(self, decision: Decision, job: Job) -> None:
        self._state, self._job = decision.state, job
        self._request = request = job.request
        self._on_one_node = not request.is_gang and request.gpus <= decision.state.largest_node
        self._on: dict[str, list[Job]] = {}
        self._gone: dict[str, set[str]] = {}  # node: ids of these
        self._freed: dict[str, set[str]] = {}  # node: devices that nobody would be on then
        self._suits: dict[str, bool] = {}  # node: whether it has devices that would do
        self._before: dict[str, int] = {}  # domain: what it gives as it is, see `_worth`
        self._gained: dict[str, dict[str, int]] = {}  # domain: node: what that would give more

    def with_(self, victim: Job) -> list[Job] | None:
        """One more job would be gone. Those that suffice, if they do now."""
        assert victim.placement is not None
        for part in victim.placement.parts:
            node = self._state.nodes.get(part.node)
            if node is None or not part.devices:
                continue
            suits = self._suits.get(node.id)
            if suits is None:
                suits = self._suits[node.id] = some_will_do(self._job, node, self._state)
            if not suits:
                continue
            on = self._on.setdefault(node.id, [])
            if victim not in on[-1:]:  # a gang may have several parts there
                on.append(victim)
            free = self._free(victim, node)
            found = self._enough_on(node, free) if self._on_one_node else self._enough_in_domain(node, free)
            if found is not None:
                return found
        return None

    def _free(self, victim: Job, node: Node) -> int:
        """What :func:`free_without` counts of a node, with one more job gone: only its devices are looked at again."""
        state = self._state
        if self._request.wants is not None:
            return free_without(self._on[node.id], node.id, state, self._job)
        gone, freed = self._gone.setdefault(node.id, set()), self._freed.setdefault(node.id, set())
        gone.add(victim.id)
        assert victim.placement is not None
        for part in victim.placement.parts:
            if part.node == node.id:
                for device in part.devices:
                    there = state.occupants(device)  # the victim, too
                    if len(there) == 1 or all(one.id in gone or one.behind in gone for one in there):
                        freed.add(device)
        return state.free_on(node.id) + len(freed)

    def _enough_on(self, node: Node, free: int) -> list[Job] | None:
        """Of the jobs seen on a node, leave those that need not go, those early in the order first."""
        chosen = list(self._on[node.id])
        if free < self._request.gpus:
            return chosen if self._request.shareable else None  # there may be room beside those that stay
        for victim in self._on[node.id][::-1]:
            fewer = [other for other in chosen if other is not victim]
            if free_without(fewer, node.id, self._state, self._job) >= self._request.gpus:
                chosen = fewer
        return chosen

    def _enough_in_domain(self, node: Node, free: int) -> list[Job] | None:
        """The jobs on as few nodes of a domain as it takes."""
        state, domain = self._state, node.domain
        gained = self._gained.setdefault(domain, {})
        gain = self._worth(node, free) - self._worth(node, free_without((), node.id, state, self._job))
        if gain <= gained.get(node.id, 0):
            return None
        gained[node.id] = gain
        if domain not in self._before:
            self._before[domain] = sum(
                self._worth(books.node, free_without((), books.node.id, state, self._job))
                for books in state.numbered
                if books.node.domain == domain and some_will_do(self._job, books.node, state)
            )
        request = self._request
        missing = (request.total_gpus if request.spans else request.workers) - self._before[domain]
        if sum(gained.values()) < missing:
            return None
        chosen: dict[str, Job] = {}
        for name in sorted(gained, key=lambda name: -gained[name]):  # nobody on the other nodes need go
            if missing <= 0:
                break
            missing -= gained[name]
            chosen.update((victim.id, victim) for victim in self._on[name])
        return list(chosen.values())

    def _worth(self, node: Node, free: int) -> int:
        """What a node with so many free devices gives: to a gang, instances; to a job that spans, whole nodes only."""
        if self._request.spans:
            return free if free == len(node.devices) else 0
        return free // max(1, self._request.gpus)
