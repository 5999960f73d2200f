"""Measured slowdowns that name nobody (§IV, §V-C): whom they are put down to, and who is stopped for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.interference.preempt_on_slowdown import PreemptOnSlowdown, beside
from prefect_gpu.scheduling.interference.spreading import running_jobs
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.reaction import Reaction

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.state.state import State


class UnnamedSlowdowns(Reaction):
    """Learn from measurements that do not name their pair, too, as DeepShare does, and stop jobs for them.

    A job that shares its nodes with one other teaches the table what these two do to each other. Beside several, it is
    the one that is expected to slow it down most that is blamed, and only if matters are worse than expected. A
    measurement counts only if the same jobs were beside it since an earlier decision: it says nothing of newcomers, and
    when one job was stopped, what the others measured before is void.

    Args:
        stops: Says who is stopped, and learns from the measurements that name their pair.
    """

    def __init__(self, stops: PreemptOnSlowdown) -> None:
        self._stops = stops
        self._company: dict[str, tuple[frozenset[str], float]] = {}  # who is beside each job, and since when
        self._measured = False  # until anybody measures, nothing is kept

    def bind(self, state: State) -> None:
        """Called once, before anything else."""
        self._table = state.learned.sensitivity
        self._stops.bind(state)

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """See the class. True, as the allocation has to look at the free devices, if a job was stopped."""
        match event:
            case ev.SlowdownMeasured(job_id, slowdown, "", None) if 0 < slowdown < math.inf:
                return self._learn(decision, job_id, slowdown)
        return self._stops.react(event, decision)

    def _learn(self, decision: Decision, job_id: str, slowdown: float) -> bool:
        self._measured = True
        job = decision.state.running.get(job_id)
        if job is None or not job.request.kind:
            return False
        running = running_jobs(decision)
        others = beside(job.id, running)
        known = self._company.get(job.id)
        if not others or known is None or known[0] != frozenset(others) or known[1] >= decision.now:
            return False
        own = running[job.id].key
        expected = self._table.among(own, (other.key for other in others.values()))
        worst = min(others, key=lambda name: self._table.ratio(own, others[name].key))
        if len(others) == 1 or 1 / slowdown < self._table.ratio(own, others[worst].key):
            self._table.learn(own, others[worst].key, 1 / slowdown)
        return self._stops.stop(decision, job, slowdown, expected, (worst,))

    def after(self, decision: Decision) -> None:
        """Note who is beside whom, and what was expected of it."""
        self._stops.after(decision)
        if not self._measured:
            return
        running = running_jobs(decision)
        company = {}
        for name in running:
            others = frozenset(beside(name, running))
            known = self._company.get(name)
            company[name] = known if known is not None and known[0] == others else (others, decision.now)
        self._company = company
