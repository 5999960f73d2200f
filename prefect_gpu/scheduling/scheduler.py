"""The scheduler's only door: an event goes in, instructions come out."""

from __future__ import annotations

from prefect_gpu.scheduling import events as ev
from prefect_gpu.scheduling.instructions import Hold, Instruction, Launch
from prefect_gpu.scheduling.jobs import Job, Request, Status
from prefect_gpu.scheduling.profiles import Profile, get_profile
from prefect_gpu.scheduling.state import State

_PHASES = (Status.PREPARING, Status.TRAINING, Status.SAVING)


class Scheduler:
    """Decides when, where and with what each run starts. The live and the simulated world run this same object.

    Args:
        profile: A profile, or the name of one.

    Raises:
        ValueError: The profile's name is not known.

    Example:
        >>> from prefect_gpu.scheduling.cluster import Device, Node
        >>> scheduler = Scheduler("fifo")
        >>> node = Node("here", (Device("virtual-0", "virtual", 8 << 30, virtual=True),), cpus=(0, 1))
        >>> scheduler.handle(ev.NodesChanged((node,)), now=0.0)
        []
        >>> scheduler.handle(ev.JobSubmitted("a", Request(), "default", 0.0, 0.0), now=1.0)[0].reason
        'virtual-0 is free'
    """

    def __init__(self, profile: Profile | str = "fifo") -> None:
        self.profile = get_profile(profile) if isinstance(profile, str) else profile
        self.state = State()
        self._reserved: dict[str, Job] = {}  # device id: the job that it is kept for, as of the last look at all jobs
        self._next_due: float | None = None

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Take in one event and say what to do.

        Args:
            event: What happened.
            now: When, in seconds on any clock that does not go backwards by much.

        Returns:
            Instructions in the order in which they are to be carried out.
        """
        if not self._apply(event, now):
            return []
        if isinstance(event, ev.JobSubmitted) and self._concerns_nobody_else(self.state.jobs[event.job], now):
            return self._cycle([self.state.jobs[event.job]], now)
        self._reserved, self._next_due = {}, None
        return self._cycle(sorted(self.state.waiting(), key=lambda job: self._key(job, now)), now)

    def next_due(self) -> float | None:
        """When the next waiting job becomes due or loses patience, or None: send ``TimePassed`` then.

        It may lie in the past, if nothing has been decided since.
        """
        return self._next_due

    def _key(self, job: Job, now: float) -> tuple[object, ...]:
        return self.profile.order.key(job, self.state, now)

    def _concerns_nobody_else(self, job: Job, now: float) -> bool:
        """Whether no job but this one, just submitted, can start now: nothing was freed, and no other became due.

        A queue of thousands is taken in one by one; to look at all of it each time took minutes.
        """
        if self._next_due is not None and self._next_due <= now:
            return False
        return all(self._key(keeper, now) < self._key(job, now) for keeper in set(self._reserved.values()))

    # -- events ---------------------------------------------------------------------------------------------------

    def _apply(self, event: ev.Event, now: float) -> bool:
        """Change the state; False if the event changed nothing that a decision could depend on."""
        state = self.state
        match event:
            case ev.NodesChanged(nodes):
                state.set_nodes(nodes)
            case ev.QuotasChanged(quotas):
                state.set_quotas(quotas)
            case ev.JobSubmitted():
                return self._submit(event, now)
            case ev.JobWithdrawn(job_id, reason):
                job = state.jobs.get(job_id)
                if job is None or job.active:
                    return False
                job.story.append((now, f"withdrawn: {reason}"))
                state.forget(job)
            case ev.JobAdopted():
                return self._adopt(event, now)
            case ev.LaunchFailed(job_id, reason, not_before):
                job = state.jobs.get(job_id)
                if job is None or job.status is not Status.LAUNCHING:
                    return False
                job.story.append((now, f"could not be launched: {reason}"))
                state.release(job)
                job.retry_at = not_before
            case ev.PhaseEntered(job_id, status):
                job = state.jobs.get(job_id)
                if job is None or not job.active or status not in _PHASES or job.status is status:
                    return False
                job.status = status
                job.story.append((now, f"is {status.value}"))
                return False  # no placement changes hands before the job ends
            case ev.JobEnded(job_id, outcome):
                job = state.jobs.get(job_id)
                if job is None or not job.active:
                    return False
                job.story.append((now, f"ended: {outcome}"))
                state.release(job)
                state.forget(job)
            case ev.DrainRequested():
                state.draining = True
            case ev.TimePassed():
                pass
        return True

    def _submit(self, event: ev.JobSubmitted, now: float) -> bool:
        job = self.state.jobs.get(event.job)
        if job is not None and job.active:
            return False
        if job is None:
            job = Job(event.job, event.request, event.queue, event.submitted_at, event.not_before, event.name)
            job.story.append((now, "submitted"))
            self.state.jobs[job.id] = job
            return True
        before = (job.request, job.queue, job.not_before)
        if job.request != event.request:
            job.hold = None  # its reason to wait, if there still is one, is a new one
        job.request, job.queue, job.not_before = event.request, event.queue, event.not_before
        job.submitted_at, job.name = event.submitted_at, event.name
        return before != (job.request, job.queue, job.not_before)

    def _adopt(self, event: ev.JobAdopted, now: float) -> bool:
        known = self.state.jobs.get(event.job)
        if known is not None and known.active:
            return False
        job = Job(event.job, event.request, event.queue, event.submitted_at, event.submitted_at, event.name)
        job.story.append((now, f"found running on {_names(event.placement.devices)} and adopted"))
        self.state.jobs[job.id] = job
        status = event.status if event.status is not Status.WAITING else Status.LAUNCHING
        self.state.take_as_found(job, event.placement, status, now)
        return True

    # -- decisions ------------------------------------------------------------------------------------------------

    def _cycle(self, jobs: list[Job], now: float) -> list[Instruction]:
        """Look at waiting jobs once, in the order given, and start those that can start.

        1. A job that is not due, or that a limit of the user's keeps back, waits.
        2. A job that fits gets its place at once; the books change before the next job is looked at.
        3. A job that fits nowhere now waits, and later ones may pass it, until it loses patience: from then on the
           devices that it could use are kept for it.
        """
        state, profile = self.state, self.profile
        instructions: list[Instruction] = []
        # Places only become fewer during a look: what found none need not be tried again for an equal request.
        in_vain: dict[Request, tuple[str, str]] = {}
        for job in jobs:
            if job.due_at > now:
                self._look_again_at(job.due_at)
                reason = "it is not due yet" if job.not_before > now else "its launch failed and is tried again soon"
                self._hold(job, "due", reason, now, instructions)
                continue
            limit = state.limit_reason(job)
            if limit is not None:
                self._hold(job, *limit, now, instructions)
                continue
            placement = None
            if job.request not in in_vain:
                placement = profile.placement.place(job, state, profile.sharing, self._reserved)
            if placement is None:
                if job.request not in in_vain:
                    in_vain[job.request] = self._why_not(job)
                code, reason = in_vain[job.request]
                self._hold(job, code, reason, now, instructions)
                impatient_at = job.not_before + profile.patience_s
                if impatient_at > now:
                    self._look_again_at(impatient_at)
                elif code != "never":
                    for device in self._usable_devices(job.request):
                        self._reserved.setdefault(device, job)
                continue
            reason = f"{_names(placement.devices)} {'are' if len(placement.devices) > 1 else 'is'} free"
            if not placement.devices:
                reason = "it needs no device"
            elif any(state.occupants(device) for device in placement.devices):
                reason = f"{_names(placement.devices)} {_have(placement.devices)} room beside other runs"
            state.take(job, placement, Status.LAUNCHING, now)
            job.story.append((now, f"granted {_names(placement.devices) or 'cores'}: {reason}"))
            instructions.append(Launch(job.id, placement, reason))
        return instructions

    def _look_again_at(self, moment: float) -> None:
        self._next_due = moment if self._next_due is None else min(moment, self._next_due)

    def _hold(self, job: Job, code: str, reason: str, now: float, instructions: list[Instruction]) -> None:
        if job.hold != code:
            job.hold = code
            job.story.append((now, f"waits: {reason}"))
            instructions.append(Hold(job.id, code, reason))

    def _usable_devices(self, request: Request) -> list[str]:
        """The devices that a job could be given if the nodes were empty."""
        usable = []
        for node in self.state.nodes.values():
            enough = [device.id for device in node.devices if device.memory_bytes >= (request.gpu_memory_bytes or 0)]
            if len(enough) >= request.gpus:
                usable += enough
        return usable

    def _why_not(self, job: Job) -> tuple[str, str]:
        """(code, reason) why no node can hold the job now."""
        state, request = self.state, job.request
        if not state.nodes:
            return "devices", "no node is known yet"
        usable = self._usable_devices(request)
        if not usable:
            return "never", explain_impossible(request, state)
        place = self.profile.placement.place(job, state, self.profile.sharing) if self._reserved else None
        if place is not None:
            keeper = next(self._reserved[device] for device in place.devices if device in self._reserved)
            return "reserved", f"its devices are kept for {keeper.label}"
        memory = f" with {_gibibytes(request.gpu_memory_bytes)}" if request.gpu_memory_bytes else ""
        wanted = f"{request.gpus} device{'s' if request.gpus != 1 else ''}{memory}"
        company = [device for device in usable if request.shareable and self._is_shared(device)]
        if company:
            left = max(state.device(device).memory_bytes - state.granted_bytes(device) for device in company)
            return "memory", f"it needs {wanted} on one node, and a shared one has at most {_gibibytes(left)} left"
        busy = sum(1 for device in usable if state.occupants(device))
        return "devices", f"it needs {wanted} on one node, and {busy} of {len(usable)} are in use"

    def _is_shared(self, device: str) -> bool:
        company = self.state.occupants(device)
        return bool(company) and all(job.request.shareable for job in company)


def explain_impossible(request: Request, state: State) -> str:
    """Why no node can ever hold a request: names the field, the value and the remedy."""
    most = max((len(node.devices) for node in state.nodes.values()), default=0)
    if most == 0:
        return (
            f"gpus={request.gpus}, but this worker has no device at all: install the NVIDIA driver, or declare virtual "
            "devices with PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES=2"
        )
    if request.gpus > most:
        return f"gpus={request.gpus} is more than the {most} that a node of this worker has: ask for {most} or fewer"
    # On each node, the devices of a gang can have at most what the smallest of its largest devices has.
    largest = max(
        sorted((device.memory_bytes for device in node.devices), reverse=True)[request.gpus - 1]
        for node in state.nodes.values()
        if len(node.devices) >= request.gpus
    )
    each = f" on each of {request.gpus} devices of one node" if request.gpus > 1 else ""
    return (
        f"gpu_memory={(request.gpu_memory_bytes or 0) / 2**30:.6g}GiB{each} is more than this worker has: "
        f"ask for at most {_gibibytes(largest)}"
    )


def _gibibytes(size: int) -> str:
    """A size in GiB as a request may repeat it: rounded down, so that what is offered is really there."""
    return f"{int(size / 2**30 * 1000) / 1000:.15g}GiB" if size >= 2**30 else f"{size // 2**20}MiB"


def _names(devices: tuple[str, ...]) -> str:
    return ", ".join(devices)


def _have(devices: tuple[str, ...]) -> str:
    return "have" if len(devices) > 1 else "has"
