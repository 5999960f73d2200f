"""From Prefect's queue to the scheduler: which runs wait, and which have gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events import Event
from prefect.exceptions import Abort, ObjectNotFound
from prefect.states import Cancelled, Crashed
from prefect.utilities.engine import propose_state
from prefect.workers.base import BaseWorker

from prefect_gpu.estimation.runs import Known
from prefect_gpu.estimation.submission import known_of
from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.launch import Launch
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.jobs import Job, Request, Status
from prefect_gpu.scheduling.sharing.rules import decided
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker.answers import NotPrefectsAnswerError
from prefect_gpu.worker.asking import NO_ANSWERS, Absence
from prefect_gpu.worker.configuration import BadRequestError, read_request
from prefect_gpu.worker.expectations import Shown
from prefect_gpu.worker.finalisation import Finalisation
from prefect_gpu.worker.lane import Lane
from prefect_gpu.worker.pool import PoolView, is_waiting
from prefect_gpu.worker.states import AWAITING_GPU
from prefect_gpu.worker.suspension import is_suspended

# So many runs are read one by one, which is quicker; more are read with one query.
_READ_SINGLY = 4
# The part of the time that comparing the whole pool may take; a larger one if something was probably missed.
_LOOK_SHARE, _LOOK_SHARE_STALE = 0.05, 0.2
_OVERLAP_S = 60.0  # by which the windows overlap in which runs are looked for that have become due
_REST, _LONGEST_REST_S = 5.0, 1.0  # after reading what is new while runs wait: so many times what it took
# Prefect writes down that the pool is polled, and shows it as not ready after a minute without. Among submissions, of
# which a server on SQLite refuses some beside a write, it is told later.
_MARKED_AGAIN_S, _MARKED_AMONG_SUBMISSIONS_S = 15.0, 25.0
_YIELD_AFTER = 20  # runs that are taken in before others have their turn
_REMEMBERED = 10_000  # runs that wait for another try: more are no pool's
_MOVED_S = 2.0  # by which a time has changed; the server's clock is known to a second
_SETTLED_KEPT_S = 600.0  # no answer of Prefect is that old when it is taken in


@dataclass
class Seen:
    """What is kept of a run that waits or is launched.

    Attributes:
        flow_run: As it was read last.
        lock: Held while its state is changed in Prefect.
        shown: What its owner was told last.
        taken_in: Of which versions of the run, its deployment and its pool the scheduler was told last.
        before_s: By how much the server's clock was before the worker's time then, in seconds.
    """

    flow_run: FlowRun | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    shown: Shown | None = None
    taken_in: tuple[object, ...] | None = None
    before_s: float = 0.0


class QueueSync:
    """Keeps the scheduler's view of the pool in step with Prefect's.

    Args:
        cancel: Called with a launched run that its user has cancelled.
        suspend: Called with a launched run that its user has suspended, and as it was read.
        lane: It is told of submissions.
    """

    def __init__(
        self,
        worker: BaseWorker[Any, Any, Any],
        pool: PoolView,
        finalisation: Finalisation,
        *,
        cancel: Callable[[Launch], Awaitable[None]],
        suspend: Callable[[Launch, FlowRun], None],
        lane: Lane,
        logger: logging.Logger,
        settings: GpuSettings | None = None,
    ) -> None:
        self.controller: Controller  # set by the session, which makes the two know each other
        self._worker = worker
        self._client = worker.client
        self._pool = pool
        self._finalisation = finalisation
        self._cancel = cancel
        self._suspend = suspend
        self._lane = lane
        self._settings = settings or GpuSettings()
        self._logger = logger
        self._seen: defaultdict[str, Seen] = defaultdict(Seen)
        self._finalised_at: dict[str, float] = {}
        self._needs_all: deque[str] = deque(maxlen=_REMEMBERED)  # runs that had not the memory that they needed
        self._missing: dict[str, Absence] = {}  # the deployments of runs
        self._doubtful: set[str] = set()
        self._news = asyncio.Event()
        self._quotas_stale = True
        self._looking = asyncio.Lock()
        self._stale = True  # something may have been missed
        self._looked_at, self._look_took_s = float("-inf"), 0.0  # at the whole pool; monotonic
        self._marked_at = float("-inf")  # as polled; monotonic
        self._due_until: datetime | None = None
        self._others = 0  # scheduled runs that wait for nobody

    # -- looking ----------------------------------------------------------------------------------------------------

    async def look(self) -> list[FlowRun]:
        """Compare the pool with what the scheduler believes.

        The whole pool is compared as often as that takes little of the time. In between, only runs that have become due
        are read, and the number of waiting ones is compared.

        Returns:
            The waiting runs that were read.
        """
        async with self._looking:
            started = CLOCK()
            self._finalised_at = {
                run_id: at for run_id, at in self._finalised_at.items() if at > started - _SETTLED_KEPT_S
            }
            await self._read_quotas()
            share = _LOOK_SHARE_STALE if self._stale else _LOOK_SHARE
            whole = time.monotonic() >= self._looked_at + self._look_took_s / share
            try:
                waiting = await (self._look_at_all(started) if whole else self._look_at_due(started))
            except Exception:
                self._stale = True
                raise
            asked = (StateType.CANCELLING, StateType.PAUSED) if self.controller.runs else (StateType.CANCELLING,)
            for flow_run in await self._pool.runs_in_state(*asked):
                await self._take_in(flow_run, started)
            await self._mark_ready()
        return waiting

    async def _mark_ready(self) -> None:
        now = time.monotonic()
        least_s = _MARKED_AMONG_SUBMISSIONS_S if self._lane.among_submissions else _MARKED_AGAIN_S
        if now - self._marked_at >= least_s:
            with suppress(httpx.HTTPError, ObjectNotFound):
                await self._pool.mark_ready()
                self._marked_at = now

    async def _look_at_all(self, started: float) -> list[FlowRun]:
        began, self._stale = time.monotonic(), False
        until = self._pool.due_until(self._worker._prefetch_seconds)
        believed = {job.id for job in self.controller.scheduler.state.waiting()}
        waiting, self._others = [], 0
        async for page in self._pool.scheduled_runs(until):
            here = [run for run in page if is_waiting(run)]
            self._others += len(page) - len(here)
            waiting += here
            await self._take_in_all(here, started)
        # Those that were not among the pages are read singly: the pages may have shifted under our eyes.
        found = {str(run.id) for run in waiting}
        self.doubt(*(believed - found))
        self._missing = {run_id: absence for run_id, absence in self._missing.items() if run_id in found}
        self._due_until, self._looked_at = until, time.monotonic()
        self._look_took_s = self._looked_at - began
        return waiting

    async def _look_at_due(self, started: float) -> list[FlowRun]:
        until = self._pool.due_until(self._worker._prefetch_seconds)
        since = None if self._due_until is None else self._due_until - timedelta(seconds=_OVERLAP_S)
        waiting = []
        async for page in self._pool.scheduled_runs(until, since):
            waiting += [run for run in page if is_waiting(run)]
        await self._take_in_all(waiting, started)
        self._due_until = until
        count = await self._pool.count_scheduled(until)
        jobs, moment = self.controller.scheduler.state.waiting(), self._pool.clock.of(until)
        self._stale = self._stale or count != self._others + sum(job.not_before <= moment for job in jobs)
        return waiting

    def missed(self) -> None:
        """Events may have been missed: the next look is at the whole pool, as soon as that may be."""
        self._stale = True

    async def _take_in_all(self, flow_runs: Iterable[FlowRun], read_at: float) -> None:
        for number, flow_run in enumerate(flow_runs, start=1):
            await self._take_in(flow_run, read_at)
            if number % _YIELD_AFTER == 0:
                await asyncio.sleep(0)

    def doubt(self, *run_ids: str) -> None:
        """These runs may not be as they were: they are read again at once."""
        if run_ids:
            self._doubtful.update(run_ids)
            self._news.set()

    def on_event(self, event: Event) -> None:
        """Take in one event of Prefect's stream. It is only a hint: what counts is what Prefect says when asked."""
        kind, _, what = event.resource.id.rpartition(".")
        if kind != "prefect.flow-run":
            self._quotas_stale = True
            self._news.set()
            return
        state_type = event.resource.get("prefect.state-type", "")
        job = self.controller.scheduler.state.jobs.get(what)
        if state_type == StateType.SCHEDULED.value:
            relevant = event.resource.get("prefect.state-name") != AWAITING_GPU and (job is None or not job.active)
            if relevant and job is None:
                self._lane.submission()
        elif state_type in (StateType.CANCELLING.value, StateType.CANCELLED.value):
            relevant = job is not None or state_type == StateType.CANCELLING.value
        elif state_type == StateType.PAUSED.value:
            relevant = job is not None
        else:
            relevant = job is not None and not job.active
            if job is None and self._is_limited():
                # A run of another worker started or ended: it may have used up or freed a limit.
                self._quotas_stale = True
                self._news.set()
        if relevant:
            self.doubt(what)

    def _is_limited(self) -> bool:
        quotas = self.controller.scheduler.state.quotas
        return quotas.pool_limit is not None or any(queue.limit is not None for queue in quotas.queues)

    async def follow_news(self) -> None:
        """Read again whatever events have made doubtful, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            began = time.monotonic()
            run_ids, self._doubtful = self._doubtful, set()
            started = CLOCK()
            try:
                if self._quotas_stale:
                    await self._read_quotas()
                found = await self._read(run_ids)
                await self._take_in_all(found, started)
                missing = run_ids - {str(run.id) for run in found}
                if missing and not await self._finalisation.asking.is_well():
                    await asyncio.sleep(1.0)
                    self.doubt(*missing)
                    continue
                for run_id in missing:
                    self.withdraw(run_id, "it was deleted")
            except Exception as error:
                self._quotas_stale = True
                self.doubt(*run_ids)
                self._news.set()
                if not isinstance(error, NO_ANSWERS):
                    raise
                self._logger.debug("Runs could not be read: %r", error)
                await asyncio.sleep(1.0)
            if self.controller.scheduler.state.queue_of_waiting:  # one more can wait; the server has others to serve
                rest_s = min(_LONGEST_REST_S, _REST * (time.monotonic() - began))
                await asyncio.sleep(_LONGEST_REST_S if self._lane.among_submissions else rest_s)

    async def _read(self, run_ids: set[str]) -> list[FlowRun]:
        async def read_one(run_id: str) -> FlowRun | None:
            with suppress(ObjectNotFound):
                return await self._client.read_flow_run(UUID(run_id))
            return None

        if len(run_ids) > _READ_SINGLY:
            return await self._pool.runs_by_id(map(UUID, run_ids))
        return [run for run in await asyncio.gather(*map(read_one, run_ids)) if run is not None]

    async def _read_quotas(self) -> None:
        self._quotas_stale = False
        state = self.controller.scheduler.state
        quotas = await self._pool.quotas(
            lambda: {job.id for job in state.jobs.values() if job.active}, self._worker._limit
        )
        quotas = replace(quotas, slowdown_limit=self._settings.slowdown_limit)
        if quotas != state.quotas:
            self.controller.handle(ev.QuotasChanged(quotas))

    # -- taking in ----------------------------------------------------------------------------------------------------

    async def _take_in(self, flow_run: FlowRun, read_at: float) -> None:
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
        launched = self.controller.runs.get(run_id)
        if launched is None and read_at <= self._finalised_at.get(run_id, 0.0):
            return  # what was read is older than what we know
        if state.type in (StateType.CANCELLING, StateType.CANCELLED):
            if launched is not None:
                await self._cancel(launched)
                return
            self.withdraw(run_id, "it was cancelled")
            if state.type is StateType.CANCELLING:
                await self._finalisation.cancel_if_ours(flow_run)
            return
        if launched is not None:
            if is_suspended(state):
                self._suspend(launched, flow_run)
            return
        if not is_waiting(flow_run):
            self.withdraw(run_id, f"it is {state.name}")
            return
        if not self._pool.serves(flow_run):  # events tell of all queues
            self.withdraw(run_id, f"it is in queue {flow_run.work_queue_name}")
            return
        try:
            deployment = await self._pool.deployment(flow_run.deployment_id) if flow_run.deployment_id else None
            versions = _versions(flow_run, deployment, self._worker.work_pool)
            job, seen = self.controller.scheduler.state.jobs.get(run_id), self._seen[run_id]
            before_s = self._pool.clock.before_s
            if job is not None and seen.taken_in == versions and abs(before_s - seen.before_s) < _MOVED_S:
                return
            request = read_request(flow_run, deployment, self._worker.work_pool, self._settings)
        except ObjectNotFound:
            missing = self._missing.setdefault(run_id, self._finalisation.asking.absence())
            if not await missing.is_believed():
                return  # it is looked at again with the rest of the pool
            message = f"Its deployment {flow_run.deployment_id} no longer exists."
            with suppress(ObjectNotFound):
                await self._client.set_flow_run_state(flow_run.id, Cancelled(message=message), force=True)
            return
        except BadRequestError as error:
            await self.refuse(flow_run, str(error))
            return
        due = flow_run.next_scheduled_start_time or flow_run.expected_start_time
        known = await self._known_of(flow_run, request)
        estimate = self.controller.estimates.submitted(
            run_id, known, request.most_if_elastic, wide=request.grows, batch_sizes=request.batch_sizes
        )
        if run_id in self._needs_all:
            request = replace(request, exclusive=True, automatic=False)
        seen.flow_run, seen.taken_in, seen.before_s = flow_run, versions, before_s
        event = ev.JobSubmitted(
            job=run_id,
            request=replace(decided(request, estimate), kind=known.program),
            queue=str(flow_run.work_queue_id),
            submitted_at=self._submitted_at(flow_run, read_at),
            not_before=self._pool.clock.of(due) if due else read_at,
            name=flow_run.name,
            estimate=estimate,
        )
        if job is None or not _is_as_told(job, event):
            self.controller.handle(event)

    def _submitted_at(self, flow_run: FlowRun, read_at: float) -> float:
        """The worker's time since when the run waits: a later try waits since the end of the one before."""
        if flow_run.run_count and flow_run.state is not None:
            return self._pool.clock.of(flow_run.state.timestamp)
        return self._pool.clock.of(flow_run.created) if flow_run.created else read_at

    async def _known_of(self, flow_run: FlowRun, request: Request) -> Known:
        """What is known of a run before it starts, to estimate it by."""
        flow = await self._pool.flow(flow_run.flow_id)
        kind = self.controller.fleet.kind if request.gpus else None
        return known_of(flow.name, flow_run.parameters, request, {}, kind)

    def withdraw(self, run_id: str, reason: str) -> None:
        """A run that waited is not ours to start any more."""
        job = self.controller.scheduler.state.jobs.get(run_id)
        if job is not None and not job.active:
            self.controller.handle(ev.JobWithdrawn(run_id, reason))
            self._forget(run_id)

    def estimated(self, news: Iterable[ev.JobEstimated]) -> None:
        """More is known of waiting runs: those whose users leave company to the pool may share now."""
        jobs = self.controller.scheduler.state.jobs
        for event in news:
            job = jobs.get(event.job)
            if job is not None and decided(job.request, event.estimate).exclusive != job.request.exclusive:
                self._seen[event.job].taken_in = None
                self.doubt(event.job)

    def exhausted(self, run_id: str) -> None:
        """A launch ran out of the memory that it was granted: if the run is tried again, it gets whole devices."""
        self._needs_all.append(run_id)

    def finalised(self, run_id: str) -> None:
        """A launch is over; nothing that was read before this moment says anything about the run any more."""
        self._finalised_at[run_id] = CLOCK()
        self._forget(run_id)

    def waits_again(self, flow_run: FlowRun) -> None:
        """A launch is over, and the run waits as it was read just now."""
        self._finalised_at[str(flow_run.id)] = CLOCK()
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

    def lock(self, run_id: str) -> asyncio.Lock:
        """Held while a waiting run's state is changed: showing it as waiting and claiming it must not mix."""
        return self._seen[run_id].lock

    def _forget(self, run_id: str) -> None:
        if run_id not in self.controller.runs:
            self.controller.estimates.forget(run_id)
        self._seen.pop(run_id, None)

    async def refuse(self, flow_run: FlowRun, message: str) -> None:
        """The run cannot be run here: say why where its owner looks."""
        self._logger.warning("Run %s is refused: %s", flow_run.name, message)
        crashed: State = Crashed(message=message)
        with suppress(Abort, ObjectNotFound):  # it has ended otherwise, or was deleted
            await propose_state(self._client, crashed, flow_run_id=flow_run.id)


def _versions(flow_run: FlowRun, *others: Any) -> tuple[object, ...]:
    """What changes with anything that the scheduler is told of a run, its deployment and its pool."""
    return (flow_run.updated, flow_run.state_id, *(getattr(other, "updated", None) for other in others))


def _is_as_told(job: Job, event: ev.JobSubmitted) -> bool:
    """Whether the scheduler knows all of this already."""
    known = (job.request, job.queue, job.name, job.estimate)
    times = ((job.submitted_at, event.submitted_at), (job.not_before, event.not_before))
    return (
        job.status is Status.WAITING
        and known == (event.request, event.queue, event.name, event.estimate)
        and all(abs(before - after) < _MOVED_S for before, after in times)
    )
