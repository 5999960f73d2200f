"""What the pool learns from its history, told to the scheduler; how good its estimates were, told to Prefect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio

from prefect_gpu.estimation.interference.network import remembered, traffic_of
from prefect_gpu.estimation.runs import FinishedRun
from prefect_gpu.estimation.slow_devices import SlowDevice, slow_devices
from prefect_gpu.reporting.accuracy import accuracy_markdown, comparisons
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.learning.learner import MOST_OF_EACH_FLOW, MOST_ROWS, Learner
from prefect_gpu.runtime.tasks import in_own_thread
from prefect_gpu.runtime.telemetry.faults import SLOW, Fault
from prefect_gpu.scheduling.interference.sensitivity import Key, Traffic
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.state.asked import MOST_COUNTED, AskedType
from prefect_gpu.storage.finished import (
    asked_types,
    communication,
    finished_run,
    measured_pairs,
    newest_slowdowns,
    step_samples,
)
from prefect_gpu.storage.history import History
from prefect_gpu.storage.row import HistoryRow
from prefect_gpu.worker.server.lane import Lane
from prefect_gpu.worker.telling.artifacts import PoolArtifact

if TYPE_CHECKING:
    from prefect_gpu.estimation.estimator import Estimator

_RENEWED_AT_ONCE = 20  # estimates of waiting runs, a fraction of a millisecond each
_JUDGED_RUNS = 2000  # the newest; how good their estimates were is shown
_JUDGED_EVERY_S = 60.0
_MOST_PAIRS = 500  # measurements of runs on several nodes, the newest


class PoolLearning:
    """Learns from the history whenever a run was added to it.

    Args:
        opened: The history; called in threads. It raises what is wrong with a history that cannot be used now.
        renewed: Called with new estimates of runs that wait.
        lane: Where it is written to Prefect.
    """

    def __init__(
        self,
        opened: Callable[[], History],
        controller: Controller,
        renewed: Callable[[Sequence[ev.JobEstimated]], None],
        lane: Lane,
        logger: logging.Logger,
    ) -> None:
        self._opened = opened
        self._controller = controller
        self._renewed = renewed
        self._lane = lane
        self._logger = logger
        self._learner = Learner(self._finished_runs, self._learned, logger)
        self._company: tuple[tuple[str, str, float], ...] = ()  # how much programs slow each other down
        self._traffic: tuple[tuple[str, Traffic], ...] = ()  # how programs communicate
        self._slow: Sequence[SlowDevice] = ()
        self._accuracy = ""  # how good estimates have been, in Markdown
        self._news = asyncio.Event()
        self._grown = asyncio.Event()
        self._grown.set()

    async def run(self, artifact: PoolArtifact) -> None:
        """Learn, and keep the pool's page of estimates up to date, until cancelled."""
        async with anyio.create_task_group() as together:  # if one fails none is left, and all may begin anew
            together.start_soon(self._remember)
            together.start_soon(self._learner.run)
            together.start_soon(self._show_accuracy, artifact)

    def wake(self) -> None:
        """A run was recorded, or the history can be used (again)."""
        self._grown.set()
        self._learner.wake()

    async def _remember(self) -> None:
        """Tell the scheduler, once, what runs did to each other on several nodes, and what they asked for.

        It is told of later ones as they are.
        """
        while True:
            await self._grown.wait()
            self._grown.clear()
            try:
                pairs, types, promises = await in_own_thread(self._of_earlier_runs, "prefect-gpu-memories")
            except Exception as error:
                said = str(error).rstrip(".")
                self._logger.warning("What earlier runs were like could not be read: %s.", said)
                continue
            if pairs:
                self._controller.handle(ev.ContentionLearned(pairs))
            if types:
                self._controller.handle(ev.RequestsLearned(types))
            if promises:
                self._controller.handle(ev.PromisesLearned(promises))
            return

    def _of_earlier_runs(
        self,
    ) -> tuple[
        tuple[tuple[Key, Key, float], ...],
        tuple[tuple[AskedType, int], ...],
        tuple[tuple[float, float, bool | None], ...],
    ]:
        rows = self._opened().rows(limit=MOST_COUNTED)
        return self._measured_pairs(), asked_types(rows), promises_of(rows)

    def _measured_pairs(self) -> tuple[tuple[Key, Key, float], ...]:
        return remembered(reversed(measured_pairs(self._opened().contention(limit=_MOST_PAIRS))))

    def _finished_runs(self) -> list[FinishedRun]:
        """What the history holds, for the learner's thread."""
        rows = self._opened().newest_of_each_flow(MOST_OF_EACH_FLOW, limit=MOST_ROWS)
        compared = comparisons(rows[:_JUDGED_RUNS])
        self._accuracy = accuracy_markdown(compared) if compared else ""
        self._company = newest_slowdowns(rows)
        links = [node.network_bps for node in self._controller.fleet.nodes if node.network_bps > 0]
        shown = [one for one in map(communication, rows) if one is not None]
        self._traffic = traffic_of(shown, min(links, default=None))
        self._slow = slow_devices(step_samples(reversed(rows)))
        return [run for run in map(finished_run, rows) if run is not None]

    async def _learned(self, estimator: Estimator) -> None:
        """There is more to know of the runs that wait: tell the scheduler, a few of them at a time."""
        self._controller.estimates.estimator = estimator
        self._controller.health.found(
            Fault(one.device, SLOW, f"it takes {one.factor:.2f} times as long as others of its kind", False)
            for one in self._slow
        )
        if self._company:
            self._controller.handle(ev.CompanyLearned(self._company))
        if self._traffic:
            self._controller.handle(ev.ContentionLearned(traffic=self._traffic))
        finished, programs = sum(model.completed for model in estimator.programs.values()), len(estimator.programs)
        self._logger.info(
            "Learned from %d finished run%s of %d program%s",
            finished,
            "" if finished == 1 else "s",
            programs,
            "" if programs == 1 else "s",
        )
        self._news.set()
        waiting = [job.id for job in self._controller.scheduler.state.waiting()]
        for start in range(0, len(waiting), _RENEWED_AT_ONCE):
            some = map(self._controller.estimates.renewed, waiting[start : start + _RENEWED_AT_ONCE])
            found = tuple(event for event in some if event is not None)
            if found:
                self._controller.handle(ev.Together(found))
                self._renewed(found)
            await asyncio.sleep(0)  # what happens meanwhile comes first

    async def _show_accuracy(self, artifact: PoolArtifact) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if not self._accuracy:
                continue
            try:
                async with self._lane.reserved():
                    await artifact.show(self._accuracy)
            except Exception as error:  # it is only for show
                self._logger.debug("The accuracy of estimates could not be shown: %r", error)
            await asyncio.sleep(_JUDGED_EVERY_S)


def promises_of(rows: Sequence[HistoryRow]) -> tuple[tuple[float, float, bool | None], ...]:
    """How runs with deadlines ended, for the scheduler.

    Args:
        rows: The newest first.
    """
    found = []
    for row in reversed(rows):
        due = row.granted_at if row.waited_s is None or row.granted_at is None else row.granted_at - row.waited_s
        if row.outcome == "completed" and row.deadline_at is not None and due is not None and row.trained_s:
            kept = row.ended_at <= row.deadline_at if row.promised is not None else None
            found.append((row.deadline_at - due, row.trained_s, kept))
    return tuple(found)
