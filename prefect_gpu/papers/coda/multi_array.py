"""CODA's multi-array scheduling (Zhao et al., 2020, §V.C), bound to the scheduler."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from prefect_gpu.papers.coda.arrays import Arrays, Offer, reserved_cores
from prefect_gpu.papers.coda.books import WIDE_GPUS, Ask, NodeSize
from prefect_gpu.papers.coda.free_cores import alone, smallest_free
from prefect_gpu.scheduling.allocation.base import Action, tell_early, tell_limit, tell_line, why_not
from prefect_gpu.scheduling.cores.ledger import free_cores
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.placement.granting import joined
from prefect_gpu.scheduling.state.fits import free_devices_for
from prefect_gpu.scheduling.state.waiting import Key, Line

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.state.state import State

_UNCOUNTED = 1_000_000  # cores of a node whose cores are not handed out: never short
_MULTI_NODE_CORES = 2  # more on each node do not help a job that spans nodes: it waits for the network (§IV.B)
_DIVIDE_EVERY = 50  # GPU jobs that end between two looks at where the limits between the arrays are
_Rank = tuple[int, int, int, float, Key]


class MultiArray(Action):
    """Two arrays, of GPU jobs and of CPU jobs, each by dominant resource fairness over its own resource.

    1. GPU jobs come first, the owner with the fewest GPUs first; then CPU jobs, the owner with the fewest cores first.
       Whoever was aborted is at the head of its array. A job that does not fit is passed by the others.
    2. A GPU job gets the number of cores that jobs of its owner and category needed (N_start), whatever it asks for. If
       no node has as many, it starts with what there is, at least one for each GPU: the tuning gives it more later.
    3. Where a GPU job goes, and who has to make room for it, is decided by :class:`.Arrays`: CPU jobs give reserved
       cores back, small jobs leave the 4-GPU sub-array. Only jobs that may be stopped make room.
    4. The cores that are reserved on each node are those that finished GPU jobs had on average per GPU; the size of the
       4-GPU sub-array is the most that its jobs have asked for at one time.

    Args:
        cores_per_gpu: What to reserve for each GPU before a GPU job has finished.
    """

    def __init__(self, cores_per_gpu: int = 4) -> None:
        self._seen = (1, cores_per_gpu)  # GPUs and cores of the GPU jobs that have ended
        self._since_divided = 0
        self._wide_peak = self._wide_held = 0
        self._version = -1
        self._held: dict[str, Placement] = {}
        self._owner_of: dict[str, str] = {}
        self._gpus_of: Counter[str] = Counter()
        self._cores_of: Counter[str] = Counter()

    def act(self, decision: Decision) -> bool:
        """See the class."""
        tell_early(decision)
        self._follow(decision)
        lines = decision.state.queue_of_waiting.lines()
        self._watch_wide(decision.state, lines)
        heap = [(self._rank(line), number, line) for number, line in enumerate(lines)]
        heapq.heapify(heap)
        failed: list[tuple[int, int, int, int]] = []  # what did not fit: whatever asks for as much will not either
        while heap:
            rank, number, line = heapq.heappop(heap)
            now = self._rank(line)
            if now > rank:  # its owner has got more since
                heapq.heappush(heap, (now, number, line))
                continue
            if tell_limit(decision, line):
                continue
            if self._start(decision, line.entries[0][1], failed):
                self._follow(decision)
                if line.entries:
                    heapq.heappush(heap, (self._rank(line), number, line))
            elif line.untold or line.told is None:
                self._tell(decision, line)
        for line in decision.state.queue_of_waiting.lines():
            if line.untold or line.told is None:  # of jobs that have made room: it was not there when this began
                self._tell(decision, line)
        return True

    def _rank(self, line: Line) -> _Rank:
        key, job = line.entries[0]
        cpu_job, owner = not line.request.total_gpus, line.request.owner
        held = self._cores_of[owner] if cpu_job else self._gpus_of[owner]
        return (key[0], cpu_job, job.stops == 0, held, key)  # type: ignore[return-value]

    def _tell(self, decision: Decision, line: Line) -> None:
        if line.request.total_gpus:
            tell_line(decision, line, *why_not(decision, line))
            return
        cores = line.request.cpus or 1
        tell_line(decision, line, "cores", f"it needs {cores} cores of one node, and no node has so many free")

    # -- starting one job -----------------------------------------------------------------------------------------

    def _start(self, decision: Decision, job: Job, failed: list[tuple[int, int, int, int]]) -> bool:
        state, request = decision.state, job.request
        if not state.capability.possible(request):
            return False
        if request.servers or (request.spans and request.gpus > state.largest_node):
            return self._place(decision, job)
        wanted, least = self._cores(job, state)
        for cores in dict.fromkeys((wanted, least)):
            size = (request.gpus, cores, request.workers, job.least_bytes)
            if any(all(a >= b for a, b in zip(size, other, strict=True)) for other in failed):
                continue
            ask = Ask(job.id, request.gpus, cores, request.workers, decision.may_stop(job))
            for allowed in self._places(job, state):
                offer = self._arrays.find(ask, allowed)
                if offer is not None and self._carry_out(decision, job, offer, wanted):
                    return True
            failed.append(size)
        return _miscounted(job, state) and self._place(decision, job)

    @staticmethod
    def _place(decision: Decision, job: Job) -> bool:
        """Start a job where the profile's placement has it, as the arrays do not know such jobs."""
        placement = decision.placement.place(job, decision.state, decision.sharing)
        if placement is not None:
            decision.launch(job, placement, "there is room for all of its instances")
        return placement is not None

    def _cores(self, job: Job, state: State) -> tuple[int, int]:
        """Cores on each node: those it should have, and the fewest it may start with."""
        request = job.request
        sizes = [len(n.node.cpus) or _UNCOUNTED for n in state.numbered if len(n.node.devices) >= request.gpus]
        most = max(sizes)
        if not request.gpus:
            cores = min(request.cpus or 1, most)
            return cores, cores
        start = state.learned.cores.start(request.owner, request.category, request.gpus)
        if request.workers > 1:
            start = min(start, _MULTI_NODE_CORES)
        return min(start, most), min(start, request.gpus, *sizes)

    def _places(self, job: Job, state: State) -> list[Callable[[str], bool] | None]:
        """Which nodes to look at, one set after the other; None: all of them."""
        request = job.request
        usable = state.capability.usable(request, job.room_bytes) if request.gpus else frozenset()
        uneven = request.gpus > 0 and len(usable) != state.device_count

        def fits(node_id: str) -> bool:
            return not uneven or sum(d.id in usable for d in state.free_devices(node_id)) >= request.gpus

        domains = dict.fromkeys(node.domain for node in state.nodes.values())
        if request.workers > 1 and len(domains) > 1:
            return [lambda n, one=one: state.nodes[n].domain == one and fits(n) for one in domains]  # type: ignore[misc]
        return [fits if uneven else None]

    def _carry_out(self, decision: Decision, job: Job, offer: Offer, wanted: int) -> bool:
        state, sharing = decision.state, decision.sharing
        for name in offer.aborted:
            decision.preempt(state.jobs[name], f"{job.label} needs the cores, which are kept for GPU jobs")
        for name, nodes in offer.moved:
            self._send(decision, state.jobs[name], nodes if job.request.workers == 1 else (), job)
        self._follow(decision)
        parts: list[Placement] = []
        for node_id in dict.fromkeys(offer.nodes):
            count = offer.nodes.count(node_id)
            devices = [device.id for device in free_devices_for(job, node_id, state)]
            if len(devices) < count * job.request.gpus:
                return False  # what the books count and what the devices are differ: a fact, not a decision
            whole = free_cores(node_id, wanted * count, state, tuple(devices[: count * job.request.gpus]))
            for number in range(count):
                own = tuple(devices[number * job.request.gpus : (number + 1) * job.request.gpus])
                memory = sharing.granted_bytes(job, [state.device(device) for device in own])
                cores = tuple(sorted(whole[number::count]))
                parts.append(Placement(node_id, own, cores, memory, job.request.shareable))
        decision.launch(job, joined(parts), _reason(job, offer, parts))
        return True

    def _send(self, decision: Decision, job: Job, nodes: tuple[str, ...], comer: Job) -> None:
        """A small job leaves the 4-GPU sub-array: for another node, or back to the head of its array."""
        assert job.placement is not None
        reason = f"{comer.label} needs the {comer.request.total_gpus} GPUs of the 4-GPU array"
        state = decision.state
        devices = smallest_free(job, nodes[0], state) if len(nodes) == 1 else None
        if devices is None or state.successor(job.id) is not None:
            decision.preempt(job, reason)
            return
        cores = len(job.placement.cpus)
        decision.move(job, alone(job, nodes[0], devices, cores, state, decision.sharing), reason)

    # -- the books ------------------------------------------------------------------------------------------------

    def _follow(self, decision: Decision) -> None:
        """Bring the arrays' books up to what the jobs hold now."""
        state = decision.state
        if self._version != state.version:
            self._version, self._held = state.version, {}
            self._wide_held = 0
            self._gpus_of.clear()
            self._cores_of.clear()
            sizes = _sizes(state)
            self._arrays = Arrays(sizes, {size.id: self._reserved(size) for size in sizes}, self._wide_peak)
        held, running = self._held, state.running
        if held.keys() - running.keys():
            for name in [name for name in held if name not in running]:
                placement = held[name]
                if placement.devices and not placement.others:
                    self._seen = (self._seen[0] + len(placement.devices), self._seen[1] + len(placement.cpus))
                self._leave(name)
                self._since_divided += 1
        for name, job in running.items():
            if held.get(name) is not job.placement:
                if name in held:
                    self._leave(name)
                self._enter(decision, job)
        if self._since_divided >= _DIVIDE_EVERY:
            self._divide(state)

    def _divide(self, state: State) -> None:
        self._since_divided = 0
        self._arrays.divide({size.id: self._reserved(size) for size in _sizes(state)}, self._wide_peak)

    def _reserved(self, size: NodeSize) -> int:
        return 0 if size.cores == _UNCOUNTED else reserved_cores([self._seen], size)

    def _enter(self, decision: Decision, job: Job) -> None:
        placement, request = job.placement, job.request
        assert placement is not None
        # With an outside world that cannot stop jobs, `may_stop` is never true.
        movable = decision.may_stop(job) and (not request.total_gpus or not placement.others)
        self._arrays.enter(
            [(part.node, Ask(job.id, len(part.devices), len(part.cpus), 1, movable)) for part in placement.parts]
        )
        self._held[job.id] = placement
        self._owner_of[job.id] = request.owner
        self._count(job.id, 1)

    def _leave(self, name: str) -> None:
        self._arrays.release(name)
        self._count(name, -1)
        del self._held[name], self._owner_of[name]

    def _count(self, name: str, sign: int) -> None:
        placement, owner = self._held[name], self._owner_of[name]
        gpus = len(placement.all_devices)
        if gpus:
            self._gpus_of[owner] += sign * gpus
            self._wide_held += sign * gpus if gpus >= WIDE_GPUS else 0
        else:
            self._cores_of[owner] += sign * len(placement.cpus)

    def _watch_wide(self, state: State, lines: list[Line]) -> None:
        """The most that jobs of four GPUs and more have asked for at one time."""
        asked = ((len(line.entries), line.request.total_gpus) for line in lines)
        waiting = sum(jobs * gpus for jobs, gpus in asked if gpus >= WIDE_GPUS)
        demand = min(state.device_count, waiting + self._wide_held)
        if demand > self._wide_peak:
            self._wide_peak = demand
            self._divide(state)


