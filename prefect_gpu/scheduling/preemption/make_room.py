"""Let jobs make room for those that come before them in the order, and disturb nobody else."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.preemption.minimum_runtime import left_alone_until
from prefect_gpu.scheduling.state.fits import any_will_do, without
from prefect_gpu.scheduling.state.waiting import Key

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.model.cluster import Placement

_MOST_VICTIMS = 512
_MOST_TRIALS = 16


class MakeRoom:
    """Preemptive scheduling where stopping a job costs something; a part of :class:`.Backfill`.

    For a job that finds no place, running jobs that may be stopped and come later in the order are looked at, the last
    one first, until those seen on one node (or, for a job larger than a node, on enough nodes) leave enough room. If
    the job then has a place in fact, these are stopped, and it is started in their place; otherwise nobody is. A job
    that has lost patience has devices kept for it, and stops nobody by that.

    Args:
        advantage: A job makes room only for one whose key is smaller by this factor (less than 1: it must be clearly
            better, so that two jobs that are nearly equal do not take turns).
        grace: Whether jobs are left alone for a while after each launch, where stopping them takes time
            (:func:`.left_alone_until`). One of a queue with a better priority
            need not wait for that until a job has been stopped before.
    """

    def __init__(self, advantage: float = 1.0, *, grace: bool = False) -> None:
        self._advantage = advantage
        self._grace = grace

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
        assert state.ranking is not None
        priorities: dict[str, int] = {}

        def last_of(ranked: list[tuple[float, str, Job]], at: int) -> tuple[Key, Job, int] | None:
            while at >= 0:
                candidate = ranked[at][2]
                priority = priorities.get(candidate.queue)
                if priority is None:
                    priority = priorities[candidate.queue] = state.queue(candidate.queue).priority
                own = (priority, 1, *order.key(candidate, state, now))
                if not (own > key and self._clearly(key, own)):
                    return None
                if decision.may_give_way(candidate) and not self._spared(candidate, key, own, decision):
                    return own, candidate, at
                at -= 1
            return None

        lists = list(state.ranking.alike.values())
        heads = [(head, ranked) for ranked in lists if (head := last_of(ranked, len(ranked) - 1)) is not None]
        while heads:
            worst = 0
            for number in range(1, len(heads)):
                if heads[number][0][0] > heads[worst][0][0]:
                    worst = number
            (_, victim, at), ranked = heads[worst]
            yield victim
            head = last_of(ranked, at - 1) if at > 0 else None
            if head is None:
                del heads[worst]
            else:
                heads[worst] = (head, ranked)

    def _clearly(self, key: Key, other: Key) -> bool:
        if self._advantage >= 1.0 or key[:2] != other[:2]:
            return True
        mine, theirs = key[2], other[2]
        return isinstance(mine, float) and isinstance(theirs, float) and mine < self._advantage * theirs

    def _spared(self, victim: Job, key: Key, own: Key, decision: Decision) -> bool:
        """Whether the job is left alone for a while yet. Asks to look again when that is over."""
        if not self._grace or decision.abilities.preemption is Preemption.INSTANT:
            return False
        if key[0] != own[0] and not victim.stops:
            return False
        until = left_alone_until(victim)
        if until > decision.now:
            decision.look_again_at(until)
        return until > decision.now


class _Room:
    """How much room there would be on each node if the jobs seen so far were gone."""

    def __init__(self, decision: Decision, job: Job) -> None:
        self._state = decision.state
        self._request = request = job.request
        self._job = job
        self._free: dict[str, int] = {}
        self._on: dict[str, list[Job]] = {}
        self._emptied: dict[str, list[str]] = {}  # domain: nodes that would be wholly free, besides those that are
        self._instances: dict[str, int] = {}  # domain: instances of a gang that would fit there
        self._fits: dict[str, int] = {}  # node: how many of them there
        self._left: dict[str, int] = {}  # device: jobs that would still be there
        self._on_one_node = not request.is_gang and request.gpus <= decision.state.largest_node

    def with_(self, victim: Job) -> list[Job] | None:
        """One more job would be gone. Those that suffice, if they do now."""
        assert victim.placement is not None
        state, free, gpus = self._state, self._free, self._request.gpus
        for part in victim.placement.parts:
            if part.node not in state.nodes or not part.devices:
                continue
            name = part.node
            if name not in free:
                free[name], self._on[name] = state.free_on(name), []
            free[name] += sum(self._leaves(victim, device) for device in part.devices)
            if victim not in self._on[name][-1:]:  # a gang may have several parts there
                self._on[name].append(victim)
            if self._on_one_node and free[name] < gpus:
                if self._request.shareable and any_will_do(self._job, state.nodes[name]):
                    return list(self._on[name])  # there may be room beside those that stay
                continue
            found = self._enough_on(name)
            if found is not None:
                return found
        return None

    def _leaves(self, victim: Job, device: str) -> bool:
        """Whether nobody would be left on the device, with the job gone and who is prepared behind it."""
        state = self._state
        left = self._left.get(device)
        if left is None:
            left = len(state.occupants(device))
        successor = state.successor(victim.id)
        left -= 1 + (successor is not None and any(other is successor for other in state.occupants(device)))
        self._left[device] = left
        return left == 0

    def _enough_on(self, name: str) -> list[Job] | None:
        gpus, node = self._request.gpus, self._state.nodes[name]
        if self._on_one_node:
            if not any_will_do(self._job, node):
                return None
            return self._fewest(name, gpus)
        if not self._request.spans:
            return self._enough_for_gang(node)
        if self._free[name] < len(node.devices) or not any_will_do(self._job, node):
            return None
        emptied = self._emptied.setdefault(node.domain, [])
        emptied.append(name)
        return self._enough_nodes(node.domain, emptied)

    def _fewest(self, name: str, gpus: int) -> list[Job]:
        """Of the jobs seen on a node, leave those that need not go, those early in the order first."""
        chosen = list(self._on[name])
        for victim in self._on[name][::-1]:
            fewer = [other for other in chosen if other is not victim]
            if self._state.free_on(name) + self._freed(name, fewer) >= gpus:
                chosen = fewer
        return chosen

    def _freed(self, name: str, jobs: list[Job]) -> int:
        """Devices of a node that would be free with these jobs gone, and those prepared behind them."""
        gone = {job.id for job in jobs}
        state = self._state
        devices = {
            device
            for job in jobs
            if job.placement
            for part in job.placement.parts
            if part.node == name
            for device in part.devices
        }
        return sum(
            all(other.id in gone or other.behind in gone for other in state.occupants(device)) for device in devices
        )

    def _enough_for_gang(self, node: Node) -> list[Job] | None:
        """For a gang: as many instances as it has, on the nodes of one domain as they would be with the jobs gone."""
        if not any_will_do(self._job, node):
            return None
        gpus, state, domain = max(1, self._request.gpus), self._state, node.domain
        if domain not in self._instances:
            self._instances[domain] = sum(
                len(books.free) // gpus
                for books in state.numbered
                if books.node.domain == domain and any_will_do(self._job, books.node)
            )
        fits = self._free[node.id] // gpus
        self._instances[domain] += fits - self._fits.get(node.id, state.free_on(node.id) // gpus)
        self._fits[node.id] = fits
        if self._instances[domain] < self._request.workers:
            return None
        seen = [name for name in self._fits if state.nodes[name].domain == domain]
        gained = {name: self._fits[name] - state.free_on(name) // gpus for name in seen}
        missing = self._request.workers - (self._instances[domain] - sum(gained.values()))
        chosen: dict[str, Job] = {}
        for name in sorted(seen, key=lambda name: -gained[name]):  # nobody on the other nodes need go
            if missing <= 0 or not gained[name]:
                break
            missing -= gained[name]
            chosen.update((victim.id, victim) for victim in self._on[name])
        return list(chosen.values())

    def _enough_nodes(self, domain: str, emptied: list[str]) -> list[Job] | None:
        """For a job on several nodes: whole nodes only, those that are free already and those that would be."""
        state = self._state
        free = [
            books.node.id
            for books in state.numbered
            if books.node.domain == domain
            and books.node.id not in emptied
            and state.free_on(books.node.id) == len(books.node.devices)
            and any_will_do(self._job, books.node)
        ]
        if sum(len(state.nodes[name].devices) for name in (*free, *emptied)) < self._request.total_gpus:
            return None
        return list({victim.id: victim for name in emptied for victim in self._on[name]}.values())
