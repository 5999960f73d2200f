"""What the controller asks of whoever owns the runs: Prefect's worker, or a list of jobs in a benchmark."""

from __future__ import annotations

from typing import Protocol

from prefect_gpu.runtime.drivers.base import ExitReport, LaunchSpec
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.launch.records import RunRecord
from prefect_gpu.scheduling.model.instructions import AtRisk, Hold, Promise, Refuse
from prefect_gpu.storage.row import ContentionRow, HistoryRow, Outcome


class NotOursError(Exception):
    """The run cannot be launched by us any more: another worker has it, or its user cancelled it."""


class Host(Protocol):
    """Whoever owns the runs. All methods are called on the controller's event loop."""

    def describe(self, run_id: str) -> RunRecord:
        """A record with everything known at submission filled in (placement and token are the controller's)."""

    async def prepare(self, run: Launch) -> LaunchSpec:
        """Claim the run and say how to start it.

        Raises:
            NotOursError: It is somebody else's, or over.
            LaunchError: It cannot be started now; it will be tried again later.
        """

    async def launched(self, run: Launch) -> None:
        """The run's process exists."""

    async def falls_apart(self, run: Launch) -> None:
        """An instance of a gang has ended, and the others are stopped next.

        What speaks for the run is to leave it to us what its owner hears of that, if the run is tried again. Takes some
        seconds at most, and never fails.
        """

    def held(self, hold: Hold) -> None:
        """The run waits, for the reason given."""

    def answered(self, answer: Promise | Refuse | AtRisk) -> None:
        """A run's deadline is promised, refused, or at risk. One that is refused is not the scheduler's any more."""

    def reported(self, run: Launch, kind: str) -> None:
        """The run reported something (``protocol.PHASE``, ``PROGRESS``, ...); ``run`` has been brought up to date."""

    async def finalise(self, run: Launch, report: ExitReport) -> tuple[Outcome | None, str]:
        """The process is gone: make sure that the run's owner knows how it ended.

        Returns:
            (outcome, message) for the history; no outcome if the run never began. Must not return before the outcome
            is final.
        """

    async def give_way(self, run: Launch, reason: str) -> bool:
        """The run was stopped to carry on later or elsewhere: let it wait again, as the same run.

        Returns:
            False if it is over: its user cancelled it, or it had just ended by itself. It is finalised then.
        """

    async def unlaunched(self, run: Launch) -> tuple[Outcome, str, float | None] | None:
        """An earlier worker claimed the run but never started it: give it back to its queue.

        Returns:
            (outcome, message, end) if it was started all the same, and nothing is left of that: the end in the worker's
            time, if it is known.
        """

    def released(self, run: Launch) -> None:
        """The launch is over and forgotten; if the run waits again, it may be submitted again."""

    def record_contention(self, row: ContentionRow) -> None:
        """Keep how much a run was slowed down by another one on its nodes (called in a thread)."""

    def record_history(self, row: HistoryRow) -> None:
        """Keep the row (called in a thread)."""
