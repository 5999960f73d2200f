"""A run of Prefect's queue is told to the scheduler as it was read, and something is kept of it until it ends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

import httpx
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import Abort, ObjectNotFound
from prefect.states import Cancelled, Crashed
from prefect.utilities.engine import propose_state
from prefect.workers.base import BaseWorker

from prefect_gpu.estimation.runs import Known
from prefect_gpu.estimation.submission import known_of
from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.jobs import Estimate, Job, Request, Status
from prefect_gpu.scheduling.sharing.rules import decided
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker.configuration import BadRequestError, read_request
from prefect_gpu.worker.deadlines.promising import promised_before
from prefect_gpu.worker.endings.orphans import Orphans
from prefect_gpu.worker.endings.suspension import is_suspended
from prefect_gpu.worker.endings.what_it_took import held_before
from prefect_gpu.worker.nodes.infrastructure import keeps_checkpoints
from prefect_gpu.worker.server.answers import NotPrefectsAnswerError
from prefect_gpu.worker.server.asking import Absence, Asking
from prefect_gpu.worker.server.pool import PoolView, is_waiting
from prefect_gpu.worker.server.unreadable import UNREADABLE, UnreadableRun
from prefect_gpu.worker.shares.owners import owner_of
from prefect_gpu.worker.telling.expectations import Shown

_YIELD_AFTER = 20  # runs that are taken in before others have their turn
_REMEMBERED = 10_000  # runs that wait for another try: more are no pool's
_MOVED_S = 2.0  # by which a time has changed; the server's clock is known to a second
_NOWHERE_TO_SAVE = (
    "preemptible=True needs checkpoints that every node reaches, and they are kept in a folder of the worker's "
    "machine, which Slurm's nodes do not see (shared_folder: false): let the operator set "
    "PREFECT_INTEGRATIONS_GPU_CHECKPOINTS=s3://BUCKET/PREFIX, or leave preemptible out."
)
_FEWEST_LOOKS = 3  # before it is believed that a run cannot be read
_KNOWN_KEPT_S = 600.0  # no answer of Prefect is that old when it is taken in


@dataclass
class Seen:
    """What is kept of a run that waits or is launched.

    Attributes:
        flow_run: As it was read last.
        lock: Held while its state is changed in Prefect.
        parameters: Its own, and the defaults of those that it leaves out.
        shown: What its owner was told last.
        taken_in: Of which versions of the run, its deployment and its pool the scheduler was told last.
        before_s: By how much the server's clock was before the worker's time then, in seconds.
    """

    flow_run: FlowRun | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    shown: Shown | None = None
    taken_in: tuple[object, ...] | None = None
    before_s: float = 0.0


class Intake:
    """Takes in what was read of runs.

    Args:
        cancel: Called with a launched run that its user has cancelled.
        suspend: Called with a launched run that its user has suspended, and as it was read.

    Attributes:
        refusing: Runs whose refusal Prefect is about to be told.
    """

    def __init__(
        self,
        worker: BaseWorker[Any, Any, Any],
        pool: PoolView,
        asking: Asking,
        orphans: Orphans,
        *,
        cancel: Callable[[Launch], Awaitable[None]],
        suspend: Callable[[Launch, FlowRun], None],
        logger: logging.Logger,
        settings: GpuSettings | None = None,
        shares_files: bool = True,
    ) -> None:
        self.controller: Controller  # set by the session, which makes the two know each other
        self._worker = worker
        self._client = worker.client
        self._pool = pool
        self._asking, self._orphans = asking, orphans
        self._cancel = cancel
        self._suspend = suspend
        self._settings = settings or GpuSettings()
        self._shares_files = shares_files
        self._logger = logger
        self._seen: defaultdict[str, Seen] = defaultdict(Seen)
        self.refusing: set[str] = set()
        self._known_at: dict[str, float] = {}  # by run: what was read before that is older than what is known of it
        self._needs_all: deque[str] = deque(maxlen=_REMEMBERED)  # runs that had not the memory that they needed
        self._missing: dict[str, Absence] = {}  # the deployments of runs
        self._unread: Counter[str] = Counter()  # how often waiting runs could not be read

    # -- taking in --------------------------------------------------------------------------------------------------

    async def take_in_all(self, flow_runs: Iterable[FlowRun], read_at: float) -> None:
        for number, flow_run in enumerate(flow_runs, start=1):
            await self.take_in(flow_run, read_at)
            if number % _YIELD_AFTER == 0:
                await asyncio.sleep(0)

    async def take_in(self, flow_run: FlowRun, read_at: float) -> None:
        """Tell the scheduler about one run, as it was when it was read. One that cannot be taken in harms no other."""
        try:
            await self._take(flow_run, read_at)
        except Exception as error:  # an answer of the server's that makes no sense, say
            if isinstance(error, httpx.HTTPError) and not isinstance(error, NotPrefectsAnswerError):
                raise
            self._logger.exception("Run %s could not be taken in; the next look tries again", flow_run.name)

    async def _take(self, flow_run: FlowRun, read_at: float) -> None:
        run_id = str(flow_run.id)
        state = flow_run.state
        if state is None:
            return
        if read_at < self._known_at.get(run_id, 0.0):
            return  # looks and news are read side by side: the run may have come back, and be launched anew, since
        self._known_at[run_id] = read_at
        launched = self.controller.runs.get(run_id)
        if state.type in (StateType.CANCELLING, StateType.CANCELLED):
            if launched is not None:
                await self._cancel(launched)
                return
            self.withdraw(run_id, "it was cancelled")
            if state.type is StateType.CANCELLING:
                await self._orphans.cancel_if_ours(flow_run)
            return
        if launched is not None:
            if is_suspended(state):
                self._suspend(launched, flow_run)
            return
        if not is_waiting(flow_run):
            self.withdraw(run_id, f"it is {state.name}")
            return
        if run_id in self.refusing:
            return
        if isinstance(flow_run, UnreadableRun):
            await self._refuse_unread(flow_run)
            return
        if not self._pool.serves(flow_run):  # events tell of all queues
            self.withdraw(run_id, f"it is in queue {flow_run.work_queue_name}")
            return
        try:
            deployment = await self._pool.deployment(flow_run.deployment_id) if flow_run.deployment_id else None
            self._missing.pop(run_id, None)  # it is there: what is missed later on is missed anew
            if not self._is_newest(run_id, read_at):
                return
            versions = _versions(flow_run, deployment, self._worker.work_pool)
            job, before = self.controller.scheduler.state.jobs.get(run_id), self._seen.get(run_id, Seen())
            before_s = self._pool.clock.before_s
            if job is not None and before.taken_in == versions and abs(before_s - before.before_s) < _MOVED_S:
                return
            due = flow_run.next_scheduled_start_time or flow_run.expected_start_time
            due_at = due.timestamp() if due else 0.0
            request = read_request(flow_run, deployment, self._worker.work_pool, self._settings, due=due_at)
            if request.preemptible and not self._shares_files and not keeps_checkpoints(self._settings):
                raise BadRequestError(_NOWHERE_TO_SAVE)
            owner = owner_of(request.owner, flow_run, deployment, self._settings.owner_from)
            request = replace(request, owner=owner)
        except ObjectNotFound:
            missing = self._missing.setdefault(run_id, self._asking.absence())
            if not await missing.is_believed():
                return  # it is looked at again with the rest of the pool
            message = f"Its deployment {flow_run.deployment_id} no longer exists."
            with suppress(ObjectNotFound):
                await self._client.set_flow_run_state(flow_run.id, Cancelled(message=message), force=True)
            return
        except BadRequestError as error:
            await self.refuse(flow_run, str(error))
            return
        if request.deadline_at is not None:
            moment = datetime.fromtimestamp(request.deadline_at, timezone.utc)
            request = replace(request, deadline_at=self._pool.clock.of(moment))
        known = await self._known_of(flow_run, deployment, request)
        if not self._is_newest(run_id, read_at):
            return
        estimate = self.controller.estimates.submitted(
            run_id, known, request.most_if_elastic, wide=request.grows, batch_sizes=request.batch_sizes
        )
        if run_id in self._needs_all:
            request = replace(request, exclusive=True, automatic=False)
        request = self._decided(request, estimate)
        seen = self._seen[run_id]
        seen.flow_run, seen.taken_in, seen.before_s = flow_run, versions, before_s
        seen.parameters = known.parameters
        event = ev.JobSubmitted(
            job=run_id,
            request=replace(request, kind=known.program),
            queue=str(flow_run.work_queue_id),
            submitted_at=self._submitted_at(flow_run, read_at),
            not_before=self._pool.clock.of(due) if due else read_at,
            name=flow_run.name,
            estimate=estimate,
            promised=promised_before(flow_run),
            held_s=held_before(flow_run),
        )
        if job is None or not _is_as_told(job, event):
            self.controller.handle(event)

    def _is_newest(self, run_id: str, read_at: float) -> bool:
        """Whether nothing newer became known of a run since it began to be taken in: that it was cancelled, say."""
        return self._known_at.get(run_id) == read_at and run_id not in self.controller.runs

    def _submitted_at(self, flow_run: FlowRun, read_at: float) -> float:
        """The worker's time since when the run waits: a later try waits since the end of the one before."""
        if flow_run.run_count and flow_run.state is not None:
            return self._pool.clock.of(flow_run.state.timestamp)
        return self._pool.clock.of(flow_run.created) if flow_run.created else read_at

    async def _known_of(self, flow_run: FlowRun, deployment: DeploymentResponse | None, request: Request) -> Known:
        """What is known of a run before it starts, to estimate it by."""
        flow = await self._pool.flow(flow_run.flow_id)
        kind = self.controller.fleet.kind if request.gpus else None
        return known_of(flow.name, with_defaults(flow_run.parameters, deployment), request, {}, kind)

    def withdraw(self, run_id: str, reason: str) -> None:
        """A run that waited is not ours to start any more."""
        job = self.controller.scheduler.state.jobs.get(run_id)
        if job is not None and not job.active:
            self.controller.handle(ev.JobWithdrawn(run_id, reason))
            self._forget(run_id)

    def changes(self, event: ev.JobEstimated) -> bool:
        """Whether more is known of a waiting run whose user leaves company to the pool, so that it may share now.

        It is to be read again then, and taken in even if nothing has changed in Prefect.
        """
        job = self.controller.scheduler.state.jobs.get(event.job)
        if job is None or self._decided(job.request, event.estimate).exclusive == job.request.exclusive:
            return False
        self._seen[event.job].taken_in = None
        return True

    def _decided(self, request: Request, estimate: Estimate) -> Request:
        return decided(request, estimate, self.controller.scheduler.state.capability.may_hold)

    # -- what is kept of runs ---------------------------------------------------------------------------------------

    def tidy(self, now: float, waiting: Container[str] | None = None) -> None:
        """Forget what is over.

        Args:
            now: The worker's time.
            waiting: All runs that wait; None: they are not known. If they are, missed deployments of other runs are
                forgotten. So are runs that were refused, and those that another worker has started.
        """
        self._known_at = {run_id: at for run_id, at in self._known_at.items() if at > now - _KNOWN_KEPT_S}
        if waiting is not None:
            self._missing = {run_id: absence for run_id, absence in self._missing.items() if run_id in waiting}
            self._unread = Counter({run_id: looks for run_id, looks in self._unread.items() if run_id in waiting})
            known = self.controller.scheduler.state.jobs.keys() | self.controller.runs.keys()
            for run_id in [one for one, seen in self._seen.items() if one not in known and not seen.lock.locked()]:
                self._forget(run_id)

    def exhausted(self, run_id: str) -> None:
        """A launch ran out of the memory that it was granted: if the run is tried again, it gets whole devices."""
        self._needs_all.append(run_id)

    def finalised(self, run_id: str) -> None:
        """A launch is over; nothing that was read before this moment says anything about the run any more."""
        self._known_at[run_id] = CLOCK()
        self._forget(run_id)

    def waits_again(self, flow_run: FlowRun) -> None:
        """A launch is over, and the run waits as it was read just now."""
        self._known_at[str(flow_run.id)] = CLOCK()
        self._seen[str(flow_run.id)].flow_run = flow_run

    @property
    def seen(self) -> Mapping[str, Seen]:
        """What is kept, by run."""
        return self._seen

    def flow_run(self, run_id: str) -> FlowRun | None:
        """A run that waits or is launched, as it was read last; None if it was not, as one that was adopted."""
        return self._seen[run_id].flow_run if run_id in self._seen else None

    def granted(self, run_id: str) -> FlowRun:
        """A run that waited until it was granted its place.

        Raises:
            KeyError: It was never read.
        """
        flow_run = self.flow_run(run_id)
        if flow_run is None:
            raise KeyError(run_id)
        return flow_run

    def parameters(self, run_id: str) -> Mapping[str, Any]:
        """Of a run that waited until it was granted its place: with the defaults of those that it leaves out."""
        return self._seen[run_id].parameters

    def lock(self, run_id: str) -> asyncio.Lock:
        """Held while a waiting run's state is changed: showing it as waiting and claiming it must not mix."""
        return self._seen[run_id].lock

    def _forget(self, run_id: str) -> None:
        if run_id not in self.controller.runs:
            self.controller.estimates.forget(run_id)
        self._seen.pop(run_id, None)

    async def _refuse_unread(self, flow_run: UnreadableRun) -> None:
        """Not at the first look: the server may have had a bad moment. One that has begun may be in its own retry."""
        run_id = str(flow_run.id)
        self.withdraw(run_id, "Prefect cannot read it")
        self._unread[run_id] += 1
        if self._unread[run_id] >= _FEWEST_LOOKS and flow_run.infrastructure_pid is None:
            await self.refuse(flow_run, UNREADABLE)
            del self._unread[run_id]

    async def refuse(self, flow_run: FlowRun, message: str) -> None:
        """The run cannot be run here: say why where its owner looks."""
        self._logger.warning("Run %s is refused: %s", flow_run.name, message)
        crashed: State = Crashed(message=message)
        with suppress(Abort, ObjectNotFound):  # it has ended otherwise, or was deleted
            await propose_state(self._client, crashed, flow_run_id=flow_run.id)


