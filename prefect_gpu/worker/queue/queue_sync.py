"""From Prefect's queue to the scheduler: which runs wait, and which have gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.events import Event
from prefect.exceptions import ObjectNotFound
from prefect.workers.base import BaseWorker

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker.queue.intake import Intake
from prefect_gpu.worker.server.asking import NO_ANSWERS, Asking
from prefect_gpu.worker.server.lane import Lane
from prefect_gpu.worker.server.pool import PoolView, is_waiting
from prefect_gpu.worker.server.states import AWAITING_GPU
from prefect_gpu.worker.shares.quota import QuotaReader

# The part of the time that comparing the whole pool may take; a larger one if something was probably missed.
_LOOK_SHARE, _LOOK_SHARE_STALE = 0.05, 0.2
_OVERLAP_S = 60.0  # by which the windows overlap in which runs are looked for that have become due
# What an event has announced is not always there to be read at once: the run is read again after each of these.
_READ_AGAIN_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
# After reading what is new while runs wait: so many times what it took. Who asks for a promise wants it in a second.
_REST, _LONGEST_REST_S = 5.0, 0.8
# Prefect writes down that the pool is polled, and shows it as not ready after a minute without. Among submissions, of
# which a server on SQLite refuses some beside a write, it is told later.
_MARKED_AGAIN_S, _MARKED_AMONG_SUBMISSIONS_S = 15.0, 25.0


class QueueSync:
    """Keeps the scheduler's view of the pool in step with Prefect's.

    Args:
        intake: It is given what was read.
        lane: It is told of submissions.
        quota: What owners are promised; None: nothing.
    """

    def __init__(
        self,
        worker: BaseWorker[Any, Any, Any],
        pool: PoolView,
        asking: Asking,
        intake: Intake,
        *,
        lane: Lane,
        logger: logging.Logger,
        settings: GpuSettings | None = None,
        quota: QuotaReader | None = None,
    ) -> None:
        self._worker = worker
        self._client = worker.client
        self._pool = pool
        self._asking = asking
        self._intake = intake
        self._lane = lane
        self._settings = settings or GpuSettings()
        self._quota = quota
        self._logger = logger
        self._doubtful: set[str] = set()
        self._announced: dict[str, tuple[datetime, int]] = {}  # by run: of the newest event, and so often read in vain
        self._news = asyncio.Event()
        self._urgent = asyncio.Event()  # somebody wants a device to be free
        self._quotas_stale = True
        self._looking = asyncio.Lock()
        self._stale = True  # something may have been missed
        self._looked_at, self._look_took_s = float("-inf"), 0.0  # at the whole pool; monotonic
        self._marked_at = float("-inf")  # as polled; monotonic
        self._due_until: datetime | None = None
        self._others = 0  # scheduled runs that wait for nobody

    @property
    def _controller(self) -> Controller:
        return self._intake.controller

    async def look(self) -> list[FlowRun]:
        """Compare the pool with what the scheduler believes.

        The whole pool is compared as often as that takes little of the time. In between, only runs that have become due
        are read, and the number of waiting ones is compared.

        Returns:
            The waiting runs that were read.
        """
        async with self._looking:
            started = CLOCK()
            self._intake.tidy(started)
            await self._read_quotas()
            share = _LOOK_SHARE_STALE if self._stale else _LOOK_SHARE
            whole = time.monotonic() >= self._looked_at + self._look_took_s / share
            try:
                waiting = await (self._look_at_all(started) if whole else self._look_at_due(started))
            except Exception:
                self._stale = True
                raise
            asked = (StateType.CANCELLING, StateType.PAUSED) if self._controller.runs else (StateType.CANCELLING,)
            started = CLOCK()
            await self._intake.take_in_all(await self._pool.runs_in_state(*asked), started)
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
        believed = {job.id for job in self._controller.scheduler.state.waiting()}
        waiting, self._others = [], 0
        async for page in self._pool.scheduled_runs(until):
            here = [run for run in page if is_waiting(run)]
            self._others += len(page) - len(here)
            waiting += here
            await self._intake.take_in_all(here, started)
        # Those that were not among the pages are read singly: the pages may have shifted under our eyes.
        found = {str(run.id) for run in waiting}
        self.doubt(*(believed - found))
        self._intake.tidy(started, found)
        self._due_until, self._looked_at = until, time.monotonic()
        self._look_took_s = self._looked_at - began
        return waiting

    async def _look_at_due(self, started: float) -> list[FlowRun]:
        until = self._pool.due_until(self._worker._prefetch_seconds)
        since = None if self._due_until is None else self._due_until - timedelta(seconds=_OVERLAP_S)
        waiting = []
        async for page in self._pool.scheduled_runs(until, since):
            waiting += [run for run in page if is_waiting(run)]
        await self._intake.take_in_all(waiting, started)
        self._due_until = until
        count = await self._pool.count_scheduled(until)
        jobs, moment = self._controller.scheduler.state.waiting(), self._pool.clock.of(until)
        self._stale = self._stale or count != self._others + sum(job.not_before <= moment for job in jobs)
        return waiting

    def missed(self) -> None:
        """Events may have been missed: the next look is at the whole pool, as soon as that may be."""
        self._stale = True

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
        job = self._controller.scheduler.state.jobs.get(what)
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
            self._announced[what] = (event.occurred, 0)
            self.doubt(what)
            if state_type in (StateType.PAUSED.value, StateType.CANCELLING.value):
                self._urgent.set()

    def _is_limited(self) -> bool:
        quotas = self._controller.scheduler.state.quotas
        return quotas.pool_limit is not None or any(queue.limit is not None for queue in quotas.queues)

    async def follow_news(self) -> None:
        """Read again whatever events have made doubtful, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            self._urgent.clear()
            began = time.monotonic()
            run_ids, self._doubtful = self._doubtful, set()
            started = CLOCK()
            try:
                if self._quotas_stale:
                    await self._read_quotas()
                found = await self._pool.runs_by_id(map(UUID, run_ids))
                await self._intake.take_in_all(found, started)
                for run in found:
                    self._read_again_if_older(run)
                missing = run_ids - {str(run.id) for run in found}
                if missing and not await self._asking.is_well():
                    await asyncio.sleep(1.0)
                    self.doubt(*missing)
                    continue
                for run_id in missing:
                    self._announced.pop(run_id, None)
                    self._intake.withdraw(run_id, "it was deleted")
            except Exception as error:
                self._quotas_stale = True
                self.doubt(*run_ids)
                self._news.set()
                if not isinstance(error, NO_ANSWERS):
                    raise
                self._logger.debug("Runs could not be read: %r", error)
                await asyncio.sleep(1.0)
            if self._controller.scheduler.state.queue_of_waiting:  # one more can wait; the server has others to serve
                rest_s = min(_LONGEST_REST_S, _REST * (time.monotonic() - began))
                rest_s = _LONGEST_REST_S if self._lane.among_submissions else rest_s
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._urgent.wait(), rest_s)

    def _read_again_if_older(self, run: FlowRun) -> None:
        """The server may send an event before it shows the state that the event tells of: a suspension, say."""
        run_id = str(run.id)
        occurred, tries = self._announced.pop(run_id, (None, 0))
        shown = occurred is None or (run.state is not None and run.state.timestamp >= occurred)
        if occurred is None or shown or tries == len(_READ_AGAIN_S):
            return  # what is never shown was undone, or is found by the next look
        self._announced[run_id] = (occurred, tries + 1)
        asyncio.get_running_loop().call_later(_READ_AGAIN_S[tries], self._hurry, run_id)

    def _hurry(self, run_id: str) -> None:
        self.doubt(run_id)
        self._urgent.set()

    async def _read_quotas(self) -> None:
        self._quotas_stale = False
        state = self._controller.scheduler.state
        quotas = await self._pool.quotas(
            lambda: {job.id for job in state.jobs.values() if job.active}, self._worker._limit
        )
        shares = None if self._quota is None else await self._quota.shares(state.device_count)
        quotas = replace(quotas, slowdown_limit=self._settings.slowdown_limit, shares=shares)
        if quotas != state.quotas:
            self._controller.handle(ev.QuotasChanged(quotas))

    def estimated(self, news: Iterable[ev.JobEstimated]) -> None:
        """More is known of waiting runs: those whose users leave company to the pool may share now."""
        self.doubt(*(event.job for event in news if self._intake.changes(event)))
