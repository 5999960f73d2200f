"""Gather the jobs that come shortly after one another, to place them together (§5.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.scheduling.allocation.base import Action, tell_early, tell_line

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision


class Window(Action):
    """The first job that arrives opens a window. Nobody is placed until it closes.

    Unless somebody waits already who came in an earlier one: then there is a batch without waiting.

    Args:
        window_s: How long a window is open, seconds.
    """

    def __init__(self, window_s: float = 5.0) -> None:
        if window_s < 0:
            raise ValueError(f"window_s={window_s}: give seconds of 0 or more")
        self._window_s = window_s
        self._closes_at: float | None = None
        self._seen: set[str] = set()  # jobs that were there when a window closed

    def act(self, decision: Decision) -> bool:
        """Whether a window is open. Asks to be woken when it closes."""
        lines = decision.state.queue_of_waiting.lines()
        waiting = {job.id for line in lines for _, job in line.entries}
        self._seen &= waiting
        if not waiting or self._seen or self._window_s <= 0:
            self._closes_at = None
        elif self._closes_at is None:
            self._closes_at = decision.now + self._window_s
        if self._closes_at is not None and decision.now < self._closes_at:
            left_s = self._closes_at - decision.now
            for line in lines:
                tell_line(decision, line, "due", f"it is placed in {left_s:.0f} s, with runs that arrive until then")
            decision.look_again_at(self._closes_at)
            tell_early(decision)
            return True
        self._closes_at = None
        self._seen = waiting
        return False
