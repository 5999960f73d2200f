"""Allocations that decide in rounds: in between, jobs only wait."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.allocation.backfill import Strict
from prefect_gpu.scheduling.allocation.base import tell_early

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision

ROUND_S = 300.0


class Rounds:
    """A clock for rounds: one begins when a round's time has passed since the last one began, and someone waits.

    Args:
        round_s: Seconds; 0 makes every event a round.

    Raises:
        ValueError: ``round_s`` is negative or no number.
    """

    def __init__(self, round_s: float = ROUND_S) -> None:
        if not 0 <= round_s < math.inf:
            raise ValueError(f"round_s={round_s!r} is no duration: give seconds, such as {ROUND_S:g}, or 0 for none.")
        self.round_s = round_s
        self._began = -math.inf

    def begin(self, decision: Decision) -> bool:
        """Whether a round begins now. If not, newcomers are told why they wait, and the next round is asked for."""
        state = decision.state
        if self.round_s <= 0 or decision.now == self._began:
            return True
        next_at = self._began + self.round_s
        if decision.now < next_at - 1e-9:
            for line in state.queue_of_waiting.lines():
                for job in list(line.untold.values()):
                    if job.hold is None:
                        decision.hold(job, "round", f"jobs are started in rounds of {self.round_s:g} s")
            if len(state.queue_of_waiting):
                decision.look_again_at(next_at)
            return False
        if state.queue_of_waiting.due_count:
            self._began = decision.now
            if state.running:
                decision.look_again_at(decision.now + self.round_s)
        return True


class HeadOfLine(Strict):
    """In each round, start jobs in order from the head of the line, until one does not fit.

    Where stopping and starting are free, all running jobs go back to the line first, as in DeepShare's own simulator
    of its baselines; elsewhere, running jobs stay where they are.

    Args:
        round_s: Seconds between two rounds.
    """

    def __init__(self, round_s: float = ROUND_S) -> None:
        self._rounds = Rounds(round_s)

    def allocate(self, decision: Decision) -> None:
        """See the class."""
        if not self._rounds.begin(decision):
            tell_early(decision)
            return
        if decision.abilities.free_moves:
            for job in [job for job in decision.state.running.values() if decision.may_stop(job)]:
                decision.preempt(job, "a new round begins")
        super().allocate(decision)
