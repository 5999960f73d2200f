"""Ours: the best composition that we know, and the default."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prefect_gpu.scheduling.allocation.adaptive import Adaptive
from prefect_gpu.scheduling.allocation.base import Allocation
from prefect_gpu.scheduling.cores.cpu_array import Lending
from prefect_gpu.scheduling.cores.throttle_by_bandwidth import ThrottleByBandwidth
from prefect_gpu.scheduling.cores.throttle_by_step_rate import ThrottleByStepRate
from prefect_gpu.scheduling.cores.tuning import CoreTuning
from prefect_gpu.scheduling.elastic.allocation import Elastic, Protection
from prefect_gpu.scheduling.interference.preempt_on_slowdown import PreemptOnSlowdown
from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable
from prefect_gpu.scheduling.order.orders import LeastService
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.spread import Spread
from prefect_gpu.scheduling.preemption.minimum_runtime import MinimumRuntime
from prefect_gpu.scheduling.prescheduling.successor import Prescheduling
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.scheduling.sharing.demotion import Demotion
from prefect_gpu.scheduling.sharing.rules import KnownCompany
from prefect_gpu.scheduling.sharing.speculation import Speculation
from prefect_gpu.scheduling.sharing.take_turns import TakeTurns
from prefect_gpu.scheduling.state.learned import Learned


def adaptive(
    table: SensitivityTable | None = None,
    speeds: Mapping[Key, float] | None = None,
    placement: PlacementPolicy | None = None,
    around: Callable[[Allocation], Allocation] = lambda allocation: allocation,
) -> Profile:
    """Ours.

    Args:
        table: How much jobs slow each other down on the network; None: nothing is known, and what is measured is
            learned. It is not guessed from a program's category: a guess keeps nobody waiting.
        speeds: Speeds of jobs alone by how they are spread, if measured.
        placement: Where a job goes if nobody slows it down.
        around: Puts another allocation around ours, for studies.
    """
    return Profile(
        "adaptive",
        LeastService(),
        placement=placement or Spread(),
        sharing=KnownCompany(),
        allocation=Elastic(around(Adaptive(speeds=speeds))),
        # Each does nothing where nobody says what it needs to know, or where the world cannot carry it out. The
        # eliminator comes before the tuning: it is to see what a run did with the cores it was measured with.
        reactions=(
            Protection(),
            MinimumRuntime(),
            Prescheduling(),
            Speculation(),
            TakeTurns(),
            Demotion(),
            Lending(),
            ThrottleByStepRate(ThrottleByBandwidth()),
            CoreTuning(),
            PreemptOnSlowdown(unnamed=False),
        ),
        learned=Learned(SensitivityTable(guesses=False) if table is None else table),
    )


PROFILES: dict[str, Callable[[], Profile]] = {"adaptive": adaptive}
