"""Ends runs that have held their devices for as long as they may."""

from __future__ import annotations

from prefect_gpu.scheduling.decision import Decision


def end_at_limit(decision: Decision) -> None:
    """Have runs end whose time is over: the time for which they have held devices, all launches together.

    This is done for all profiles; where no run has a limit, it does nothing.
    """
    state, now = decision.state, decision.now
    for job in list(state.limited.values()):
        limit_s = job.request.time_limit_s
        if limit_s is None or job.expired or job.behind is not None:
            continue
        due = now + (limit_s - job.attained(now))
        if due > now:  # what is left may be too little to make another moment of it
            decision.look_again_at(due)
        else:
            decision.expire(job, f"its time limit of {limit_s:g} s is reached")
