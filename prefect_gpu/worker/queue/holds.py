"""What Prefect shows of runs that wait: why they do, and when they are expected to start and to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from heapq import nsmallest
from typing import Any

import httpx
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.workers.base import BaseWorker

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.drivers.base import Coming
from prefect_gpu.scheduling.forecast import Outlook
from prefect_gpu.scheduling.model.instructions import Hold
from prefect_gpu.units import plural
from prefect_gpu.worker.queue.intake import Intake, Seen
from prefect_gpu.worker.queue.queue_sync import QueueSync
from prefect_gpu.worker.server.lane import Lane
from prefect_gpu.worker.server.states import show_waiting
from prefect_gpu.worker.telling.expectations import Expectations, Shown, message, worth_saying

# Runs that start at once are not renamed on the way; those that wait are, this much later.
_SHOW_WAITING_AFTER_S = 0.3
# Other news of waiting runs comes in between.
_RENEWED_TOGETHER = 3
_FOR_WANT_OF_NODES = ("never", "nodes", "devices", "cores")


class Holds:
    """Tells Prefect of waiting runs, as far as the budget goes. Those that are expected to start first come first.

    Args:
        queue: It reads runs again that may not be as they were.
        intake: Which runs wait.
        lane: Where it is written.
    """

    def __init__(
        self,
        worker: BaseWorker[Any, Any, Any],
        queue: QueueSync,
        intake: Intake,
        lane: Lane,
        logger: logging.Logger,
    ) -> None:
        self.controller: Controller  # set by the session, which makes the two know each other
        self._worker = worker
        self._client = worker.client
        self._queue = queue
        self._intake = intake
        self._lane = lane
        self._logger = logger
        self._expectations = Expectations(logger)
        self._forecast_is_new = False
        self._holds: dict[str, Hold] = {}  # why runs wait, where that is still to be shown
        self.on_waiting: Callable[[FlowRun, str], None] = lambda flow_run, reason: None
        self._never: dict[str, Hold] = {}  # the same of runs that no node can hold
        self._of_nodes = set[str]()  # runs of which the page says more than the scheduler: which nodes they wait for
        self._missed: dict[str, Hold] = {}  # of runs that Prefect did not know of just now, or that are still to stop

    def expected(self, run_id: str) -> Outlook | None:
        """What is expected of a waiting run, as of the last look ahead; None: nothing is known."""
        return self._expectations.of(run_id)

    def held(self, hold: Hold) -> None:
        """Show in Prefect why the run waits: some time later, and only if it still does."""
        self._never.pop(hold.job, None)
        if hold.code == "never":
            self._never[hold.job] = hold
        elif hold.code != "due":
            self._holds[hold.job] = hold

    async def run(self) -> None:
        """Show the reasons of waiting runs, and when they are expected to start and to end, until cancelled."""
        while True:
            await asyncio.sleep(_SHOW_WAITING_AFTER_S)
            self._say_again()
            for run_id in list(self._never):
                hold = self._never.pop(run_id, None)  # it may wait for something else by now
                if hold is not None and not await self._try(run_id, self._show(run_id, hold), hold):
                    self._never.setdefault(run_id, hold)  # the scheduler says it once
                    break
            if self.controller.scheduler.state.queue_of_waiting:
                await self._look_ahead()
            if self._forecast_is_new and self._lane.lets_through():
                for run_id, reason in self._with_news():
                    await self._try(run_id, self._write(run_id, reason))
            while self._holds and self._lane.lets_through():
                run_id, hold = next(iter(self._holds.items()))
                del self._holds[run_id]
                if not await self._try(run_id, self._show(run_id, hold), hold):
                    self._holds = {run_id: hold} | self._holds
                    break

    async def _look_ahead(self) -> None:
        """Bring the forecast up to date. Those who are expected to start first are then shown first."""
        if await self._expectations.refresh(self.controller.scheduler):
            self._forecast_is_new = True
            ahead = self._expectations.ahead_of
            self._holds = dict(sorted(self._holds.items(), key=lambda held: ahead(held[0])))

    def _say_again(self) -> None:
        """Of those that could not be told just now: a gateway may not have known of them. Newer words count."""
        missed, self._missed = self._missed, {}
        for run_id, hold in missed.items():
            if run_id not in self._never and run_id not in self._holds:
                self.held(hold)

    async def _try(self, run_id: str, showing: Coroutine[Any, Any, None], hold: Hold | None = None) -> bool:
        """Whether Prefect has answered.

        Args:
            hold: To be shown later where Prefect does not know of the run. If it is deleted, it does not wait by then.
        """
        try:
            await showing
        except ObjectNotFound:
            self._queue.doubt(run_id)
            if hold is not None:
                self._missed[run_id] = hold
        except httpx.HTTPError as error:
            self._logger.debug("Run %s could not be shown as waiting: %r", run_id, error)
            return False
        return True

    async def _show(self, run_id: str, hold: Hold) -> None:
        seen = self._intake.seen.get(run_id, Seen())
        job = self.controller.scheduler.state.jobs.get(run_id)
        if seen.flow_run is None or job is None or job.active:
            self._of_nodes.discard(run_id)
            return
        if run_id in self.controller.runs:  # it was told to stop, and does not wait before it has
            self._missed[run_id] = hold
            return
        if hold.code == "never" and self.controller.scheduler.state.capability.possible(job.request):
            return  # nodes have come since, and whatever it waits for now is told as well
        away = self.controller.away if hold.code == "never" else {}
        coming = self.controller.coming(job) if hold.code in _FOR_WANT_OF_NODES else None
        if coming is not None:
            hold = self._awaited(run_id, hold, coming)
        elif away:
            self._never.setdefault(run_id, hold)  # to be looked at again, until all are there
            hold = replace(hold, code="away", reason=f"No available node can hold it, and {_away(away)}")
        if coming is not None or away:
            self._of_nodes.add(run_id)
            self.controller.activity.held(hold)  # the pool's page says the same
        elif run_id in self._of_nodes:
            self._of_nodes.discard(run_id)
            self.controller.activity.held(hold)
        if seen.shown is not None and seen.shown.reason == hold.reason:
            return
        if hold.code == "never" and not await self._others_online():
            self._intake.withdraw(run_id, hold.reason)
            await self._intake.refuse(seen.flow_run, f"The pool cannot run it: {hold.reason}.")
            return
        await self._expectations.refresh(self.controller.scheduler, run_id)
        await self._write(run_id, hold.reason)

    def _awaited(self, run_id: str, hold: Hold, coming: Coming) -> Hold:
        """Why a run waits where nodes come and go: for one to come, or because none ever will."""
        if not coming.possible:
            return replace(hold, code="never", reason=coming.words)
        self._never.setdefault(run_id, hold)  # to be looked at again, until it has one
        nodes = self.controller.scheduler.state.nodes
        words = coming.words if hold.code == "never" or not nodes else f"{hold.reason}. {coming.words}"
        return replace(hold, code="coming", reason=words)

    def _with_news(self) -> list[tuple[str, str]]:
        """Runs that are shown as waiting and of which something else is expected by now: few, the first to start.

        Returns:
            (run, why it waits).
        """
        self._forecast_is_new = False
        now, changed = CLOCK(), []
        for run_id, seen in self._intake.seen.items():
            outlook = None if seen.shown is None else self._expectations.of(run_id)
            if outlook is not None and seen.shown is not None and worth_saying(seen.shown, outlook, now):
                changed.append((outlook.ahead, run_id, seen.shown.reason))
        return [(run_id, reason) for _, run_id, reason in nsmallest(_RENEWED_TOGETHER, changed)]

    async def _write(self, run_id: str, reason: str) -> None:
        async with self._lane.budgeted(), self._intake.lock(run_id):
            job, flow_run = self.controller.scheduler.state.jobs.get(run_id), self._intake.flow_run(run_id)
            if job is None or job.active or flow_run is None or run_id in self.controller.runs:
                return
            due = flow_run.next_scheduled_start_time or flow_run.expected_start_time
            shown = Shown(reason, self._expectations.of(run_id), CLOCK())
            words = message(reason, shown.outlook, shown.at)
            if await show_waiting(self._client, flow_run.id, words, due):
                if self._intake.seen[run_id].shown is None:  # once where its owner looks first
                    self._worker.get_flow_run_logger(flow_run).info("Waiting for a device. %s", words)
                    self.on_waiting(flow_run, words)
                self._intake.seen[run_id].shown = shown
            else:
                self._queue.doubt(run_id)

    async def _others_online(self) -> bool:
        """Whether another worker of the pool might hold what ours never can.

        Raises:
            httpx.HTTPError: Nobody knows. The run waits until it is known.
        """
        return await other_is_online(self._worker)


async def other_is_online(worker: BaseWorker[Any, Any, Any], name: str = "") -> bool:
    """Whether another worker of the pool is online.

    Args:
        name: That of the one that is asked for; empty: any will do.
    """
    others = await worker.client.read_workers_for_work_pool(worker.work_pool.name)
    return any(
        str(one.status).endswith("ONLINE") and one.name != worker.name and name in ("", one.name) for one in others
    )


def _away(names: Mapping[str, str]) -> str:
    """Nodes, and devices with the reason why they are out of service, in words."""
    nodes = [name for name, why in names.items() if not why]
    devices = [f"{name} is out of service: {why}" for name, why in names.items() if why]
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    parts = [f"{', '.join(nodes[:3])}{more} cannot be used now (down, drained or out of reach)"] if nodes else []
    parts += devices[:1]
    return ", and ".join(parts) + (f", as are {plural(len(devices) - 1, 'other device')}" if len(devices) > 1 else "")
