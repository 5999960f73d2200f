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


class StopTheSlowed(Reaction):
    """Learn from each measured slowdown, and preempt a job whose slowdown has reached a limit.

    A job that shares its nodes with one other teaches the table what these two do to each other. Beside several, it is
    the one that is expected to slow it down most that is blamed, and only if matters are worse than expected.

    A job is stopped only for others on its nodes, and only a few times, so that nobody is sent around in circles; and
    of jobs on the same nodes one at a time, as the others' measurements are void when it is gone.

    Args:
        table: What is taught; that of the allocation, so that it does not start the same neighbours again.
        limit: Slowdown (speed alone ÷ speed now) from which on a job is stopped.
        most_stops: How often a job is stopped at most.

    Raises:
        ValueError: The limit is not above 1.
    """

    def __init__(self, table: SensitivityTable, limit: float = SLOWDOWN_LIMIT, most_stops: int = MOST_STOPS) -> None:
        if not limit > 1:
            raise ValueError(f"limit={limit!r} would stop jobs that nobody slows down: give a number above 1.")
        self._table = table
        self._limit = limit
        self._most_stops = most_stops
        self._settling: tuple[float, frozenset[int]] = (0.0, frozenset())  # moment, nodes that someone left then

    def react(self, event: Event, desk: Desk) -> bool:
        """See the class. True, as the allocation has to look at the free devices, if a job was stopped."""
        if not isinstance(event, SlowdownMeasured) or not 0 < event.slowdown < math.inf:
            return False
        slowdown = event.slowdown
        job = desk.state.running.get(event.job)
        if job is None or not job.request.kind:
            return False
        running = running_jobs(desk)
        own = running.pop(job.id, None)
        if own is None:
            return False
        beside = [other for other in running.values() if other.nodes & own.nodes and other.key.model]
        since, left = self._settling
        if not beside or (since == desk.now and left & own.nodes):
            return False
        self._learn(own, beside, slowdown)
        if slowdown < self._limit or not desk.may_stop(job) or job.stops >= self._most_stops:
            return False
        self._settling = (desk.now, own.nodes | (left if since == desk.now else frozenset()))
        reason = f"others on its nodes slow it down {slowdown:.2f} times, and the limit is {self._limit:.2f}"
        desk.preempt(job, reason)
        return True

    def _learn(self, own: Running, beside: list[Running], slowdown: float) -> None:
        worst = min(beside, key=lambda other: self._table.ratio(own.key, other.key))
        if len(beside) == 1 or 1 / slowdown < self._table.ratio(own.key, worst.key):
            self._table.learn(own.key, worst.key, 1 / slowdown)
