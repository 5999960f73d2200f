"""What jobs are told by allocations that look at all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.scheduling.allocation.base import tell_line, why_not

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision


def tell_the_rest(decision: Decision) -> None:
    """Tell those who still wait, and have not been told yet, why no node can hold them now."""
    for line in decision.state.queue_of_waiting.lines():
        if line.untold or line.told is None:
            tell_line(decision, line, *why_not(decision, line))
