"""Let jobs make room for those that come before them in the order, and disturb nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.cluster import UNLIMITED, Node
from prefect_gpu.scheduling.jobs import Job
from prefect_gpu.scheduling.policies.allocation.base import Allocation, tell_early, tell_line, why_not
from prefect_gpu.scheduling.verbs import names
from prefect_gpu.scheduling.waiting import Key

if TYPE_CHECKING:
    from prefect_gpu.scheduling.verbs import Desk

_MOST_VICTIMS = 512


class Displace(Allocation):
    """Preemptive scheduling where stopping a job costs something.

    One pass over the waiting jobs, in order. A job that fits is started. For one that does not, running jobs that come
    later in the order are looked at, the last one first, until those seen on one node (or, for a job larger than a
    node, on enough nodes) leave enough room; these are stopped, and the job is started in their place. Then the pass
    begins anew, because those that were stopped wait now.

    Args:
        advantage: A job makes room only for one whose key is smaller by this factor (less than 1: it must be clearly
            better, so that two jobs that are nearly equal do not take turns).
    """

    ranks_running = True

    def __init__(self, advantage: float = 1.0) -> None:
        self._advantage = advantage

    def allocate(self, desk: Desk) -> None:
        """See the class."""
        tell_early(desk)
        in_vain: set[str] = set()  # jobs that others made room for, and that found no place all the same
        while self._pass(desk, in_vain):
            pass

    def _pass(self, desk: Desk, in_vain: set[str]) -> bool:
        state, profile = desk.state, desk.profile
        walk = state.queue_of_waiting.in_order()
        limited = state.draining or state.quotas != UNLIMITED
        for line, job in walk:
            limit = state.limit_on(line.queue) if limited else None
            if limit is not None:
                walk.leave()
                tell_line(desk, line, limit[0], lambda reason=limit[1]: reason)  # type: ignore[misc]
                continue
            placement = None
            if state.free_count >= job.request.total_gpus or job.request.shareable:
                placement = profile.placement.place(job, state, profile.sharing)
            if placement is not None:
                desk.launch(job, placement, f"{names(placement.all_devices) or 'nothing it needs'} free")
                continue
            victims = [] if job.id in in_vain else self._victims(desk, job)
            if victims:
                for victim in victims:
                    desk.preempt(victim, f"{job.label} comes first in the order")
                placement = profile.placement.place(job, state, profile.sharing)
                if placement is not None:
                    desk.launch(job, placement, f"it comes before {victims[0].label} in the order")
                else:
                    in_vain.add(job.id)
                return True
            walk.leave()
            if line.untold or line.told is None:
                tell_line(desk, line, *why_not(desk, line, self.capability))
        return False

    def _victims(self, desk: Desk, job: Job) -> list[Job]:
        """The jobs that make room for this one: the last in the order, as few nodes as it takes. None: no room."""
        request, state = job.request, desk.state
        if state.ranking is None or request.total_gpus == 0:
            return []
        key = state.queue_of_waiting.key_of(job)
        assert key is not None
        room = _Room(desk, job)
        for count, victim in enumerate(self._later(desk, key)):
            if count >= _MOST_VICTIMS:
                return []
            found = room.with_(victim)
            if found is not None:
                return found
        return []

    def _later(self, desk: Desk, key: Key) -> Iterator[Job]:
        """Running jobs that come later in the order than a key, the last one first."""
        state, order, now = desk.state, desk.profile.order, desk.now
        assert state.ranking is not None
        priorities: dict[str, int] = {}

        def last_of(ranked: list[tuple[float, str, Job]], at: int) -> tuple[Key, Job, int] | None:
            candidate = ranked[at][2]
            priority = priorities.get(candidate.queue)
            if priority is None:
                priority = priorities[candidate.queue] = state.queue(candidate.queue).priority
            own = (priority, 1, *order.key(candidate, state, now))
            return (own, candidate, at) if own > key and self._clearly(key, own) else None

        lists = list(state.ranking.by_size.values())
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


class _Room:
    """How much room there would be on each node if the jobs seen so far were gone."""

    def __init__(self, desk: Desk, job: Job) -> None:
        self._state = desk.state
        self._request = request = job.request
        self._least = job.least_bytes
        self._free: dict[str, int] = {}
        self._on: dict[str, list[Job]] = {}
        self._emptied: dict[str, list[str]] = {}  # domain: nodes that would be wholly free, besides those that are
        self._instances: dict[str, int] = {}  # domain: instances of a gang that would fit there
        self._fits: dict[str, int] = {}  # node: how many of them there
        self._on_one_node = not request.is_gang and request.gpus <= desk.state.largest_node

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
            free[name] += len(part.devices)
            if victim not in self._on[name][-1:]:  # a gang may have several parts there
                self._on[name].append(victim)
            if self._on_one_node and free[name] < gpus:
                continue
            found = self._enough_on(name)
            if found is not None:
                return found
        return None

    def _enough_on(self, name: str) -> list[Job] | None:
        gpus, node = self._request.gpus, self._state.nodes[name]
        if self._on_one_node:
            if not self._large_enough(name):
                return None
            return self._fewest(name, gpus)
        if not self._request.spans:
            return self._enough_for_gang(node)
        if self._free[name] < len(node.devices) or not self._large_enough(name):
            return None
        emptied = self._emptied.setdefault(node.domain, [])
        emptied.append(name)
        return self._enough_nodes(node.domain, emptied)

    def _large_enough(self, name: str) -> bool:
        return all(device.memory_bytes >= self._least for device in self._state.nodes[name].devices)

    def _fewest(self, name: str, gpus: int) -> list[Job]:
        """Of the jobs seen on a node, leave those that need not go, those early in the order first."""
        spare = self._free[name] - gpus
        chosen = []
        for victim in reversed(self._on[name]):
            assert victim.placement is not None
            held = sum(len(part.devices) for part in victim.placement.parts if part.node == name)
            if held <= spare:
                spare -= held
            else:
                chosen.append(victim)
        return chosen[::-1]

    def _enough_for_gang(self, node: Node) -> list[Job] | None:
        """For a gang: as many instances as it has, on the nodes of one domain as they would be with the jobs gone."""
        if not self._large_enough(node.id):
            return None
        gpus, state, domain = max(1, self._request.gpus), self._state, node.domain
        if domain not in self._instances:
            self._instances[domain] = sum(
                len(books.free) // gpus
                for books in state.numbered
                if books.node.domain == domain and self._large_enough(books.node.id)
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
            and self._large_enough(books.node.id)
        ]
        if sum(len(state.nodes[name].devices) for name in (*free, *emptied)) < self._request.total_gpus:
            return None
        return list({victim.id: victim for name in emptied for victim in self._on[name]}.values())
