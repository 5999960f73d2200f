"""One worker's service of one pool: Prefect's queue on one side, the controller on the other.

Prefect is the queue. A run stays SCHEDULED there until the scheduler has granted it a place; only then is it
claimed, by proposing PENDING, which Prefect accepts from one worker alone.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.events import emit_event
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_logger
from prefect.settings import get_current_settings
from prefect.workers.base import BaseWorker

from prefect_gpu.bundles.storage import api_is_local, ensure_bundle_storage
from prefect_gpu.page.server import PageServer
from prefect_gpu.runtime.claims import Claims
from prefect_gpu.runtime.controller import ABILITIES, Controller
from prefect_gpu.runtime.drivers.base import ExitReport, LaunchSpec
from prefect_gpu.runtime.launch import Launch, died_of_its_limit
from prefect_gpu.runtime.records import RunRecord
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.instructions import Hold
from prefect_gpu.scheduling.profiles import get_live_profile
from prefect_gpu.settings import GpuSettings
from prefect_gpu.storage.history import History
from prefect_gpu.storage.row import ContentionRow, HistoryRow, Outcome
from prefect_gpu.training import protocol
from prefect_gpu.worker.artifacts import PoolArtifact, accuracy_artifact, page_artifact
from prefect_gpu.worker.control import EngineControl
from prefect_gpu.worker.display import RunDisplay
from prefect_gpu.worker.estimate_words import launch_line
from prefect_gpu.worker.from_blocks import read_blocks
from prefect_gpu.worker.infrastructure import infrastructure_of
from prefect_gpu.worker.intake import Intake
from prefect_gpu.worker.launching import Launcher
from prefect_gpu.worker.lead import Lead
from prefect_gpu.worker.learning import PoolLearning
from prefect_gpu.worker.own_node import say_devices
from prefect_gpu.worker.pool import PoolView
from prefect_gpu.worker.pool_page import PoolSource, open_page
from prefect_gpu.worker.settle import Settlement, persist
from prefect_gpu.worker.stream import PoolStream


class PoolSession:
    """Everything that a serving worker does. Implements the controller's :class:`Host`.

    Raises:
        ValueError: The profile is not known, or not for runs of a pool.
        HistoryError: The history cannot be opened.
    """

    def __init__(self, worker: BaseWorker[Any, Any, Any], settings: GpuSettings, printer: Callable[..., None]) -> None:
        get_live_profile(settings.profile)  # one that will not do must stop the worker now, not later
        self._worker = worker
        self._settings = settings
        self._printer = printer
        self._state_dir = settings.resolved_state_dir
        self._state_dir.mkdir(parents=True, exist_ok=True)
        self._history = History(settings.resolved_history_url)
        self._claims = Claims(self._state_dir)
        self._logger = get_logger("worker.gpu")
        self._lead = Lead(self._claims, printer, self._stand_by, self._logger)
        self._stack = AsyncExitStack()
        self._control = EngineControl()
        self._lane = asyncio.Lock()  # for writing to Prefect what is only for show: see RunDisplay
        self._learning: PoolLearning | None = None
        self._page: PageServer | None = None
        self._displays: dict[str, RunDisplay] = {}
        self._territory = ""
        self._breaks_at_grant: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._host_prefix = f"{socket.gethostname()}:"
        self.is_open = False
        self.draining = False
        self.lost = False  # somebody else leads: this session does nothing any more, and is to be closed

    # -- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Become the pool's worker here: wait for the lead, claim devices, adopt what runs, listen to Prefect."""
        self._loop = asyncio.get_running_loop()
        pool = self._worker.work_pool
        await self._lead.claim(pool.name)
        self._spawn_once("beat", self._lead.beat(pool.name))
        client = self._worker.client
        self._client = client
        view = PoolView(client, pool.name, self._worker._work_queues)
        self._settlement = Settlement(client, self._logger)
        chosen = await read_blocks(self._settings, client)
        settings = self._settings = chosen.settings
        place = infrastructure_of(pool.name, settings, self._claims, self._printer, self._logger, chosen.nodes)
        self._territory = territory = await place.driver.territory() or ""
        if territory:
            await self._lead.take(client, pool.name, territory)
            self._spawn_once("lead", self._keep_lead())
        if api_is_local():  # flows that are submitted without a deployment travel through a folder
            await ensure_bundle_storage(client, pool, self._state_dir)
        await self._control.open(self._stack)
        self._intake = Intake(
            self._worker,
            view,
            self._settlement,
            cancel=self._cancel,
            host_prefix=self._host_prefix,
            territory=territory,
            lane=self._lane,
            logger=self._logger,
            slowdown_limit=settings.slowdown_limit,
        )
        outside = None if place.driver.local else settings
        self._launcher = Launcher(
            self._worker, view, self._intake, self._control, self._logger, outside, territory, chosen.credentials
        )
        self.controller = Controller(
            self,
            nodes=place.nodes,
            driver=place.driver,
            state_dir=self._state_dir,
            pool=pool.name,
            profile=self._settings.profile,
            abilities=replace(
                ABILITIES,
                gates=self._settings.prescheduling,
                preemption=ABILITIES.preemption if self._settings.preemption else Preemption.NONE,
            ),
            channel_host=self._settings.channel_host,
            channel_port=self._settings.channel_port,
            advertise=self._settings.advertise,
            keep_days=self._settings.keep_days,
            checkpoints=settings.checkpoints,
            credentials=chosen.credentials,
            leads=lambda: self._lead.held,
            logger=self._logger,
        )
        self._intake.controller = self.controller
        self._stream = PoolStream(
            pool.id, on_event=self._intake.on_event, on_connect=self._on_connect, logger=self._logger
        )
        await self.controller.start()
        if not place.driver.local:
            nodes, devices = self.controller.fleet.nodes, self.controller.fleet.devices
            where = f" on {', '.join(node.id for node in nodes) or 'no node'}"
            say_devices(pool.name, devices, self._printer, self._logger, where)
        source = PoolSource(self.controller, pool.name, self._intake.expected)
        self._page = await open_page(source, self._settings, pool.name, self._logger)
        if self._page is not None:
            self._printer(f"Watch the pool at {self._page.url} or with `prefect-gpu status`")
            self._spawn(self._link_page(page_artifact(client, pool.name), self._page.url))
        for work in (
            self._stream.run(),
            self._intake.follow_news(),
            self._intake.show_holds(),
            self._beat(),
            self._bury(view),
        ):
            self._spawn(work)
        if self._settings.learn:
            self._learning = PoolLearning(
                self._history, self.controller, self._intake.estimated, self._lane, self._logger
            )
            self._spawn(self._learning.run(accuracy_artifact(client, pool.name)))
        self.is_open = True

    async def close(self) -> None:
        """Let go of everything; processes go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._page is not None:
            await self._page.close()
        if hasattr(self, "controller"):
            await self.controller.close()
        await self._stack.aclose()
        self._history.close()
        await self._lead.release()
        self._claims.release()
        self.is_open = False

    def follow(self, lost: PoolSession) -> None:
        """Be this worker's next session, after one that has lost the lead and is closed."""
        self._lead.inherit(lost._lead)

    def begin_drain(self, on_drained: Callable[[], object]) -> int:
        """Start no run any more; call back when the last one has been settled.

        Returns:
            How many runs there are to wait for.
        """
        self.draining = True
        if not self.is_open:
            on_drained()
            return 0
        self.controller.handle(ev.DrainRequested())

        async def drained() -> None:
            await self.controller.wait_idle()
            on_drained()

        self._spawn(drained())
        return len(self.controller.runs)

    async def wait_finished(self) -> None:
        """Wait until nothing runs and nothing that waits can start (``--run-once``)."""
        while not self.lost:
            await self.controller.wait_idle()
            await asyncio.sleep(0)
            if not self.controller.runs and not self.controller.scheduler.state.active_count:
                return

    def _stand_by(self) -> None:
        self._worker._last_polled_time = datetime.now(timezone.utc)  # type: ignore[assignment]  # healthy, if idle

    async def _keep_lead(self) -> None:
        await self._lead.keep()
        self.lost = True
        if hasattr(self, "controller"):
            self.controller.abandon()
        self._printer("This worker leads no more. Its runs go on; it stands by to take over again.")

    async def _must_lead(self) -> None:
        """Go no further if somebody else may lead by now. Whoever waits here is cancelled as the session is closed."""
        if not self._lead.held:
            await asyncio.Event().wait()

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawn_once(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Unless it is being done: a session whose opening failed, since Prefect went away, is opened again."""
        if any(task.get_name() == name for task in self._tasks):
            work.close()
        else:
            self._spawn(work).set_name(name)

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._logger.error("A task of the worker failed", exc_info=task.exception())

    # -- what waits in Prefect ----------------------------------------------------------------------------------------

    async def look(self) -> list[FlowRun]:
        """Compare the whole pool with what the scheduler believes; the runs that wait."""
        return await self._intake.look()

    def _on_connect(self) -> None:
        """The event stream is open (again); events may have been missed until now: look at everything once."""

        async def look() -> None:
            try:
                await self._intake.look()
            except httpx.HTTPError as error:
                self._logger.debug("The pool could not be read: %r", error)

        self._spawn(look())

    # -- the controller's host: waiting and launching -----------------------------------------------------------------

    def held(self, hold: Hold) -> None:
        """See :class:`Host`."""
        self._intake.held(hold)

    def describe(self, run_id: str) -> RunRecord:
        """See :class:`Host`."""
        self._breaks_at_grant[run_id] = self._stream.breaks
        return self._launcher.describe(self.controller.scheduler.state.jobs[run_id])

    async def prepare(self, run: Launch) -> LaunchSpec:
        """See :class:`Host`."""
        await self._must_lead()
        return await self._launcher.prepare(run)

    async def launched(self, run: Launch) -> None:
        """See :class:`Host`."""
        assert run.handle is not None
        self._displays[run.run_id] = self._display(run)
        self._spawn(self._announce(run, run.handle.pid))

    def _infrastructure_pid(self, pid: int | str) -> str:
        """What Prefect calls a process, ``host:pid``, or a container, ``node:container``, whichever machine leads."""
        return pid if isinstance(pid, str) else f"{self._host_prefix}{pid}"

    async def _announce(self, run: Launch, pid: int | str) -> None:
        flow_run = self._intake.known.get(run.run_id)
        place = run.record.placement
        devices = ", ".join(place.all_devices) or "no device"
        if flow_run is not None:
            logger = self._worker.get_flow_run_logger(flow_run)
            logger.info("Worker %r gave this run %s and cores %s", self._worker.name, devices, _cores_of(place))
            estimate = self.controller.estimates.of(run.run_id)
            expected = launch_line(estimate)
            if expected is not None:
                logger.info("%s", expected)
            for warning in estimate.warnings:
                logger.warning("About its estimate: %s", warning)
        with suppress(httpx.HTTPError, ObjectNotFound):
            async with self._lane:
                await self._client.update_flow_run(UUID(run.run_id), infrastructure_pid=self._infrastructure_pid(pid))
                await self._worker._give_worker_labels_to_flow_run(UUID(run.run_id))

    # -- the controller's host: following and ending ------------------------------------------------------------------

    def _display(self, run: Launch) -> RunDisplay:
        def warn(text: str) -> None:
            flow_run = self._intake.known.get(run.run_id)
            if flow_run is None:  # an adopted run, which is not read again
                self._logger.warning("Run %s: %s", run.record.name, text)
            else:
                self._worker.get_flow_run_logger(flow_run).warning("%s", text)

        return RunDisplay(
            self._client,
            run,
            self.controller.estimates,
            warn,
            self._lane,
            self._logger,
            story=lambda: self.controller.scheduler.state.story(run.run_id),
            page=self._page.url if self._page is not None else "",
            waits_for=lambda: self._waits_for(run),
        )

    def _waits_for(self, run: Launch) -> tuple[str | None, float | None]:
        ahead, now = self.controller.runs.get(run.record.behind or ""), time.time()
        outlook = self.controller.estimates.outlook(ahead.run_id, now) if ahead is not None else None
        ends_at = None if outlook is None else now + outlook.remaining_s.median
        return (None if ahead is None else ahead.record.name), ends_at

    def reported(self, run: Launch, kind: str) -> None:
        """See :class:`Host`."""
        if run.run_id not in self._displays:  # an adopted run
            self._displays[run.run_id] = self._display(run)
        if kind in (protocol.PHASE, protocol.PROGRESS):
            self._displays[run.run_id].wake()

    async def _cancel(self, run: Launch) -> None:
        """Ask the run to end as cancelled; what does not end in time is killed. Returns at once."""
        if run.cancelling:
            return
        run.cancelling = True
        self._logger.info("Cancelling run %s", run.record.name)

        async def stop() -> None:
            with suppress(Exception):  # the signal alone must do
                await self._control.announce_cancellation(run.run_id)
            await self._must_lead()
            if run.handle is not None:
                await run.handle.announce_cancellation()
            await self.controller.stop(run.run_id, self._settings.cancel_grace_seconds)

        self._spawn(stop())

    async def _bury(self, pool: PoolView) -> None:
        types = (StateType.RUNNING, StateType.CANCELLING, StateType.PENDING)
        believed = await persist(lambda: pool.runs_in_state(*types), self._logger)
        if self._territory:
            await self._settlement.bury_orphans_of(self._territory, believed, self.controller.runs)
        else:
            await self._settlement.bury_orphans(believed, self.controller.runs, self._host_prefix)

    async def _beat(self) -> None:
        """Send Prefect's heartbeats of warm runs, whose own are switched off (see ``run_start``), until cancelled."""
        while True:
            frequency = get_current_settings().flows.heartbeat_frequency
            await asyncio.sleep(frequency or 180)
            for run in list(self.controller.runs.values()) if frequency else []:
                if run.record.warm and run.handle is not None:
                    resource = {"prefect.resource.id": f"prefect.flow-run.{run.run_id}"}
                    resource["prefect.resource.name"] = run.record.name
                    emit_event("prefect.flow-run.heartbeat", resource=resource)

    def is_here(self, infrastructure_pid: str) -> bool:
        """Whether that is, or was, on this machine or on a node of ours."""
        if not self._territory:
            return infrastructure_pid.startswith(self._host_prefix)
        return infrastructure_pid.partition(":")[0] in {node.id for node, _ in self.controller.fleet.known}

    async def kill(self, infrastructure_pid: str, grace_seconds: float) -> bool:
        """Stop the launched run with this ``host:pid`` or ``node:container``; False if there is none."""
        for run in list(self.controller.runs.values()):
            if run.handle is not None and self._infrastructure_pid(run.handle.pid) == infrastructure_pid:
                return await self.controller.stop(run.run_id, grace_seconds)
        return False

    async def settle(self, run: Launch, report: ExitReport) -> tuple[Outcome | None, str]:
        """See :class:`Host`."""
        await self._must_lead()
        display = self._displays.pop(run.run_id, None)
        if display is not None:
            await display.close(report, self.controller.fleet.named(run.record.placement.all_devices))
        self._control.unregister(run.run_id)
        breaks = self._breaks_at_grant.pop(run.run_id, self._stream.breaks)
        outcome, message = await self._settlement.settle(run, report, api_was_away=self._stream.breaks > breaks)
        if outcome in ("failed", "crashed") and died_of_its_limit(run, report, message):
            self._intake.exhausted(run.run_id)
        self._intake.settled(run.run_id)
        return outcome, message

    async def give_way(self, run: Launch, reason: str) -> bool:
        """See :class:`Host`."""
        await self._must_lead()
        display = self._displays.get(run.run_id)
        if display is not None:
            await display.leave()
        waiting = await self._settlement.give_way(run, reason)
        if waiting is None:
            return False
        self._displays.pop(run.run_id, None)
        self._control.unregister(run.run_id)
        self._breaks_at_grant.pop(run.run_id, None)
        self._intake.waits_again(waiting)
        return True

    async def unlaunched(self, run: Launch) -> None:
        """See :class:`Host`."""
        await self._must_lead()
        await self._settlement.give_back(run)
        self._intake.settled(run.run_id)

    def released(self, run: Launch) -> None:
        """See :class:`Host`."""
        self._intake.doubt(run.run_id)

    def record_contention(self, row: ContentionRow) -> None:
        """See :class:`Host`."""
        self._history.record_contention(row)

    def record_history(self, row: HistoryRow) -> None:
        """See :class:`Host`."""
        self._history.record(row)
        if self._learning is not None:
            with suppress(RuntimeError):  # the worker has stopped meanwhile
                self._loop.call_soon_threadsafe(self._learning.wake)

    # -- shown in Prefect ------------------------------------------------------------------------------------------

    async def _link_page(self, artifact: PoolArtifact, url: str) -> None:
        """Tell Prefect where the pool's page is."""
        host = socket.gethostname()
        text = f"[What the devices of the pool do, who waits, and why]({url}), while its worker runs on {host}."
        try:
            async with self._lane:
                await artifact.show(text)
        except Exception as error:  # it is only for show
            self._logger.debug("The pool's page could not be linked: %r", error)


def _cores_of(placement: Placement) -> str:
    """The cores of each part: those of different nodes have the same numbers."""
    return ", ".join(str(list(part.cpus)) for part in placement.parts)