def with_defaults(parameters: Mapping[str, Any], deployment: DeploymentResponse | None) -> dict[str, Any]:
    """A run's parameters, and the defaults of those that it leaves out, where its deployment says them.

    To leave one out and to give its default is the same, so that what was learned of the one holds for the other.
    """
    schema: Mapping[str, Any] = (deployment.parameter_openapi_schema if deployment is not None else None) or {}
    properties = schema.get("properties")
    said = properties.items() if isinstance(properties, Mapping) else ()
    defaults = {name: one["default"] for name, one in said if isinstance(one, Mapping) and "default" in one}
    return {**defaults, **parameters}


def _versions(flow_run: FlowRun, *others: Any) -> tuple[object, ...]:
    """What changes with anything that the scheduler is told of a run, its deployment and its pool."""
    return (flow_run.updated, flow_run.state_id, *(getattr(other, "updated", None) for other in others))


def _alike(known: Request, now: Request) -> Request:
    """The newer one, if only its deadline has moved by as little as the server's clock is known to."""
    by, before = now.deadline_at, known.deadline_at
    moved = by is None or before is None or abs(by - before) >= _MOVED_S
    return known if moved else replace(known, deadline_at=by)


def _is_as_told(job: Job, event: ev.JobSubmitted) -> bool:
    """Whether the scheduler knows all of this already."""
    known = (_alike(job.request, event.request), job.queue, job.name, job.estimate)
    times = ((job.submitted_at, event.submitted_at), (job.not_before, event.not_before))
    return (
        job.status is Status.WAITING
        and known == (event.request, event.queue, event.name, event.estimate)
        and all(abs(before - after) < _MOVED_S for before, after in times)
    )
