"""All that the scheduler knows, with the bookkeeping and the invariants that must hold after every event."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from prefect_gpu.scheduling.fair_share.standing import Standing, holdings
from prefect_gpu.scheduling.fair_share.tree import Tree
from prefect_gpu.scheduling.model.cluster import Node, Placement, Queue, Quotas
from prefect_gpu.scheduling.model.jobs import Estimate, Job, Request, Status
from prefect_gpu.scheduling.order.orders import Order
from prefect_gpu.scheduling.preemption.victims import Victims
from prefect_gpu.scheduling.promises.book import Book
from prefect_gpu.scheduling.state.capability import Capability
from prefect_gpu.scheduling.state.devices import DeviceBooks
from prefect_gpu.scheduling.state.learned import Learned
from prefect_gpu.scheduling.state.waiting import Waiting
from prefect_gpu.units import plural

_KEPT_STORIES = 1000


class InvariantError(AssertionError):
    """The scheduler contradicts itself: always a bug, never a user's mistake."""


class State(DeviceBooks):
    """Jobs, nodes and limits. Only :class:`~prefect_gpu.scheduling.scheduler.Scheduler` and the verbs change it.

    Args:
        order: Sorts the waiting jobs.
        patience_s, most_late: See :class:`~prefect_gpu.scheduling.state.waiting.Waiting`.
        ranks_running: Keep the running jobs ranked, for allocations that make room.
        stops: Whether jobs that say so can be stopped.
        learned: What is known at the beginning; nothing, if not given.
    """

    def __init__(
        self,
        order: Order,
        patience_s: float = math.inf,
        most_late: float = 0.0,
        *,
        ranks_running: bool = False,
        stops: bool = False,
        learned: Learned | None = None,
    ) -> None:
        super().__init__()
        self.stops = stops
        self.learned = Learned() if learned is None else learned
        self.capability = Capability(self)
        self.ranking = Victims(order) if ranks_running else None
        self.quotas = Quotas()
        self.jobs: dict[str, Job] = {}
        self.running: dict[str, Job] = {}
        self.limited: dict[str, Job] = {}  # running jobs with a time limit
        self.draining = False
        self.firm_count = 0  # running jobs that do not say that they may be stopped
        self.deviceless_count = 0  # running jobs that need no device
        self.wanted_count = 0  # devices that all jobs here ask for together
        self.growing_count = 0  # jobs here that ask for a varying number of workers
        self.shared_s = 0.0  # seconds for which each job would have had its devices if all had had their turns
        self._shared_until: float | None = None
        self.queue_of_waiting = Waiting(order, patience_s, most_late)
        self.promises = Book(self)
        self._queues: dict[str, Queue] = {}
        self._unknown: dict[str, Queue] = {}
        self._active_in: Counter[str] = Counter()
        self._behind: dict[str, str] = {}  # predecessor: the job that is prepared behind it
        self._ended: OrderedDict[str, list[tuple[float, str]]] = OrderedDict()
        # Devices that facts, not decisions, have overfilled: adopted jobs, or a node that has changed under its jobs.
        self._overfilled: set[str] = set()

    # -- questions ------------------------------------------------------------------------------------------------

    def queue(self, queue_id: str) -> Queue:
        """The queue, or an unlimited one of lowest priority if it is not known (yet)."""
        found = self._queues.get(queue_id) or self._unknown.get(queue_id)
        if found is None:
            found = self._unknown[queue_id] = Queue(queue_id, priority=1_000_000)
        return found

    def part(self) -> float:
        """The part of the time in which each job would have its devices if all had their turns: above 0, at most 1.

        It is 1 where there are no devices: nobody is late because of others then.
        """
        devices = len(self._devices)
        return min(1.0, devices / self.wanted_count) if devices and self.wanted_count else 1.0

    @property
    def now(self) -> float:
        """The moment of the last event."""
        return -math.inf if self._shared_until is None else self._shared_until

    def pass_time(self, now: float) -> None:
        """It is later than before; what is here has been so until now."""
        standing = self.standing()
        if standing is not None:
            owed = {owner: standing.owed_to(owner) for owner in standing.tree.leaf}
            self.learned.usage.pass_time(standing.holds, owed, now, standing.shares.half_life_s)
        if self._shared_until is not None and now > self._shared_until:
            self.shared_s += self.part() * (now - self._shared_until)
        self._shared_until = now

    def standing(self, *, stops: bool = True) -> Standing | None:
        """How owners stand now; None: nothing is promised to any.

        Args:
            stops: Whether the outside world can stop jobs.
        """
        shares = self.quotas.shares
        if shares is None:
            return None
        waits: dict[str, float] = {}
        lines = self.queue_of_waiting.lines()
        tree = Tree(shares, {line.request.owner for line in lines})
        for line in lines:
            asked = line.request.total_gpus
            asks = self.limit_on(line.queue) is None and self.capability.possible(line.request)
            # What its owner may never have is not owed to it, either: it would be as long as the job waits, in vain.
            asks = asks and not tree.never(line.request, self.device_count, stops=stops)
            devices = asked * len(line.entries) if asks else 0
            # Whoever waits has a standing, also one that can be given nothing now.
            waits[line.request.owner] = waits.get(line.request.owner, 0.0) + devices
        running = self.running.values()
        now = holdings(self, (job for job in running if job.behind is None))
        coming = holdings(self, (job for job in running if job.behind is not None))
        firm = holdings(self, (job for job in running if not (stops and job.request.preemptible)))
        return Standing(shares, self.learned.usage, self.device_count, now, firm, waits, coming)

    def granted_bytes(self, device_id: str) -> int:
        """Bytes of the device that are granted to jobs which may train there now."""
        return sum(_bytes_on(job, device_id) for job in self.occupants(device_id) if job.behind is None)

    def waiting(self) -> list[Job]:
        """The jobs that wait, in no particular order."""
        return [job for job in self.jobs.values() if job.status is Status.WAITING]

    def successor(self, job_id: str) -> Job | None:
        """The job that is prepared behind this one, or None."""
        behind = self._behind.get(job_id)
        return self.jobs.get(behind) if behind else None

    def limit_on(self, queue_id: str, more: Mapping[str, int] = MappingProxyType({})) -> tuple[str, str] | None:
        """(code, reason) of the user's own limit that keeps jobs of this queue from starting, or None.

        Args:
            more: Jobs to count as active beside those that are, by queue.
        """
        quotas, active = self.quotas, len(self.running) + sum(more.values())
        if self.draining:
            return "draining", "the worker is draining and takes no new runs"
        if quotas.pool_paused:
            return "paused", "the work pool is paused"
        queue = self.queue(queue_id)
        if queue.paused:
            return "paused", f"the work queue {queue.name or queue.id!r} is paused"
        if quotas.worker_limit is not None and active >= quotas.worker_limit:
            return "limit", f"the worker's limit of {plural(quotas.worker_limit, 'run')} at once is reached"
        pool_active = active + quotas.pool_active_elsewhere
        if quotas.pool_limit is not None and pool_active >= quotas.pool_limit:
            return "limit", f"the work pool's limit of {plural(quotas.pool_limit, 'run')} at once is reached"
        in_queue = self._active_in[queue_id] + more.get(queue_id, 0) + queue.active_elsewhere
        if queue.limit is not None and in_queue >= queue.limit:
            most = plural(queue.limit, "run")
            return "limit", f"the limit of {most} at once in work queue {queue.name or queue.id!r} is reached"
        return None

    def story(self, job_id: str) -> list[tuple[float, str]]:
        """What happened to a job, as (time, sentence); kept for a while after it has ended."""
        job = self.jobs.get(job_id)
        return list(job.story if job else self._ended.get(job_id, []))

    # -- changes --------------------------------------------------------------------------------------------------

    def set_nodes(self, nodes: tuple[Node, ...]) -> None:
        """Replace the nodes. Devices that are gone are remembered as long as a job holds them."""
        super().set_nodes(nodes)
        self._overfilled = {device for device, _ in self.held() if self._conflict(device)}

    def set_quotas(self, quotas: Quotas, now: float) -> None:
        """Replace the limits."""
        self.quotas = quotas
        old, self._queues = self._queues, {queue.id: queue for queue in quotas.queues}
        if {id_: queue.priority for id_, queue in old.items()} != {q.id: q.priority for q in quotas.queues}:
            self.queue_of_waiting.sort(self, now)

    def admit(self, job: Job, now: float) -> None:
        """A job waits from now on (again)."""
        self._know(job)
        job.status = Status.WAITING
        self.queue_of_waiting.add(job, self, now)

    def ask(self, job: Job, request: Request) -> None:
        """A job that stands in no line asks for something else."""
        self.wanted_count += request.total_gpus - job.request.total_gpus
        self.growing_count += (request.max_workers is not None) - (job.request.max_workers is not None)
        differs, job.request = job.request != request, request
        if differs:
            self.promises.changed(job)

    def take(self, job: Job, placement: Placement, status: Status, now: float, behind: str | None = None) -> None:
        """Give a waiting job its placement."""
        self.queue_of_waiting.remove(job)
        self._know(job)
        job.status, job.placement, job.granted_at, job.hold = status, placement, now, None
        job.behind, job.impatient, job.done_at = behind, False, None
        if job.estimate.by_kind and placement.devices:
            job.expect(job.estimate.counted_on(self.slowest_kind(job, placement)))
        if behind is not None:
            self._behind[behind] = job.id
        self.running[job.id] = job
        if job.request.time_limit_s is not None:
            self.limited[job.id] = job
        self.promises.stale()
        self._count(job, 1)
        self._active_in[job.queue] += 1
        self.occupy(job)
        if self.ranking is not None:
            self.ranking.add(job)

    def slowest_kind(self, job: Job, placement: Placement) -> str:
        """Of the kinds of the devices of a placement, the one on which the job takes longest: it decides the pace."""
        kinds = dict.fromkeys(self._devices[id_].kind for id_ in placement.all_devices if id_ in self._devices)
        return max(kinds, key=lambda kind: job.estimate.slower_on(kind) or 0.0, default="")

    def accept(self, job: Job) -> None:
        """What a job does on its devices is a fact, whether we would have decided so or not."""
        if job.placement is not None:
            self._overfilled |= {id_ for id_ in job.placement.all_devices if self._conflict(id_)}

    def is_free_after(self, ahead: Job, request: Request, placement: Placement) -> bool:
        """Whether a job may have these devices once another one trains there no more."""
        for id_ in placement.all_devices:
            others, device = [job for job in self._in_front(id_) if job is not ahead], self._devices.get(id_)
            taken = sum(_bytes_on(job, id_) for job in others) + _bytes_of(placement, id_)
            too_much = device is not None and taken > device.memory_bytes
            if others and (too_much or not all(one.shareable for one in (request, *(job.request for job in others)))):
                return False
        return True

    def take_alone(self, job: Job) -> None:
        """A running job needs the whole of its devices from now on: nobody joins it, whoever is there stays."""
        placement = job.placement
        assert placement is not None
        self.occupy(job, -1)
        job.request = replace(job.request, exclusive=True)
        known = [self._devices[id_].memory_bytes for id_ in placement.all_devices if id_ in self._devices]
        whole = min(known, default=placement.memory_bytes)
        job.placement = replace(placement, memory_bytes=whole, shared=False)
        self.occupy(job)
        self.accept(job)

    def open_to_others(self, job: Job, memory_bytes: int) -> None:
        """A running job that had its devices alone is left so much memory of each: whoever shares may join it."""
        placement = job.placement
        assert placement is not None
        self.occupy(job, -1)
        job.request = replace(job.request, exclusive=False, gpu_memory_bytes=memory_bytes, automatic=False)
        job.placement = replace(placement, memory_bytes=memory_bytes, shared=True)
        self.occupy(job)

    def release(self, job: Job, now: float) -> None:
        """Take a job's placement away. It neither waits nor runs then: :meth:`admit` or :meth:`forget` it."""
        if job.placement is None:
            return
        if self.ranking is not None:
            self.ranking.remove(job)
        job.attained_s, job.done_s = job.attained(now), job.done(now)
        self.occupy(job, -1)
        del self.running[job.id]
        self.limited.pop(job.id, None)
        self.promises.stale()
        self._count(job, -1)
        self._active_in[job.queue] -= 1
        if job.behind is not None:
            self._behind.pop(job.behind, None)
        if self._overfilled:
            self._overfilled = {id_ for id_ in self._overfilled if self._conflict(id_)}
        job.placement, job.granted_at, job.hold, job.behind, job.done_at = None, None, None, None, None
        job.cores_before, job.opened = {}, False

    def rearrange(self, moves: Sequence[tuple[Job, Placement]]) -> None:
        """Change the placements of several running jobs at once: some go where others were."""
        for job, _ in moves:
            self.occupy(job, -1)
        for job, placement in moves:
            job.placement = placement
            self.occupy(job)

    def _know(self, job: Job) -> None:
        before = self.jobs.get(job.id)
        if before is not job:
            self.wanted_count += job.request.total_gpus - (before.request.total_gpus if before is not None else 0)
            self.growing_count += job.request.max_workers is not None
            self.growing_count -= before is not None and before.request.max_workers is not None
            self.jobs[job.id] = job

    def _count(self, job: Job, sign: int) -> None:
        self.firm_count += sign * (not job.request.preemptible)
        self.deviceless_count += sign * (not job.request.total_gpus)

    def pass_gate(self, job: Job, now: float) -> None:
        """A prepared job's predecessor trains no more; the devices are the job's from now on."""
        if job.behind is not None:
            self._behind.pop(job.behind, None)
            job.behind, job.granted_at = None, now
            if job.launched_at is not None:  # what it waited there for was no launch: another would not take as long
                job.launched_at = max(job.launched_at, now - job.estimate.launching_s)
            if self.ranking is not None:
                self.ranking.add(job)
            there = self._devices.keys() & (job.placement.all_devices if job.placement is not None else ())
            # One that takes more than a device has can only have been found there: from now on that shows.
            self._overfilled |= {id_ for id_ in there if _bytes_on(job, id_) > self._devices[id_].memory_bytes}

    def progress(self, job: Job, done_s: float, now: float) -> None:
        """A run says how far it has come."""
        job.done_s, job.done_at = done_s, now if job.active else None
        if self.ranking is not None and job.active:
            self.ranking.add(job)

    def estimate(self, job: Job, estimate: Estimate, now: float) -> None:
        """More is known now of what a job needs."""
        job.expect(estimate)
        if job.status is Status.WAITING:
            self.queue_of_waiting.remove(job)
            self.queue_of_waiting.add(job, self, now)
        elif self.ranking is not None and job.active:
            self.ranking.add(job)

    def forget(self, job: Job) -> None:
        """Remove a job that holds nothing; its story stays for a while."""
        self.queue_of_waiting.remove(job)
        self.promises.remove(job)
        del self.jobs[job.id]
        self.wanted_count -= job.request.total_gpus
        self.growing_count -= job.request.max_workers is not None
        self._ended[job.id] = job.story
        while len(self._ended) > _KEPT_STORIES:
            self._ended.popitem(last=False)

    # -- invariants -----------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raise :class:`InvariantError` unless the books balance.

        No decision grants a device beyond its memory or shares it against a run's wish; a job has all the devices
        that it asked for, each part's on one node of one domain, or none; counters and indexes equal what the jobs say.
        """
        on_device: dict[str, list[Job]] = {}
        for job in self.jobs.values():
            self._check_job(job)
            for device_id in job.placement.all_devices if job.placement else ():
                on_device.setdefault(device_id, []).append(job)
        for device_id, jobs in on_device.items():
            conflict = self._conflict(device_id)
            if conflict and device_id not in self._overfilled:
                raise InvariantError(f"{device_id} is {conflict}: {[job.label for job in jobs]}")
        booked = {device: set(jobs) for device, jobs in self.held()}
        if booked != {id_: {job.id for job in jobs} for id_, jobs in on_device.items()}:
            raise InvariantError("the occupants of the devices do not equal the placements of the jobs")
        self._check_counts()

    def _check_job(self, job: Job) -> None:
        placement = job.placement
        if job.active != (placement is not None):
            raise InvariantError(f"{job.label} is {job.status.value} with placement {placement}")
        if (self.queue_of_waiting.holds(job)) != (job.status is Status.WAITING):
            raise InvariantError(f"{job.label} is {job.status.value}, and in the queue or not against that")
        if placement is None:
            return
        devices = placement.all_devices
        least, most = job.request.total_gpus, job.request.most_gpus
        if not least <= len(devices) <= most or len(set(devices)) != len(devices):
            raise InvariantError(f"{job.label} asked for {least} to {most} devices and has {devices}")
        if job.request.grows and any(len(part.devices) != job.request.gpus for part in placement.parts):
            raise InvariantError(f"{job.label} has a worker without its devices: {placement}")
        for part in placement.parts:
            node = self.nodes.get(part.node)
            if node is not None:
                own = {device.id for device in node.devices}
                strange = [id_ for id_ in part.devices if id_ not in own and id_ in self._where]
                if strange:
                    raise InvariantError(f"{job.label} has devices of other nodes than it says: {strange}")
        domains = {self.nodes[name].domain for name in placement.nodes if name in self.nodes}
        if len(domains) > 1 and not self._overfilled & set(devices):
            raise InvariantError(f"{job.label} is in several domains, and may be in one: {sorted(domains)}")

    def _check_counts(self) -> None:
        active = [job for job in self.jobs.values() if job.active]
        if {job.id for job in active} != set(self.running):
            raise InvariantError("the running jobs are not those that hold a placement")
        if self.firm_count != sum(not job.request.preemptible for job in active):
            raise InvariantError("the count of jobs that may not be stopped is wrong")
        if self.wanted_count != sum(job.request.total_gpus for job in self.jobs.values()):
            raise InvariantError("the count of devices that are asked for is wrong")
        if self.growing_count != sum(job.request.max_workers is not None for job in self.jobs.values()):
            raise InvariantError("the count of jobs with a varying number of workers is wrong")
        if self.deviceless_count != sum(not job.request.total_gpus for job in active):
            raise InvariantError("the count of jobs without devices is wrong")
        if +self._active_in != Counter(job.queue for job in active):
            raise InvariantError("the counts of active jobs are wrong")
        if self._behind != {job.behind: job.id for job in active if job.behind is not None}:
            raise InvariantError(f"who is prepared behind whom is wrong: {self._behind}")
        parts = [part for job in active if job.placement for part in job.placement.parts]
        for node_id in {*self._core_load, *(part.node for part in parts)}:
            bound = Counter(core for part in parts if part.node == node_id for core in part.cpus)
            if +self.core_load(node_id) != bound:
                raise InvariantError(f"the load of the cores of {node_id} is not what the jobs have")
            if node_id in self.nodes and self.free_cores_on(node_id) != len(set(self.nodes[node_id].cpus) - set(bound)):
                raise InvariantError(f"the count of free cores is wrong for {node_id}")
        for books in self.numbered:
            free = [at for at, device in enumerate(books.node.devices) if self.is_free(device.id)]
            if books.free != free or books.number not in self._with_free[books.shape, len(free)]:
                raise InvariantError(f"the index of free devices is wrong for {books.node.id}")
        if self.free_count != sum(len(books.free) for books in self.numbered):
            raise InvariantError("the count of free devices is wrong")

    def _conflict(self, device_id: str) -> str | None:
        """Why the jobs on a device cannot be there together, or None: those that train, or may at any moment."""
        device, in_front = self._devices.get(device_id), self._in_front(device_id)
        if device is not None and sum(_bytes_on(job, device_id) for job in in_front) > device.memory_bytes:
            return "granted beyond its memory"
        if len(in_front) > 1 and not all(job.request.shareable for job in in_front):
            return "shared against a run's wish"
        return None

    def _in_front(self, device_id: str) -> list[Job]:
        return [job for job in self.occupants(device_id) if job.behind is None and job.status is not Status.SAVING]


def _bytes_on(job: Job, device_id: str) -> int:
    return _bytes_of(job.placement, device_id) if job.placement is not None else 0


def _bytes_of(placement: Placement, device_id: str) -> int:
    if not placement.others:
        return placement.memory_bytes
    return next((part.memory_bytes for part in placement.parts if device_id in part.devices), 0)
