"""A scheduler with its outside world reduced to a table: nodes, a queue of jobs, and where they are expected."""

from __future__ import annotations

from typing import Any

from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import NOTHING_SPECIAL, Abilities
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement, Queue, Quotas
from prefect_gpu.scheduling.model.instructions import Hold, Instruction, Launch, Move, Preempt
from prefect_gpu.scheduling.model.jobs import Estimate, Request, Status
from prefect_gpu.scheduling.profiles import Profile

GIB = 2**30
PATIENCE_S = 100.0


def node(name: str = "n", *memory_gib: float, cpus: int = 8, near: dict[int, tuple[int, ...]] | None = None) -> Node:
    """A node whose devices, ``n0``, ``n1`` and so on, have these sizes."""
    devices = tuple(
        Device(f"{name}{number}", "test", int(size * GIB), cores=(near or {}).get(number, ()))
        for number, size in enumerate(memory_gib)
    )
    return Node(name, devices, tuple(range(cpus)))


def asks(gpus: int = 1, gib: float | None = None, *, shares: bool = False, cpus: int | None = None) -> Request:
    """What a job asks for."""
    return Request(gpus, None if gib is None else int(gib * GIB), cpus, exclusive=not shares)


class World:
    """Feeds a scheduler, checks its books after each event, and remembers what it said."""

    def __init__(
        self,
        *nodes: Node,
        profile: Profile | str | None = None,
        abilities: Abilities = NOTHING_SPECIAL,
        **quotas: Any,
    ) -> None:
        self.scheduler = Scheduler(profile or Profile("test", patience_s=PATIENCE_S), abilities)
        self.state = self.scheduler.state
        self.instructions: list[Instruction] = []
        self.now = 1000.0
        if quotas:
            self.limit(**quotas)
        if nodes:
            self.handle(ev.NodesChanged(nodes))

    def handle(self, event: ev.Event) -> list[Instruction]:
        """Send an event; what the scheduler says to it."""
        said = self.scheduler.handle(event, self.now)
        self.state.check_invariants()
        self.instructions += said
        return said

    def submit(
        self,
        *jobs: str,
        request: Request | None = None,
        queue: str = "q",
        due: float | None = None,
        at: float = 0.0,
        service_s: float | None = None,
        estimate: Estimate | None = None,
    ) -> list[Instruction]:
        """Submit jobs with the same request, due now unless said otherwise."""
        said = []
        for job in jobs:
            moment = self.now if due is None else due
            known = estimate or Estimate(service_s=service_s)
            said += self.handle(ev.JobSubmitted(job, request or Request(), queue, at, moment, f"run {job}", known))
        return said

    def train(self, *jobs: str) -> list[Instruction]:
        """The jobs begin to train."""
        return [said for job in jobs for said in self.handle(ev.PhaseEntered(job, Status.TRAINING))]

    def end(self, *jobs: str) -> list[Instruction]:
        """The jobs' processes end."""
        return [said for job in jobs for said in self.handle(ev.JobEnded(job, "its process ended"))]

    def adopt(self, job: str, place: Placement, request: Request | None = None, queue: str = "q") -> list[Instruction]:
        """A job of an earlier worker is found running."""
        return self.handle(ev.JobAdopted(job, request or Request(), queue, 0.0, place, Status.TRAINING))

    def limit(self, *queues: Queue, **quotas: Any) -> list[Instruction]:
        """Set all the limits."""
        return self.handle(ev.QuotasChanged(Quotas(queues=queues, **quotas)))

    def wait(self, seconds: float) -> list[Instruction]:
        """Let time pass."""
        self.now += seconds
        return self.handle(ev.TimePassed())

    @property
    def launched(self) -> list[str]:
        """Jobs in the order of their launches."""
        return [said.job for said in self.instructions if isinstance(said, Launch)]

    @property
    def places(self) -> dict[str, str]:
        """The devices of each active job, as ``"n0 n1"``."""
        return {job.id: " ".join(job.placement.all_devices) for job in self.state.jobs.values() if job.placement}

    @property
    def stopped(self) -> list[str]:
        """Jobs in the order in which they were told to stop."""
        return [said.job for said in self.instructions if isinstance(said, Preempt)]

    @property
    def moved(self) -> list[str]:
        """Jobs in the order in which they were told to move."""
        return [said.job for said in self.instructions if isinstance(said, Move)]

    def held(self, job: str) -> list[str]:
        """The codes of the reasons that the job was ever held for, in order."""
        return [said.code for said in self.instructions if isinstance(said, Hold) and said.job == job]

    def reason(self, job: str) -> str:
        """The newest reason that the job was held for."""
        return [said.reason for said in self.instructions if isinstance(said, Hold) and said.job == job][-1]
