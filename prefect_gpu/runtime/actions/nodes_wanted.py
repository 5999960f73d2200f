"""Which runs want nodes: for drivers whose nodes come and go, such as those that Slurm lends."""

from __future__ import annotations

from collections.abc import Mapping

from prefect_gpu.runtime.clock import Clock
from prefect_gpu.runtime.drivers.base import Demand, Wanted
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.state.endings import needs_s
from prefect_gpu.scheduling.state.state import State


class NodesWanted:
    """Says what waits for a node, and where something runs.

    Args:
        runs: Those that are launched, by their ids.
    """

    def __init__(self, state: State, runs: Mapping[str, Launch], clock: Clock) -> None:
        self._state, self._runs, self._clock = state, runs, clock

    def demand(self) -> Demand:
        """What waits for a place and for nothing else, and where something runs: see :attr:`.Driver.demand`."""
        state, now = self._state, self._clock()
        waiting = [job for job in state.waiting() if job.due_at <= now and state.limit_on(job.queue) is None]
        busy = {node for job in state.running.values() if job.placement is not None for node in job.placement.nodes}
        # Or is being left. Whose processes are gone needs no node to make its end known, which may take a while.
        here = [launch for launch in self._runs.values() if not launch.gone.is_set()]
        left = {node for launch in here for node in launch.record.placement.nodes}
        return Demand(tuple(map(self.by, waiting)), frozenset(busy | left))

    def by(self, job: Job) -> Wanted:
        """What a run needs of a node, and for how long."""
        return Wanted(job.request, job.remaining_s(self._clock()), needs_s(job, self._state))
