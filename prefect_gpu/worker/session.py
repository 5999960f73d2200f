"""One worker's service of one pool: Prefect's queue on one side, the controller on the other.

Prefect is the queue. A run stays SCHEDULED there until the scheduler has granted it a place; only then is it
claimed, by proposing PENDING, which Prefect accepts from one worker alone.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from prefect.client.schemas.objects import FlowRun
from prefect.events import emit_event
from prefect.logging import get_logger
from prefect.settings import get_current_settings
from prefect.workers.base import BaseWorker

from prefect_gpu.blocks.base import BlockError
from prefect_gpu.bundles.leftovers import bundles_left
from prefect_gpu.bundles.storage import ensure_bundle_storage, folder_of_all
from prefect_gpu.page.server import PageServer
from prefect_gpu.runtime.controller import ABILITIES, Controller
from prefect_gpu.runtime.devices.locks import LockError, Locks
from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.runtime.launch.records import RecordStore
from prefect_gpu.runtime.leftovers import Cleaner
from prefect_gpu.runtime.metering.prices import Prices
from prefect_gpu.runtime.tasks import Tasks
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.profiles import get_profile
from prefect_gpu.scheduling.waste.rule import WasteRule
from prefect_gpu.settings import GpuSettings
from prefect_gpu.storage.spool import spool_folder
from prefect_gpu.worker.endings.leftovers import PoolOwner
from prefect_gpu.worker.endings.recording import Recorder
from prefect_gpu.worker.from_blocks import read_blocks
from prefect_gpu.worker.host import PrefectHost
from prefect_gpu.worker.launching.run_credentials import run_credentials
from prefect_gpu.worker.leadership.leader_election import Leadership
from prefect_gpu.worker.learning import PoolLearning
from prefect_gpu.worker.nodes.infrastructure import Infrastructure, infrastructure_of
from prefect_gpu.worker.nodes.notice import NoticeWatch
from prefect_gpu.worker.nodes.own_node import say_devices
from prefect_gpu.worker.server.asking import NO_ANSWERS
from prefect_gpu.worker.server.control import EngineControl
from prefect_gpu.worker.server.lane import Lane
from prefect_gpu.worker.server.pool import PoolView
from prefect_gpu.worker.server.server_clock import ServerClock
from prefect_gpu.worker.server.stream import PoolStream
from prefect_gpu.worker.setup_error import CANNOT_BE_WRITTEN, SetupError, unusable
from prefect_gpu.worker.shares.usage_history import StayKeeper, UsageHistory
from prefect_gpu.worker.telling.artifacts import PoolArtifact, accuracy_artifact, page_artifact
from prefect_gpu.worker.telling.metrics import PoolMetrics
from prefect_gpu.worker.telling.pool_page import PoolSource, open_page
from prefect_gpu.worker.telling.run_events import RunEvents
from prefect_gpu.worker.telling.run_spans import RunSpans, prefect_traces

REFUSALS = (SetupError, BlockError, LaunchError, LockError)
"""Why a pool cannot be served as it is set up."""


class PoolSession:
    """The life of a serving worker: it leads, adopts what runs, serves, and leaves.

    Args:
        umask: That of runs; -1: the worker's own.

    Attributes:
        host: What the controller needs done in Prefect.
        is_open: Whether it serves.
        draining: Whether it starts no run any more.
        lost: Whether somebody else leads: the session does nothing any more, and is to be closed.

    Raises:
        ValueError: The profile is not known, or knows nothing of the quota that the settings name.
        HistoryError: The history's URL cannot be understood.
    """

    host: PrefectHost
    controller: Controller

    def __init__(
        self,
        worker: BaseWorker[Any, Any, Any],
        settings: GpuSettings,
        printer: Callable[..., None],
        umask: int = -1,
        standing_by: Callable[[], object] = lambda: None,
    ) -> None:
        profile = get_profile(settings.profile)  # one that will not do must stop the worker now, not later
        if settings.quota and not profile.heeds_shares:
            raise ValueError(
                f"quota={settings.quota!r} with profile={settings.profile!r} is not allowed: this profile knows "
                "nothing of what owners are promised. Set PREFECT_INTEGRATIONS_GPU_PROFILE=adaptive, or unset the "
                "quota."
            )
        self._worker = worker
        self._settings = settings
        self._printer = printer
        self._state_dir = settings.resolved_state_dir
        self._umask = umask
        self._state_dir.mkdir(parents=True, exist_ok=True)
        self._locks = Locks(self._state_dir, settings.lock_dir and settings.lock_dir.expanduser())
        self._logger = get_logger("worker.gpu")
        spool = spool_folder(self._state_dir) / worker._work_pool_name
        self._recorder = Recorder(settings.resolved_history_url, spool, self._logger)
        self._leadership = Leadership(self._locks, printer, standing_by, self._logger)
        self._stack = AsyncExitStack()
        self._control = EngineControl()
        self._lane = Lane()
        self._server_clock = ServerClock()
        self._page: PageServer | None = None
        self._tasks = Tasks(self._logger, NO_ANSWERS)
        self.is_open = False
        self.draining = False
        self.lost = False

    # -- beginning ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Become the pool's worker here: wait for the leadership, claim devices, adopt what runs, listen to Prefect."""
        try:
            await self._open()
        except OSError as error:
            if error.errno not in CANNOT_BE_WRITTEN:
                raise
            raise unusable(self._state_dir, error) from error

    async def _open(self) -> None:
        worker, pool, client = self._worker, self._worker.work_pool, self._worker.client
        if pool.type != worker.type:  # its template lacks what runs ask for, so that all would be given one GPU
            raise SetupError(
                f"the work pool {pool.name!r} is of the type {pool.type!r}, whose runs cannot ask for GPUs. Name "
                f"another one, or make one: `prefect work-pool create NAME --type {worker.type}`."
            )
        self._server_clock.listen(client)
        await self._leadership.claim(pool.name)
        self._tasks.keep(lambda: self._leadership.beat(pool.name), "beat")
        chosen = await read_blocks(self._settings, client)
        settings = self._settings = chosen.settings
        role = run_credentials(settings, chosen.credentials, self._logger)
        place = infrastructure_of(
            pool.name, settings, self._locks, self._printer, self._logger, chosen, self._umask, str(pool.id)
        )
        scope = await place.driver.scope() or ""
        if scope:
            await self._leadership.take(client, pool.name, scope)
            self._tasks.keep(self._keep_leadership, "lead")
        # Flows that are submitted without a deployment travel through a folder.
        folder = folder_of_all(settings)
        if folder is not None and (place.driver.shares_files or settings.bundles is not None):
            await ensure_bundle_storage(client, pool, folder)
        await self._control.open(self._stack)
        host = self.host = PrefectHost(
            worker,
            PoolView(client, pool.name, worker._work_queues, self._logger, self._server_clock),
            settings,
            local=place.driver.local,
            contained=place.driver.contained,
            shares_files=place.driver.contained or place.driver.shares_files,
            scope=scope,
            credentials=chosen.credentials,
            role=role,
            control=self._control,
            recorder=self._recorder,
            leadership=self._leadership,
            lane=self._lane,
            tasks=self._tasks,
            logger=self._logger,
        )
        await host.quota.read()
        self.controller = self._make_controller(place, chosen.credentials)
        self._listen()
        host.controller = host.intake.controller = host.holds.controller = self.controller
        host.stream = PoolStream(
            lambda: self._worker.work_pool.id,
            on_event=host.queue.on_event,
            on_connect=self._on_connect,
            logger=self._logger,
        )
        notice = NoticeWatch(settings, self.controller.fleet, self._logger)
        if notice.is_needed:
            await notice.look_once()  # before anything starts here
        try:
            await self.controller.start()
        except Exception:  # another one may be started later, which needs the ports, and follows the runs
            await self.controller.close()
            raise
        if not place.driver.local:
            nodes, devices = self.controller.fleet.nodes, self.controller.fleet.devices
            where = f" on {', '.join(node.id for node in nodes) or 'no node'}"
            if devices or not place.driver.elastic:
                say_devices(pool.name, devices, self._printer, self._logger, where)
            else:
                self._printer(f"Serving pool {pool.name!r} with nodes that come as they are needed: there is none yet")
        await self._open_page()
        work: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "stream": host.stream.run,
            "news": host.queue.follow_news,
            "holds": host.holds.run,
            "heartbeats": self._beat,
            "orphans": host.bury_orphans,
            "claims": host.claims.run,
            "cleaner": self._make_cleaner().run,
        }
        if notice.is_needed:
            work["notice"] = notice.run
        if role is not None:
            work["credentials"] = lambda: role.renew(self.controller)
        if settings.quota:
            usage = UsageHistory(self._recorder.opened, pool.name, self.controller, self._logger)
            self._tasks.keep(usage.run, "usage")
        recorded = None
        if settings.learn:
            opened = self._recorder.opened
            learning = PoolLearning(opened, self.controller, host.queue.estimated, self._lane, self._logger)
            recorded = learning.wake
            work["learning"] = lambda: learning.run(accuracy_artifact(client, pool.name))
        work["history"] = lambda: self._recorder.run(recorded)
        for name, run in work.items():
            self._tasks.keep(run, name)
        self.is_open = True

    def _make_controller(self, place: Infrastructure, credentials: Mapping[str, str] | None) -> Controller:
        settings = self._settings
        return Controller(
            self.host,
            nodes=place.nodes,
            driver=place.driver,
            state_dir=self._state_dir,
            pool=self._worker.work_pool.name,
            profile=settings.profile,
            abilities=replace(
                ABILITIES,
                gates=settings.prescheduling,
                preemption=ABILITIES.preemption if settings.preemption else Preemption.NONE,
            ),
            channel_host=settings.channel_host,
            channel_port=settings.channel_port,
            advertise=settings.advertise,
            pool_id=str(self._worker.work_pool.id),
            checkpoints=settings.checkpoints,
            waste=_waste_rule(settings),
            prices=Prices.of(settings.device_hour_price),
            credentials=credentials,
            leads=lambda: self._leadership.held,
            cordon_also=settings.cordon_also,
            heed_outside=settings.heed_outside,
            logger=self._logger,
        )

    def _listen(self) -> None:
        """Let events and metrics hear of every launch."""
        pool, host = self._worker.work_pool, self.host
        host.metrics = PoolMetrics(pool.name, self.controller)
        emit = emit_event if self._settings.events else _say_nothing
        events = RunEvents(pool, host.intake.flow_run, emit, host.metrics.happened)
        host.holds.on_waiting = events.waiting
        host.promising.on_risk = events.at_risk
        self.controller.cordons.on_cordon = events.cordoned
        self.controller.health.on_fault = events.unwell
        self.controller.waste.on_stop = host.stop_wasting
        stays = (StayKeeper(self._recorder.keep, self._tasks),) if self._settings.quota else ()
        self.controller.listeners = (host.metrics, events, *stays)
        if prefect_traces():
            host.spans = RunSpans(pool.name, host.intake.flow_run)
            self.controller.listeners += (host.spans,)

    def _make_cleaner(self) -> Cleaner:
        pool, days = self._worker.work_pool.name, self._settings.keep_days
        records, bundles = RecordStore(self._state_dir, pool), folder_of_all(self._settings) or self._state_dir
        return Cleaner(
            (self.controller.checkpoints.leftovers, partial(bundles_left, bundles / "bundles", days)),
            needed=lambda: {*self.controller.runs, *records.run_ids()},
            owner=PoolOwner(self.host.asking, self.host.pool, pool),
            days=days,
            leads=lambda: self._leadership.held,
            logger=self._logger,
        )

    async def _open_page(self) -> None:
        pool = self._worker.work_pool.name
        source = PoolSource(self.controller, pool, self.host.holds.expected, self.unwell, self._settings)
        self._page = await open_page(source, self._settings, pool, self.host.metrics.text, self._logger)
        if self._page is not None:
            self.host.page_url = self._page.url
            self._printer(f"Watch the pool at {self._page.entry} or with `prefect-gpu status`")
            self._tasks.start(self._link_page(page_artifact(self._worker.client, pool), self._page.url))

    async def _link_page(self, artifact: PoolArtifact, url: str) -> None:
        """Tell Prefect where the pool's page is."""
        host = socket.gethostname()
        text = f"[The pool's page]({url}) shows its devices and why runs wait, while its worker runs on {host}."
        try:
            async with self._lane.reserved():
                await artifact.show(text)
        except Exception as error:  # it is only for show
            self._logger.debug("The pool's page could not be linked: %r", error)

    def ill(self) -> list[str]:
        """What of the session's long work has done nothing but fail for long; may be asked from any thread."""
        found = self._tasks.ill() | (self.controller.ill() if self.is_open else {})
        return [f"{name} fails: {one.error!r}" for name, one in found.items()]

    def unwell(self) -> list[str]:
        """What people should know of: what is ill, and who is away, against which no restart would help."""
        away_s = self._server_clock.away_s
        prefect = [f"Prefect has not answered as it should for {away_s:.0f} s"] if away_s else []
        history = [f"the history cannot be used: {self._recorder.trouble}"] if self._recorder.trouble else []
        quota = [self.host.quota.trouble] if self.is_open and self.host.quota.trouble else []
        decisions = [self.controller.trouble] if self.is_open and self.controller.trouble else []
        return self.ill() + prefect + history + quota + decisions

    @property
    def well_s(self) -> float:
        """For how long Prefect has answered everything without an error, in seconds."""
        return self._server_clock.well_s

    # -- leading --------------------------------------------------------------------------------------------------

    async def _keep_leadership(self) -> None:
        await self._leadership.keep()
        self.lost = True
        if hasattr(self, "controller"):
            self.controller.abandon()
        self._printer("This worker no longer leads. Its runs go on; it stands by to take over again.")

    def follow(self, lost: PoolSession) -> None:
        """Be this worker's next session, after one that has lost the leadership and is closed."""
        self._leadership.inherit(lost._leadership)

    # -- serving --------------------------------------------------------------------------------------------------

    async def look(self) -> list[FlowRun]:
        """Compare the whole pool with what the scheduler believes; the runs that wait."""
        return await self.host.queue.look()

    def _on_connect(self) -> None:
        """The event stream is open (again); events may have been missed until now: look at everything once.

        A stream that breaks again and again must not make looks pile up.
        """
        self.host.queue.missed()

        async def look() -> None:
            try:
                await self.look()
            except NO_ANSWERS as error:
                self._logger.debug("The pool could not be read: %r", error)

        if not self._tasks.has("look"):
            self._tasks.start(look(), "look")

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

    # -- leaving --------------------------------------------------------------------------------------------------

    def begin_drain(self, on_drained: Callable[[], object]) -> int:
        """Start no run any more; call back when the last one has been finalised.

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

        self._tasks.start(drained())
        return len(self.controller.runs)

    async def wait_finished(self) -> None:
        """Wait until nothing runs and nothing that waits can start (``--run-once``)."""
        while not self.lost:
            await self.controller.wait_idle()
            await asyncio.sleep(0)
            if not self.controller.runs and not self.controller.scheduler.state.running:
                return

    async def close(self) -> None:
        """Let go of everything; processes go on."""
        await self._tasks.close()
        if self._page is not None:
            await self._page.close()
        if hasattr(self, "controller"):
            await self.controller.close()
        await self._stack.aclose()
        await self._recorder.close()
        await self._leadership.release()
        self._server_clock.leave()
        self._locks.release()
        self.is_open = False


def _say_nothing(**_: Any) -> None:
    """In place of Prefect's events, where these are switched off."""


def _waste_rule(settings: GpuSettings) -> WasteRule:
    """When a run holds devices for nothing, and what follows."""
    up_to = None if settings.waste == "off" else settings.waste
    return WasteRule(settings.waste_below_percent / 100, 60 * settings.waste_minutes, up_to)
