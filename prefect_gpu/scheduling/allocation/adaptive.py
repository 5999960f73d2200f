"""Ours: whatever makes the sum of completion times fall fastest with what the outside world can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.allocation.base import Allocation
from prefect_gpu.scheduling.allocation.batch import BatchWindow
from prefect_gpu.scheduling.cores.cpu_array import CpuArray
from prefect_gpu.scheduling.interference.aware_backfill import InterferenceAwareBackfill
from prefect_gpu.scheduling.interference.sensitivity import Key

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.state.state import State


class Adaptive(Allocation):
    """Chooses how to allocate by what is possible, what is asked and what is known.

    - Where cores can be changed, jobs that only need cores are placed by :class:`.CpuArray`.
    - :class:`.MakeRoom`: a job starts where it fits, devices are kept for those who have waited long, and jobs that may
      be stopped make room for one that is clearly better, because stopping them costs something. Where it is known how
      jobs on several nodes slow each other down, they are kept from doing so (:class:`InterferenceAwareBackfill`).
    - Gangs wait, or some job may not be stopped: :class:`BatchWindow`, Liquid's, without a window, before that: a burst
      is placed together, since where these start is where they stay. Not while gangs wait of which it is known how they
      slow others down: it knows of no such thing.

    What decides is what the jobs say, those that run and those that wait, and not what the world could do: where no job
    may be stopped, nothing else happens than in a world that stops nobody.

    Args:
        advantage: See :class:`.MakeRoom`.
        speeds: See :class:`InterferenceAwareBackfill`.
    """

    ranks_running = True

    def __init__(self, advantage: float = 0.5, speeds: Mapping[Key, float] | None = None) -> None:
        self._displace = InterferenceAwareBackfill(speeds, advantage)
        self._batch = BatchWindow(window_s=0.0, others=self._displace)

    def bind(self, state: State) -> None:
        """Called once, before anything else."""
        super().bind(state)
        self._displace.bind(state)
        self._batch.bind(state)

    def allocate(self, decision: Decision) -> None:
        """See the class."""
        placement = decision.placement
        if decision.abilities.cores:
            decision.placement = CpuArray(placement)
        self._how(decision).allocate(decision)
        decision.placement = placement

    def _how(self, decision: Decision) -> Allocation:
        lines = decision.state.queue_of_waiting.lines()
        all_stop = not decision.state.firm_count and all(decision.can_stop(line.entries[0][1]) for line in lines)
        if any(line.request.is_gang and self._displace.concerns(line.entries[0][1]) for line in lines):
            return self._displace
        return self._displace if all_stop and not any(line.request.is_gang for line in lines) else self._batch
