"""Runs that measure how much they are slowed down: what is learned of it, and who is stopped for it (§IV, §V-C)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.events import SlowdownMeasured
from prefect_gpu.scheduling.policies.contention import LEAST_RATIO, Running, SensitivityTable
from prefect_gpu.scheduling.policies.reaction import Reaction
from prefect_gpu.scheduling.policies.view import running_jobs

if TYPE_CHECKING:
    from prefect_gpu.scheduling.events import Event
    from prefect_gpu.scheduling.verbs import Desk

SLOWDOWN_LIMIT = 1 / LEAST_RATIO
MOST_STOPS = 3
_ROUNDING = 1e-9
_SURPRISE = 1.1  # slower by a tenth than expected


class StopTheSlowed(Reaction):
    """Learn from each measured slowdown, and preempt a job whose slowdown is above a limit, and a surprise.

    A job that shares its nodes with one other teaches the table what these two do to each other. Beside several, it is
    the one that is expected to slow it down most that is blamed, and only if matters are worse than expected.

    What was foreseen when the jobs were brought together is not undone: a job is stopped only if its slowdown is also
    larger than the table said. It is stopped only for others on its nodes, and only a few times, so that nobody is sent
    around in circles. A measurement counts only if the same jobs were beside it since an earlier decision: it says
    nothing of newcomers, and when one job was stopped, what the others measured before is void.

    Args:
        table: What is taught; that of the allocation, so that it does not start the same neighbours again.
        limit: Slowdown (speed alone ÷ speed now) above which a job is stopped.
        most_stops: How often a job is stopped at most.
        foreseen: Stop a job, as in the paper, even if its slowdown is no surprise: for policies that do not look at the
            table, and so cannot have accepted it. Then a job whose slowdown is just the limit is stopped too.

    Raises:
        ValueError: The limit is not above 1.
    """

    def __init__(
        self,
        table: SensitivityTable,
        limit: float = SLOWDOWN_LIMIT,
        most_stops: float = MOST_STOPS,
        *,
        foreseen: bool = False,
    ) -> None:
        if not limit > 1:
            raise ValueError(f"limit={limit!r} would stop jobs that nobody slows down: give a number above 1.")
        self._table = table
        self._limit = limit
        self._most_stops = most_stops
        self._foreseen = foreseen
        self._company: dict[str, tuple[frozenset[str], float]] = {}  # who is beside each job, and since when
        self._measured = False  # until anybody measures anything, nothing is kept

    def react(self, event: Event, desk: Desk) -> bool:
        """See the class. True, as the allocation has to look at the free devices, if a job was stopped."""
        if not isinstance(event, SlowdownMeasured) or not 0 < event.slowdown < math.inf:
            return False
        slowdown = event.slowdown
        self._measured = True
        job = desk.state.running.get(event.job)
        if job is None or not job.request.kind:
            return False
        running = running_jobs(desk)
        beside = _beside(job.id, running)
        known = self._company.get(job.id)
        if not beside or known is None or known[0] != frozenset(beside) or known[1] >= desk.now:
            return False
        expected = self._table.among(running[job.id].key, (other.key for other in beside.values()))
        self._learn(running[job.id], list(beside.values()), slowdown)
        if self._foreseen:
            too_slow = slowdown >= self._limit * (1 - _ROUNDING)
        else:
            too_slow = slowdown > max(self._limit, _SURPRISE / expected) * (1 + _ROUNDING)
        if not too_slow or not desk.may_stop(job) or job.stops >= self._most_stops:
            return False
        desk.preempt(job, f"others on its nodes slow it down {slowdown:.2f} times; the limit is {self._limit:.2f}")
        return True

    def after(self, desk: Desk) -> None:
        """Note who is beside whom."""
        if not self._measured:
            return
        running = running_jobs(desk)
        company = {}
        for name in running:
            beside = frozenset(_beside(name, running))
            known = self._company.get(name)
            company[name] = known if known is not None and known[0] == beside else (beside, desk.now)
        self._company = company

    def _learn(self, own: Running, beside: list[Running], slowdown: float) -> None:
        worst = min(beside, key=lambda other: self._table.ratio(own.key, other.key))
        if len(beside) == 1 or 1 / slowdown < self._table.ratio(own.key, worst.key):
            self._table.learn(own.key, worst.key, 1 / slowdown)


def _beside(name: str, running: dict[str, Running]) -> dict[str, Running]:
    """The jobs that share a node with this one, and of whose program something may be known."""
    own = running.get(name)
    if own is None:
        return {}
    return {other: one for other, one in running.items() if other != name and one.key.model and one.nodes & own.nodes}
