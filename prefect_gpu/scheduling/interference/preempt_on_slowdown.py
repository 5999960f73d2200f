"""Runs that measure how much another one slows them down: what is learned of it, and who is stopped for it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.interference.sensitivity import LEAST_RATIO, Key, Running
from prefect_gpu.scheduling.interference.spreading import running_jobs
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.instructions import Launch, Move
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.scheduling.state.state import State

SLOWDOWN_LIMIT = 1 / LEAST_RATIO
MOST_STOPS = 3
"""How often a job is stopped at most."""
_ROUNDING = 1e-9
_SURPRISE = 1.1  # slower by a tenth than expected


class PreemptOnSlowdown(Reaction):
    """Learn from each measured slowdown, and preempt a job whose slowdown is above a limit, and a surprise.

    A measurement that names its pair teaches the table just that; others say nothing here. What was foreseen when the
    jobs were brought together is not undone: a job is stopped only if its slowdown is also larger than the table said.
    It is stopped only for others on its nodes, and only a few times, so that nobody is sent around in circles, and it
    is kept apart from the one that is to blame for as long as both are there.

    Args:
        limit: Slowdown (speed alone ÷ speed now) above which a job is stopped, unless the quotas say another one;
            infinite: nobody is ever stopped.
        foreseen: Stop a job, as in DeepShare, even if its slowdown is no surprise: for policies that do not look at the
            table, and so cannot have accepted it. Then a job whose slowdown is just the limit is stopped too.
        parts: Whether the two are kept apart afterwards.

    Raises:
        ValueError: The limit is not above 1.
    """

    def __init__(self, limit: float = SLOWDOWN_LIMIT, *, foreseen: bool = False, parts: bool = True) -> None:
        if not limit > 1:
            raise ValueError(f"limit={limit!r} would stop jobs that are not slowed down at all: give a number above 1.")
        self._limit = limit
        self._stops_foreseen = foreseen
        self._parts = parts
        self._foreseen: dict[str, dict[str, float]] = {}  # ratio of a job beside each other when one of them was placed

    def bind(self, state: State) -> None:
        """Called once, before anything else."""
        self._table, self._parted = state.learned.sensitivity, state.learned.anti_affinity

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """See the class. True, as the allocation has to look at the free devices, if a job was stopped."""
        match event:
            case ev.SlowdownMeasured(job_id, slowdown, "", (own, other)) if 0 < slowdown < math.inf:
                return self._learn(decision, job_id, slowdown, own, other)
            case ev.ContentionLearned(pairs, traffic):
                for own, other, slowdown in pairs:
                    if 0 < slowdown < math.inf:
                        self._table.learn(own, other, 1 / slowdown)
                for program, one in traffic:
                    self._table.communicates(program, one)
                return bool(pairs or traffic)
            case ev.NodesChanged(nodes):
                self._table.link(min((node.network_bps for node in nodes if node.network_bps > 0), default=0.0))
            case ev.JobEnded(job_id) | ev.JobWithdrawn(job_id):
                self._parted.forget(job_id)
                self._forget(job_id)
        return False

    def _learn(self, decision: Decision, job_id: str, slowdown: float, own: Key, other: Key) -> bool:
        before = self._table.ratio(own, other)
        self._table.learn(own, other, 1 / slowdown)
        job = decision.state.running.get(job_id)
        if job is None:
            return False
        running = running_jobs(decision)
        others = {
            name: one
            for name, one in beside(job_id, running).items()
            if one.key == other and decision.state.running[name].status is Status.TRAINING
        }
        if not others or running[job_id].key != own:
            return False  # they are together no more
        # What the table said when they were brought together, and not what it has learned from them since.
        known = self._foreseen.setdefault(job_id, {})
        expected = min(known.setdefault(name, before) for name in others)
        return self.stop(decision, job, slowdown, expected, others)

    def stop(self, decision: Decision, job: Job, slowdown: float, expected: float, blamed: Iterable[str]) -> bool:
        """Stop a job if it is slowed down too much; whether it was."""
        asked = decision.state.quotas.slowdown_limit
        limit = self._limit if asked is None or self._limit == math.inf else asked
        if self._stops_foreseen:
            too_slow = slowdown >= limit * (1 - _ROUNDING)
        else:
            too_slow = slowdown > max(limit, _SURPRISE / expected) * (1 + _ROUNDING)
        if not too_slow or not decision.may_stop(job) or job.stops >= MOST_STOPS:
            return False
        for other in blamed if self._parts else ():
            self._parted.part(job.id, other)
        decision.preempt(job, f"runs on its nodes slow it down by a factor of {slowdown:.2f}; the limit is {limit:.2f}")
        return True

    def after(self, decision: Decision) -> None:
        """Note what the table says of jobs that were just brought together."""
        started = [one.job for one in decision.instructions if isinstance(one, Launch | Move)]
        if started and not self._table.silent:
            running = running_jobs(decision)
            for name in started:
                self._foresee(name, running)

    def _foresee(self, name: str, running: dict[str, Running]) -> None:
        self._forget(name)
        own = running.get(name)
        if own is None or len(own.nodes) == 1 or not own.key.model:
            return
        for other, one in beside(name, running).items():
            if len(one.nodes) > 1:
                self._foreseen.setdefault(name, {})[other] = self._table.ratio(own.key, one.key)
                self._foreseen.setdefault(other, {})[name] = self._table.ratio(one.key, own.key)

    def _forget(self, job_id: str) -> None:
        for other in self._foreseen.pop(job_id, ()):
            self._foreseen.get(other, {}).pop(job_id, None)


def beside(name: str, running: dict[str, Running]) -> dict[str, Running]:
    """The jobs that share a node with this one, and of whose program something may be known."""
    own = running.get(name)
    if own is None:
        return {}
    return {other: one for other, one in running.items() if other != name and one.key.model and one.nodes & own.nodes}