def _miscounted(job: Job, state: State) -> bool:
    """Whether instances of a gang fit on some devices of a node only: the arrays count devices, not which they are."""
    if job.request.workers == 1 or not job.request.gpus:
        return False
    usable = state.capability.usable(job.request, job.room_bytes)
    nodes = [books.node.devices for books in state.numbered] if len(usable) != state.device_count else []
    return any(0 < sum(device.id in usable for device in devices) < len(devices) for devices in nodes)


def _sizes(state: State) -> list[NodeSize]:
    nodes = [books.node for books in state.numbered]
    return [NodeSize(node.id, len(node.devices), len(node.cpus) or _UNCOUNTED) for node in nodes]


def _reason(job: Job, offer: Offer, parts: list[Placement]) -> str:
    cores = sum(len(part.cpus) for part in parts)
    where = ", ".join(dict.fromkeys(offer.nodes))
    words = f"{cores} cores of {where} are free"
    if job.request.gpus:
        words = f"{job.request.total_gpus} GPUs and {cores} cores of {where} are free"
    if offer.aborted:
        words += ", some of them taken back from CPU jobs"
    elif offer.moved:
        words += ", as smaller jobs have left the 4-GPU array"
    elif offer.overflows:
        words += ", and no GPU job needs them now" if not job.request.gpus else " in the other array"
    return words
