"""All that the scheduler knows, with the bookkeeping and the invariants that must hold after every event."""

from __future__ import annotations

from collections import Counter, OrderedDict

from prefect_gpu.scheduling.cluster import Device, Node, Placement, Queue, Quotas
from prefect_gpu.scheduling.jobs import Job, Status

_KEPT_STORIES = 1000


class InvariantError(AssertionError):
    """The scheduler contradicts itself: always a bug, never a user's mistake."""


class State:
    """Jobs, nodes and limits. Only :class:`~prefect_gpu.scheduling.scheduler.Scheduler` changes it."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.quotas = Quotas()
        self.jobs: dict[str, Job] = {}
        self.draining = False
        self._queues: dict[str, Queue] = {}
        self._devices: dict[str, Device] = {}
        self._occupants: dict[str, dict[str, Job]] = {}
        self._core_load: dict[str, Counter[int]] = {}
        self._active_in: Counter[str] = Counter()
        self._active = 0
        self._ended: OrderedDict[str, list[tuple[float, str]]] = OrderedDict()
        # Devices that facts, not decisions, have overfilled: adopted jobs, or a node that has changed under its jobs.
        self._overfilled: set[str] = set()

    # -- questions ------------------------------------------------------------------------------------------------

    def queue(self, queue_id: str) -> Queue:
        """The queue, or an unlimited one of lowest priority if it is not known (yet)."""
        return self._queues.get(queue_id) or Queue(queue_id, priority=1_000_000)

    def device(self, device_id: str) -> Device:
        """The device of that id. Raises KeyError if no node has ever had it."""
        return self._devices[device_id]

    def occupants(self, device_id: str) -> list[Job]:
        """The jobs that hold (a part of) the device."""
        return list(self._occupants.get(device_id, {}).values())

    def granted_bytes(self, device_id: str) -> int:
        """Bytes of the device that are granted to jobs."""
        return sum(job.placement.memory_bytes for job in self.occupants(device_id) if job.placement)

    def core_load(self, node_id: str) -> Counter[int]:
        """How many jobs are bound to each core of a node."""
        return self._core_load.get(node_id, Counter())

    def waiting(self) -> list[Job]:
        """The jobs that wait, in no particular order."""
        return [job for job in self.jobs.values() if job.status is Status.WAITING]

    @property
    def active_count(self) -> int:
        """How many jobs hold a placement."""
        return self._active

    def limit_reason(self, job: Job) -> tuple[str, str] | None:
        """(code, reason) of the user's own limit that keeps the job from starting, or None."""
        quotas, queue = self.quotas, self.queue(job.queue)
        if self.draining:
            return "draining", "the worker is draining and takes no new runs"
        if quotas.pool_paused:
            return "paused", "the work pool is paused"
        if queue.paused:
            return "paused", f"the work queue {queue.name or queue.id!r} is paused"
        if quotas.worker_limit is not None and self._active >= quotas.worker_limit:
            return "limit", f"the worker's limit of {quotas.worker_limit} runs at once is reached"
        pool_active = self._active + quotas.pool_active_elsewhere
        if quotas.pool_limit is not None and pool_active >= quotas.pool_limit:
            return "limit", f"the work pool's limit of {quotas.pool_limit} runs at once is reached"
        queue_active = self._active_in[job.queue] + queue.active_elsewhere
        if queue.limit is not None and queue_active >= queue.limit:
            return (
                "limit",
                f"the limit of {queue.limit} runs at once in work queue {queue.name or queue.id!r} is reached",
            )
        return None

    def story(self, job_id: str) -> list[tuple[float, str]]:
        """What happened to a job, as (time, sentence); kept for a while after it has ended."""
        job = self.jobs.get(job_id)
        return list(job.story if job else self._ended.get(job_id, []))

    # -- changes --------------------------------------------------------------------------------------------------

    def set_nodes(self, nodes: tuple[Node, ...]) -> None:
        """Replace the nodes. Devices that are gone are remembered as long as a job holds them."""
        self.nodes = {node.id: node for node in nodes}
        held = {id_: device for id_, device in self._devices.items() if self._occupants.get(id_)}
        self._devices = held | {device.id: device for node in nodes for device in node.devices}
        self._overfilled = {id_ for id_ in self._occupants if self._conflict(id_)}

    def set_quotas(self, quotas: Quotas) -> None:
        """Replace the limits."""
        self.quotas = quotas
        self._queues = {queue.id: queue for queue in quotas.queues}

    def take(self, job: Job, placement: Placement, status: Status, now: float) -> None:
        """Give a waiting job its placement."""
        job.status, job.placement, job.granted_at, job.hold = status, placement, now, None
        for device_id in placement.devices:
            self._occupants.setdefault(device_id, {})[job.id] = job
        self._core_load.setdefault(placement.node, Counter()).update(placement.cpus)
        self._active += 1
        self._active_in[job.queue] += 1

    def take_as_found(self, job: Job, placement: Placement, status: Status, now: float) -> None:
        """Give a job a placement that it has in fact, whether we would have decided so or not."""
        self.take(job, placement, status, now)
        self._overfilled |= {id_ for id_ in placement.devices if self._conflict(id_)}

    def release(self, job: Job) -> None:
        """Take a job's placement away; it waits again."""
        placement = job.placement
        if placement is None:
            return
        for device_id in placement.devices:
            self._occupants.get(device_id, {}).pop(job.id, None)
        self._core_load[placement.node].subtract(placement.cpus)
        self._active -= 1
        self._active_in[job.queue] -= 1
        self._overfilled = {id_ for id_ in self._overfilled if self._conflict(id_)}
        job.status, job.placement, job.granted_at, job.hold = Status.WAITING, None, None, None

    def forget(self, job: Job) -> None:
        """Remove a job that holds nothing; its story stays for a while."""
        del self.jobs[job.id]
        self._ended[job.id] = job.story
        while len(self._ended) > _KEPT_STORIES:
            self._ended.popitem(last=False)

    # -- invariants -----------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raise :class:`InvariantError` unless the books balance.

        No decision grants a device beyond its memory or shares it against a run's wish; a job's devices are all on its
        node and as many as it asked for, or it has none; the counters equal what the jobs say.
        """
        on_device: dict[str, list[Job]] = {}
        for job in self.jobs.values():
            placement = job.placement
            if job.active != (placement is not None):
                raise InvariantError(f"{job.label} is {job.status.value} with placement {placement}")
            if placement is None:
                continue
            if len(placement.devices) != job.request.gpus or len(set(placement.devices)) != job.request.gpus:
                raise InvariantError(f"{job.label} asked for {job.request.gpus} devices and has {placement.devices}")
            node = self.nodes.get(placement.node)
            if node is not None:
                strange = set(placement.devices) & set(self._devices) - {device.id for device in node.devices}
                elsewhere = {d.id for other in self.nodes.values() if other is not node for d in other.devices}
                if strange & elsewhere:
                    raise InvariantError(f"{job.label} straddles nodes: {strange}")
            for device_id in placement.devices:
                on_device.setdefault(device_id, []).append(job)
        for device_id in on_device:
            conflict = self._conflict(device_id)
            if conflict and device_id not in self._overfilled:
                raise InvariantError(f"{device_id} is {conflict}: {[job.label for job in on_device[device_id]]}")
        booked = {id_: set(jobs) for id_, jobs in self._occupants.items() if jobs}
        if booked != {id_: {job.id for job in jobs} for id_, jobs in on_device.items()}:
            raise InvariantError("the occupants of the devices do not equal the placements of the jobs")
        active = [job for job in self.jobs.values() if job.active]
        if self._active != len(active) or +self._active_in != Counter(job.queue for job in active):
            raise InvariantError("the counts of active jobs are wrong")
        for node_id in {*self._core_load, *(job.placement.node for job in active if job.placement)}:
            bound = Counter(
                core for job in active if job.placement and job.placement.node == node_id for core in job.placement.cpus
            )
            if +self.core_load(node_id) != bound:
                raise InvariantError(f"the load of the cores of {node_id} is not what the jobs have")

    def _conflict(self, device_id: str) -> str | None:
        """Why the jobs on a device cannot be there together, or None."""
        jobs, device = self.occupants(device_id), self._devices.get(device_id)
        if device is not None and self.granted_bytes(device_id) > device.memory_bytes:
            return "granted beyond its memory"
        if len(jobs) > 1 and not all(job.request.shareable for job in jobs):
            return "shared against a run's wish"
        return None
