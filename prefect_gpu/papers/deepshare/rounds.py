"""Decisions in rounds: in between, jobs only wait."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.allocation.base import Action, tell_early

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision

ROUND_S = 300.0


class Rounds(Action):
    """Lets the actions after it decide in rounds only.

    One begins when a round's time has passed since the last one began, and someone waits.

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

    def act(self, decision: Decision) -> bool:
        """Whether no round begins now. Newcomers are told why they wait then, and the next round is asked for."""
        state = decision.state
        if self.round_s <= 0 or decision.now == self._began:
            return False
        next_at = self._began + self.round_s
        if decision.now < next_at - 1e-9:
            for line in state.queue_of_waiting.lines():
                for job in list(line.untold.values()):
                    if job.hold is None:
                        decision.hold(job, "round", f"jobs are started in rounds of {self.round_s:g} s")
            if len(state.queue_of_waiting):
                decision.look_again_at(next_at)
            tell_early(decision)
            return True
        if state.queue_of_waiting.lines():
            self._began = decision.now
            if state.running:
                decision.look_again_at(decision.now + self.round_s)
        return False


class StopAll(Action):
    """Where stopping and starting are free, all running jobs go back to the line, and everybody is chosen anew.

    It is what DeepShare's own simulator does with its baselines. Elsewhere, running jobs stay where they are.
    """

    def act(self, decision: Decision) -> bool:
        """See the class."""
        if decision.abilities.free_moves:
            for job in [job for job in decision.state.running.values() if decision.may_stop(job)]:
                decision.preempt(job, "a new round begins")
        return False
