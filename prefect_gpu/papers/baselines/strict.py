"""First come, first served to the letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.scheduling.allocation.backfill import room_for
from prefect_gpu.scheduling.allocation.base import Action, tell_early, tell_limit, tell_line, why_not

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.model.jobs import Job


class Strict(Action):
    """One pass over the waiting jobs that stops at the first one that does not fit: nobody ever passes anybody."""

    def act(self, decision: Decision) -> bool:
        """See the class."""
        tell_early(decision)
        state = decision.state
        blocked: Job | None = None
        walk = state.queue_of_waiting.in_order()
        for line, job in walk:
            decision.about = job
            if tell_limit(decision, line):
                walk.leave()
            elif blocked is not None:
                walk.leave()
                tell_line(decision, line, "order", f"{blocked.label} comes first")
            elif (placement := decision.placement.place(job, state, decision.sharing)) is not None:
                decision.launch(job, placement, room_for(placement, state))
            else:
                walk.leave()
                code, reason = why_not(decision, line)
                tell_line(decision, line, code, reason)
                blocked = job if code != "never" else None
        decision.about = None
        return True
