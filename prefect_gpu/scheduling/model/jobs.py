"""Jobs: what a run asks for, what it is expected to need, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from prefect_gpu.scheduling.model.cluster import Device, Placement
from prefect_gpu.scheduling.model.kinds import Wants


@dataclass(frozen=True)
class Request:
    """What one run asks for.

    Attributes:
        gpus: Devices of each instance, all on one node; 0 for a run that only needs cores.
        gpu_memory_bytes: Memory on each device; None asks for whole devices.
        cpus: Cores of each instance; None leaves the count to the scheduler.
        exclusive: Whether the devices must not be shared with other runs.
        category: Kind of model, for what is learned per kind (CODA §V.B).
        workers: Instances of a gang; all are placed, or none.
        servers: Parameter servers of a gang: further instances, which hold no device.
        spans: Whether the devices of an instance may be split over several nodes as the scheduler likes.
        max_gpus: Most devices an elastic run can use (F-scheduling); None: exactly ``gpus``.
        max_workers: Most instances that an elastic gang can have; None: exactly ``workers``.
        batch_sizes: Samples of the smallest and of the largest batch, of all devices together, that an elastic run may
            train with (Pollux). For those who learn; None: the batch is its own affair.
        preemptible: Whether the run may be stopped, and carries on from where it was.
        owner: Who is to be treated fairly (shares, DRF).
        priority: Higher goes first, in the profiles that heed it: of a queue and, where there are shares, an owner.
        kind: The program, as contention is known per program (DeepShare).
        features: Names of the parameters that say what the run needs; empty: all may. For those who learn.
        automatic: Whether the user leaves it to the pool if the devices are shared. Whoever submits the job then says
            ``exclusive=False`` if its memory and its use of a device are both known (Liquid §6.2).
        converged: What happens when the run's loss stands still: "yield", it gives way to runs beside it that still
            learn; "stop", it also ends early; "" is neither.
        wants: Which kinds of devices it wants; None: any will do.
        time_limit_s: Seconds for which it may hold its devices in all; None: without limit.
        deadline_at: When it is to have ended, on the clock of events; None: no matter.
        promise: Whether it runs only if that is promised; else its deadline counts as far as others allow.
    """

    gpus: int = 1
    gpu_memory_bytes: int | None = None
    cpus: int | None = None
    exclusive: bool = True
    category: str | None = None
    workers: int = 1
    servers: int = 0
    spans: bool = False
    max_gpus: int | None = None
    preemptible: bool = False
    owner: str = ""
    priority: int = 0
    kind: str = ""
    features: tuple[str, ...] = ()
    converged: str = ""
    automatic: bool = False
    max_workers: int | None = None
    batch_sizes: tuple[int, int] | None = None
    wants: Wants | None = None
    time_limit_s: float | None = None
    deadline_at: float | None = None
    promise: bool = False

    @property
    def shareable(self) -> bool:
        """A run shares a device only when it says how much memory it needs and does not mind company."""
        return not self.exclusive and self.gpu_memory_bytes is not None

    @property
    def total_gpus(self) -> int:
        """Devices of all instances together."""
        return self.gpus * self.workers

    @property
    def instances_without_devices(self) -> int:
        """Parameter servers, and workers that need only cores."""
        return self.servers + (0 if self.gpus else self.workers)

    @property
    def is_resizable(self) -> bool:
        """Whether it can use a varying number of devices of one node (F-scheduling's prototype, §4.1)."""
        return (
            self.max_gpus is not None
            and self.max_gpus > self.gpus >= 1
            and not self.is_gang
            and not self.spans
            and not self.shareable
        )

    @property
    def grows(self) -> bool:
        """Whether it is an elastic gang: one of a varying number of workers, on one node or on several."""
        return (
            self.max_workers is not None
            and self.max_workers > self.workers >= 1
            and self.gpus >= 1
            and self.servers == 0
            and not self.spans
            and not self.shareable
        )

    @property
    def is_elastic(self) -> bool:
        """Whether it can use a varying number of devices, in one way or the other."""
        return self.is_resizable or self.grows

    @property
    def most_gpus(self) -> int:
        """Devices that it can use at most, of all instances together."""
        return self.gpus * (self.max_workers or 0) if self.grows else max(self.total_gpus, self.max_gpus or 0)

    @property
    def most_if_elastic(self) -> int | None:
        """The same of an elastic run; None of others."""
        return self.most_gpus if self.is_elastic else None

    @property
    def is_gang(self) -> bool:
        """Whether it has several instances, or may have: they are placed together or not at all."""
        return self.workers > 1 or self.servers > 0 or (self.max_workers or 0) > 1

    @property
    def needs_links(self) -> bool:
        """Whether it has several devices, which must be connected over NVLink where they are on one node."""
        return self.wants is not None and self.wants.nvlink and self.most_gpus > 1


@dataclass(frozen=True)
class Estimate:
    """What a run is expected to need, from those who learn (or, in a simulation, from those who know).

    Attributes:
        service_s: Seconds that the run trains for on what it asks for, undisturbed; None: unknown.
        launching_s: Seconds from its launch until it could train (Liquid's T_l).
        saving_s: Seconds from the end of its training to the end of its process (T_sa).
        utilisation: Mean use of each of its devices, 0 to 1; None: unknown.
        memory_bytes: Peak memory on each device; None: unknown.
        throughput: Steps per second on 1, 2, 3 … devices (F-scheduling's f_M); 0 where it cannot run.
        apart: The same where they are on several nodes; empty: as on one.
        stages_s: Seconds of each iteration on each of several resources (Muri's resource model).
        iteration_s: Seconds of one iteration alone; with ``stages_s``.
        sent_bps: Bytes per second that each instance of a gang sends to the others while it trains, and receives of
            them; None: unknown.
        waits: Whether its program is known to wait at its gate: only then may it be prepared behind another.
        restart_s: Seconds that a stop costs the run beside a new launch: to save its progress, and to load it again.
        service_high_s: The upper end of the interval of ``service_s``, which covers nine in ten; None: unknown.
        measured: Whether these follow from what the run itself has done so far, and not from others like it.
        checkpoint_s: Seconds from when it is asked to save and leave until its process is gone; None: unknown.
        kind: The kind of device on which all of these seconds count.
        by_kind: (kind, its seconds of service there over those on ``kind``), of each kind of which that is known, its
            own included; empty: nothing is known of it.
    """

    service_s: float | None = None
    launching_s: float = 0.0
    saving_s: float = 0.0
    utilisation: float | None = None
    memory_bytes: int | None = None
    throughput: tuple[float, ...] = ()
    stages_s: tuple[float, ...] = ()
    iteration_s: float = 0.0
    sent_bps: float | None = None
    waits: bool = True
    restart_s: float = 0.0
    apart: tuple[float, ...] = ()
    checkpoint_s: float | None = None
    service_high_s: float | None = None
    measured: bool = False
    kind: str = ""
    by_kind: tuple[tuple[str, float], ...] = ()

    def slower_on(self, kind: str) -> float | None:
        """Its seconds of service on a kind of device over those that are told; None: unknown."""
        return next((factor for one, factor in self.by_kind if one == kind), None)

    def counted_on(self, kind: str) -> Estimate:
        """The same, counted in seconds on another kind of device; as it is, if nothing is known of that."""
        factor = self.slower_on(kind)
        if factor is None or kind == self.kind:
            return self
        return replace(
            self,
            service_s=None if self.service_s is None else self.service_s * factor,
            service_high_s=None if self.service_high_s is None else self.service_high_s * factor,
            throughput=tuple(speed / factor for speed in self.throughput),
            apart=tuple(speed / factor for speed in self.apart),
            kind=kind,
            by_kind=tuple((one, other / factor) for one, other in self.by_kind),
        )


UNKNOWN = Estimate()


class Status(str, Enum):
    """How far a job has come. The phases are Liquid's (§5.1, eq. 1): launching, training, saving.

    A job that is *stopping* was told to make room: it holds no placement any more in the books, but it cannot be
    placed again before the outside world has said that it did stop.
    """

    WAITING = "waiting"
    LAUNCHING = "launching"
    PREPARING = "preparing"
    TRAINING = "training"
    SAVING = "saving"
    STOPPING = "stopping"


ACTIVE = (Status.LAUNCHING, Status.PREPARING, Status.TRAINING, Status.SAVING)
_ACTIVE = frozenset(ACTIVE)


@dataclass(eq=False)
class Job:
    """One run, as the scheduler sees it. Times are seconds on the clock that events carry.

    Attributes:
        not_before: When the run is due; it never starts earlier.
        retry_at: After a launch that failed: when the next one may be tried. The run keeps its place in the queue.
        hold: Code of the reason it was last left waiting for; None before the first look at it.
        story: What happened to it, as (time, sentence).
        impatient: Whether it has waited so long that nobody may overtake it any more.
        shared_at_s: ``State.shared_s`` when it was due.
        late: Whether it had waited so long, and still would be as late if it went on at once.
        behind: The job whose training must be over before this one may train (Liquid's pre-scheduling, §6.1).
        done_s: Seconds of service that its progress is worth, as of ``done_at``.
        attained_s: Seconds for which it has held devices, up to its last stop.
        stops: How often it was made to stop.
        room_bytes: Memory that its devices must have for what it is expected to need, as of its last wait; 0: any.
        launched_at: When its process was last told to start: by its launch, or by a move.
        trains_since: Since when it has trained after that; None: it does not yet.
        gave_way_at: When it last gave way and waited again: it loses patience as late as if it had come then.
        asked_shares: What each policy asks of its weight, and why: (weight below 1, reason). The least of it holds. It
            is never changed in place, for copies of the job have it too.
        promised: With which probability its deadline was promised; None: it was not.
        expired: Whether it was told to end, as its time is over.
        warned_of: The end of its devices that it was told of last, on the clock of events.
        cores_before: How many cores it had before a policy took some from it, by policy; see ``cores/ledger.py``. It is
            never changed in place either.
        opened: Whether others may join it although it asked for its devices alone, as it does not use them.
    """

    id: str
    request: Request
    queue: str
    submitted_at: float
    not_before: float
    name: str = ""
    estimate: Estimate = UNKNOWN
    status: Status = Status.WAITING
    placement: Placement | None = None
    granted_at: float | None = None
    retry_at: float = float("-inf")
    hold: str | None = None
    story: list[tuple[float, str]] = field(default_factory=list)
    impatient: bool = False
    late: bool = False
    shared_at_s: float | None = None
    behind: str | None = None
    done_s: float = 0.0
    done_at: float | None = None
    attained_s: float = 0.0
    stops: int = 0
    room_bytes: int = 0
    launched_at: float | None = None
    trains_since: float | None = None
    gave_way_at: float = float("-inf")
    warned_of: float | None = None
    promised: float | None = None
    expired: bool = False
    asked_shares: dict[str, tuple[float, str]] = field(default_factory=dict)
    cores_before: dict[str, int] = field(default_factory=dict)
    opened: bool = False

    @property
    def active(self) -> bool:
        """Whether the job holds a placement."""
        return self.status in _ACTIVE

    @property
    def due_at(self) -> float:
        """When the job may start at the earliest."""
        return max(self.not_before, self.retry_at)

    @property
    def least_bytes(self) -> int:
        """Memory that each of its devices must have: what it declares or, if that is more, is expected to need."""
        declared = self.request.gpu_memory_bytes or 0
        return declared if declared > self.room_bytes else self.room_bytes

    def fits_on(self, device: Device) -> bool:
        """Whether the device is large enough and of a kind that it wants, whoever else is on it."""
        wants = self.request.wants
        return device.memory_bytes >= self.least_bytes and (wants is None or wants.accepts(device))

    @property
    def share(self) -> float:
        """Its weight on its devices: 1 is a full one, 0 lets it pause."""
        return min((weight for weight, _ in self.asked_shares.values()), default=1.0)

    def share_asked_by(self, source: str) -> float:
        """The weight that one policy asks for."""
        return self.asked_shares.get(source, (1.0, ""))[0]

    @property
    def label(self) -> str:
        """What people call the job."""
        return self.name or self.id

    def expect(self, estimate: Estimate) -> None:
        """It has this estimate from now on. What it has done is worth as much, in seconds on the kind of that."""
        factor = estimate.slower_on(self.estimate.kind) if estimate.kind != self.estimate.kind else None
        if factor:
            self.done_s /= factor
        self.estimate = estimate

    def attained(self, now: float) -> float:
        """Seconds for which the job has held devices so far (Tiresias' attained service, per device)."""
        if self.granted_at is None or self.behind is not None:
            return self.attained_s
        return self.attained_s + max(0.0, now - self.granted_at)

    def remaining_s(self, now: float) -> float | None:
        """Seconds of service that are left, from the estimate and the progress; None if nothing is estimated."""
        total = self.estimate.service_s
        if total is None:
            return None
        left = total - self.done(now)
        return left if left > 0.0 else 0.0  # not max(): this is asked for most often of all

    def done(self, now: float) -> float:
        """Seconds of service that its progress is worth now. Between two reports it is taken to train at full speed."""
        if self.done_at is None or self.status is not Status.TRAINING:
            return self.done_s
        return self.done_s + (now - self.done_at) if now > self.done_at else self.done_s
