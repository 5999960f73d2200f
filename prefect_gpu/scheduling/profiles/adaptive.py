"""Ours: the best composition that we know, and the default."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prefect_gpu.scheduling.allocation.adaptive import Adaptive
from prefect_gpu.scheduling.allocation.base import Allocation
from prefect_gpu.scheduling.cores.cpu_array import Lending
from prefect_gpu.scheduling.cores.search_by_utilisation import CoreHistory
from prefect_gpu.scheduling.cores.throttle_by_bandwidth import ThrottleByBandwidth
from prefect_gpu.scheduling.cores.throttle_by_step_rate import ThrottleByStepRate
from prefect_gpu.scheduling.cores.tuning import CoreTuning
from prefect_gpu.scheduling.elastic.allocation import Elastic, Protection
from prefect_gpu.scheduling.interference.anti_affinity import AntiAffinity
from prefect_gpu.scheduling.interference.preempt_on_slowdown import PreemptOnSlowdown
from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable
from prefect_gpu.scheduling.order.orders import LeastService
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.spread import Spread
from prefect_gpu.scheduling.preemption.minimum_runtime import MinimumRuntime
from prefect_gpu.scheduling.prescheduling.successor import Prescheduling
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.scheduling.sharing.demotion import Demotion
from prefect_gpu.scheduling.sharing.incompatible import Incompatible
from prefect_gpu.scheduling.sharing.rules import KnownCompany
from prefect_gpu.scheduling.sharing.speculation import Speculation
from prefect_gpu.scheduling.sharing.take_turns import TakeTurns


def adaptive(
    table: SensitivityTable | None = None,
    speeds: Mapping[Key, float] | None = None,
    placement: PlacementPolicy | None = None,
    around: Callable[[Allocation, CoreHistory], Allocation] = lambda allocation, _: allocation,
) -> Profile:
    """Ours.

    Args:
        table: How much jobs slow each other down on the network; None: nothing is known, and what is measured is
            learned. It is not guessed from a program's category: a guess keeps nobody waiting.
        speeds: Speeds of jobs alone by how they are spread, if measured.
        placement: Where a job goes if nobody slows it down.
        around: Puts another allocation around ours, for studies; it is also given what is known of cores.
    """
    history, apart, parted = CoreHistory(), Incompatible(), AntiAffinity()
    table = SensitivityTable(guesses=False) if table is None else table
    return Profile(
        "adaptive",
        LeastService(),
        placement=placement or Spread(),
        sharing=KnownCompany(apart),
        allocation=Elastic(around(Adaptive(history, table=table, parted=parted, speeds=speeds), history)),
        # Each does nothing where nobody says what it needs to know, or where the world cannot carry it out. The
        # eliminator comes before the tuning: it is to see what a run did with the cores it was measured with.
        reactions=(
            Protection(),
            MinimumRuntime(),
            Prescheduling(table=table),
            Speculation(),
            TakeTurns(apart),
            Demotion(),
            Lending(history),
            ThrottleByStepRate(ThrottleByBandwidth()),
            CoreTuning(history),
            PreemptOnSlowdown(table, unnamed=False, parted=parted),
        ),
    )


PROFILES: dict[str, Callable[[], Profile]] = {"adaptive": adaptive}
