"""Ours: the best composition that we know, and the default."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.allocation.base import When
from prefect_gpu.scheduling.allocation.batch import Batch
from prefect_gpu.scheduling.cores.cpu_array import CpuArray, Lending
from prefect_gpu.scheduling.cores.throttle import ThrottleByBandwidth, ThrottleByStepRate
from prefect_gpu.scheduling.cores.tuning import CoreTuning
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.elastic.resize import Protection, Resize
from prefect_gpu.scheduling.elastic.resize_gangs import ResizeGangs
from prefect_gpu.scheduling.fair_share.telling import by_share
from prefect_gpu.scheduling.interference.guard import InterferenceGuard, contention_known
from prefect_gpu.scheduling.interference.preempt_on_slowdown import PreemptOnSlowdown
from prefect_gpu.scheduling.order.orders import HigherFirst, LeastService
from prefect_gpu.scheduling.placement.by_kind import ByKind
from prefect_gpu.scheduling.placement.keep_worth import KeepWorth
from prefect_gpu.scheduling.placement.spread import Spread
from prefect_gpu.scheduling.preemption.give_way import GiveWay
from prefect_gpu.scheduling.preemption.make_room import MakeRoom
from prefect_gpu.scheduling.preemption.minimum_runtime import MinimumRuntime
from prefect_gpu.scheduling.preemption.whole_set import WholeSet, why_it_waits
from prefect_gpu.scheduling.prescheduling.successor import Prescheduling
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.scheduling.promises.keep import KeepPromises
from prefect_gpu.scheduling.sharing.demotion import Demotion
from prefect_gpu.scheduling.sharing.rules import KnownCompany
from prefect_gpu.scheduling.sharing.speculation import Speculation
from prefect_gpu.scheduling.sharing.take_turns import TakeTurns

MOST_LATE = 8.0
"""See :class:`.Profile`. Chosen on ElasticFlow's clusters 2 and 10, Muri's trace 3, and draws from all of these: with
4, the mean completion time is longer by 1 % there, and without a bound it is hardly shorter."""


def adaptive() -> Profile:
    """Ours."""
    whole_set = WholeSet()
    return Profile(
        "adaptive",
        HigherFirst(LeastService()),
        placement=CpuArray(ByKind(KeepWorth(Spread()))),
        sharing=KnownCompany(),
        allocation=(
            KeepPromises(),
            Resize(),
            ResizeGangs(),
            When(_stay_where_they_start, Batch()),
            whole_set,
            Backfill(MakeRoom(urgent=True), InterferenceGuard(), give_way=GiveWay(), why=by_share(why_it_waits)),
        ),
        # Each does nothing where nobody says what it needs to know, or where the world cannot carry it out. The
        # eliminator comes before the tuning: it is to see what a run did with the cores it was measured with.
        reactions=(
            Protection(),
            MinimumRuntime(),
            Prescheduling(returns=True, choice=whole_set.behind),
            Speculation(),
            TakeTurns(),
            Demotion(),
            Lending(),
            ThrottleByStepRate(ThrottleByBandwidth()),
            CoreTuning(),
            PreemptOnSlowdown(),
        ),
        most_late=MOST_LATE,
        heeds_shares=True,
    )


def _stay_where_they_start(decision: Decision) -> bool:
    """Whether a burst is placed together: gangs wait, or some job may not be stopped.

    Not while gangs wait of which it is known how they slow others down: the batch knows of no such thing. What decides
    is what the jobs say, those that run and those that wait, and not what the world could do.
    """
    if decision.state.quotas.shares is not None:  # it knows nothing of whose turn it is
        return False
    firsts = [line.entries[0][1] for line in decision.state.queue_of_waiting.lines()]
    gangs = [job for job in firsts if job.request.is_gang and not job.request.grows]
    if any(contention_known(job, decision.state) for job in gangs):
        return False
    return bool(gangs or decision.state.firm_count) or not all(map(decision.can_stop, firsts))


PROFILES: dict[str, Callable[[], Profile]] = {"adaptive": adaptive}
