"""Keeps one run's page in Prefect up to date: the name of its phase, its progress, its losses, its estimate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from prefect.client.orchestration import PrefectClient

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.runtime.launch.launch import WAITING, Follower, Launch
from prefect_gpu.runtime.learning.estimates import Estimates
from prefect_gpu.scheduling.model.cluster import Device
from prefect_gpu.storage.finished import finished_run
from prefect_gpu.training import protocol
from prefect_gpu.worker.server.lane import Lane
from prefect_gpu.worker.server.states import show_phase
from prefect_gpu.worker.telling.artifacts import RunArtifacts
from prefect_gpu.worker.telling.estimate_words import drift_words, estimate_of
from prefect_gpu.worker.telling.expectations import at_gate, moved

_PREPARED = "prepared"  # not a phase of the protocol: a run that prepares no more, and waits for its devices
_NAMES = {
    _PREPARED: "Prepared",
    protocol.PREPARING: "Preparing",
    protocol.TRAINING: "Training",
    protocol.SAVING: "Saving",
}

# Each request is work for Prefect's server, and most trials of a sweep are over within seconds.
_SETTLED_AFTER_S = 1.0  # a phase that is over by then is not named
_PAGE_AFTER_S = 4.0  # of training; a run that is over by then gets its page at its end, written once
_PAGE_AT_GATE_AFTER_S = 30.0  # of waiting for devices
_BUSY_AGAIN_S = 1.0  # between two tries to show progress
_FAILED_AGAIN_S = 5.0  # after Prefect has not answered as it should; the run itself may have nothing new for hours
_AT_GATE_AGAIN_S = 10.0  # between two looks at what a prepared run waits for


class RunDisplay(Follower):
    """Shows the newest of what a run reports. What could not be shown is not worth failing for.

    Args:
        warn: Writes a warning into the run's own log.
        lane: Where it is written.
        waits_for: If the run is prepared: the name of the run that it waits for, and when that one is expected to train
            no more in Unix seconds; None for what is not known.
        story, page: See :class:`~prefect_gpu.worker.telling.artifacts.RunArtifacts`.
    """

    def __init__(
        self,
        client: PrefectClient,
        run: Launch,
        estimates: Estimates,
        warn: Callable[[str], None],
        lane: Lane,
        logger: logging.Logger,
        *,
        story: Callable[[], Sequence[tuple[float, str]]] = tuple,
        page: str = "",
        waits_for: Callable[[], tuple[str | None, float | None]] = lambda: (None, None),
    ) -> None:
        self._client = client
        self._run = run
        self._estimates = estimates
        self._warn = warn
        self._drift_said = False
        self._lane = lane
        self._logger = logger
        self._artifacts = RunArtifacts(client, run, estimates, story=story, page=page)
        self._waits_for = waits_for
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._again: asyncio.TimerHandle | None = None
        self._shown_phase = ""
        self._told: tuple[str | None, float | None] = (None, None)  # what the gate's message said
        self._task = asyncio.get_running_loop().create_task(self._work())

    def wake(self) -> None:
        """There is something new."""
        self._news.set()

    async def close(self, report: ExitReport, devices: Sequence[Device]) -> None:
        """Stop renaming the run's state, and show the last numbers.

        Args:
            report: How its process ended.
            devices: Those that it had.
        """
        await self.leave()
        await self._try(_measured(self._run, report, devices))

    async def leave(self) -> None:
        """Stop renaming the run's state."""
        self._over.set()  # not cancelled: a renaming that has begun must be checked to its end
        self._news.set()
        await self._task

    async def _work(self) -> None:
        while True:
            await self._news.wait()
            # A phase that is over at once is not shown: its name would come after the run's end, and be taken back.
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), _SETTLED_AFTER_S)
            if self._over.is_set():
                return
            self._news.clear()
            await self._try()

    async def _try(self, measured: Mapping[str, float] | None = None) -> None:
        try:
            self._say_drift()
            async with self._lane.reserved():
                await self._show_phase()
            if measured is None and self._over.is_set():
                return  # somebody waits to change the run's state
            if measured is not None:
                async with self._lane.reserved():
                    again_in = await self._artifacts.show(final=True, measured=measured)
            elif (too_young_s := self._page_in_s()) > 0:
                again_in = too_young_s
            elif self._lane.is_free:
                async with self._lane.budgeted():
                    again_in = await self._artifacts.show()
            else:
                again_in = max(_BUSY_AGAIN_S, self._lane.free_in_s)
            if self._shown_phase == _PREPARED:
                again_in = min(again_in or _AT_GATE_AGAIN_S, _AT_GATE_AGAIN_S)
        except Exception as error:
            self._logger.debug("Run %s could not be shown: %r", self._run.record.name, error)
            again_in = _FAILED_AGAIN_S
        if again_in and not self._over.is_set():
            if self._again is not None:
                self._again.cancel()
            self._again = asyncio.get_running_loop().call_later(again_in, self.wake)

    def _page_in_s(self) -> float:
        times, now = self._run.record.times, CLOCK()
        if self._run.waiting:
            return times[WAITING] + _PAGE_AT_GATE_AFTER_S - now
        return times.get(protocol.TRAINING, times.get("launched", now)) + _PAGE_AFTER_S - now

    async def _show_phase(self) -> None:
        phase, told, words, now = self._run.phase, self._told, None, CLOCK()
        if self._run.waiting:
            phase, told = _PREPARED, self._waits_for()
            if phase == self._shown_phase and (told[0] == self._told[0] and not moved(self._told[1], told[1], now)):
                return
            words = at_gate(*told, now)
        elif phase == self._shown_phase:
            return
        if phase in _NAMES and not self._over.is_set():
            await show_phase(self._client, UUID(self._run.run_id), _NAMES[phase], words, self._goes_on)
            self._shown_phase, self._told = phase, told

    def _goes_on(self) -> bool:
        return self._run.phase in _NAMES and not self._over.is_set()

    def _say_drift(self) -> None:
        factor = None if self._drift_said else self._estimates.drift(self._run.run_id)
        if factor is not None:
            self._drift_said = True
            kept = self._run.record.known.get("estimate", {})
            rests_on = estimate_of(kept, self._estimates.of(self._run.run_id))
            if rests_on.from_runs:  # what other programs needed says little of this one's steps
                self._warn(drift_words(factor, rests_on.basis))


def _measured(run: Launch, report: ExitReport, devices: Sequence[Device]) -> Mapping[str, float]:
    """By target, what a run that is over needed, as the history will have it; of one that broke off, until then."""
    at = report.ended_at or CLOCK()
    row = run.history_row(outcome="completed", message="", report=report, devices=devices, ended_at=at)
    finished = finished_run(row)
    return {} if finished is None else finished.measured
