"""For how long a run is left alone after a launch: what it cost to start it is to be worth something."""

from __future__ import annotations

import math

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.elastic.listing1 import PROTECTED_LAUNCHES
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.reaction import Reaction

PREPARES_S = 60.0
MOST_S = 300.0


def left_alone_until(job: Job, most_s: float = MOST_S) -> float:
    """Until when a run is not to be stopped for others, as seconds on the clock of events.

    It is left alone until it has trained for three times as long as it took to get there, for ``most_s`` at most; one
    that does not train yet, for a minute after its launch, or three times as long as a launch is expected to take, five
    minutes at most. So whoever is stopped again and again still trains for most of the time that it holds its devices.
    Of a run whose launch was not seen, long ago.
    """
    if job.launched_at is None:
        return -math.inf
    if job.trains_since is None:
        return job.launched_at + min(MOST_S, max(PREPARES_S, PROTECTED_LAUNCHES * job.estimate.launching_s))
    return job.trains_since + min(most_s, PROTECTED_LAUNCHES * max(0.0, job.trains_since - job.launched_at))


def left_alone_for_s(job: Job) -> float:
    """Seconds for which one that is launched now will be left alone, as its launches take as long as is expected."""
    launching_s = job.estimate.launching_s
    return max(
        min(MOST_S, max(PREPARES_S, PROTECTED_LAUNCHES * launching_s)),
        launching_s + min(MOST_S, PROTECTED_LAUNCHES * launching_s),
    )


class MinimumRuntime(Reaction):
    """Looks again when a run that may be stopped is left alone no more; to be composed with :class:`.MakeRoom`."""

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """Note when that will be, as soon as the run trains."""
        if isinstance(event, ev.PhaseEntered) and event.status is Status.TRAINING:
            job = decision.state.jobs[event.job]
            takes_time = decision.abilities.preemption is Preemption.GRACEFUL
            if takes_time and decision.can_stop(job) and len(decision.state.queue_of_waiting):
                decision.look_again_at(left_alone_until(job))
        return False
