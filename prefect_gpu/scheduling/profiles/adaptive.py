"""Ours: the best composition that we know, and the default."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prefect_gpu.scheduling.policies.allocation.adaptive import Adaptive
from prefect_gpu.scheduling.policies.allocation.elastic import Elastic, Protection
from prefect_gpu.scheduling.policies.apart import Apart
from prefect_gpu.scheduling.policies.contention import Key, SensitivityTable
from prefect_gpu.scheduling.policies.core_tuning import CoreTuning
from prefect_gpu.scheduling.policies.cores import CoreHistory
from prefect_gpu.scheduling.policies.cpu_array import Lending
from prefect_gpu.scheduling.policies.demotion import Demotion
from prefect_gpu.scheduling.policies.elimination import Eliminator
from prefect_gpu.scheduling.policies.grace import Grace
from prefect_gpu.scheduling.policies.order import LeastService
from prefect_gpu.scheduling.policies.parted import Parted
from prefect_gpu.scheduling.policies.placement import PlacementPolicy
from prefect_gpu.scheduling.policies.relief import Relief
from prefect_gpu.scheduling.policies.rotation import Spread
from prefect_gpu.scheduling.policies.separation import Separation
from prefect_gpu.scheduling.policies.sharing import KnownCompany
from prefect_gpu.scheduling.policies.slowed import StopTheSlowed
from prefect_gpu.scheduling.policies.speculation import Speculation
from prefect_gpu.scheduling.policies.successor import Successor
from prefect_gpu.scheduling.profiles.profile import Profile


def adaptive(
    table: SensitivityTable | None = None,
    speeds: Mapping[Key, float] | None = None,
    placement: PlacementPolicy | None = None,
) -> Profile:
    """Ours.

    Args:
        table: How much jobs slow each other down on the network; None: nothing is known, and what is measured is
            learned. It is not guessed from a program's category: a guess keeps nobody waiting.
        speeds: Speeds of jobs alone by how they are spread, if measured.
        placement: Where a job goes if nobody slows it down.
    """
    history, apart, parted = CoreHistory(), Apart(), Parted()
    table = SensitivityTable(guesses=False) if table is None else table
    return Profile(
        "adaptive",
        LeastService(),
        placement=placement or Spread(),
        sharing=KnownCompany(apart),
        allocation=Elastic(Adaptive(history, table=table, parted=parted, speeds=speeds)),
        # Each does nothing where nobody says what it needs to know, or where the world cannot carry it out. The
        # eliminator comes before the tuning: it is to see what a run did with the cores it was measured with.
        reactions=(
            Protection(),
            Grace(),
            Successor(table=table),
            Speculation(),
            Separation(apart),
            Demotion(),
            Lending(history),
            Relief(Eliminator()),
            CoreTuning(history),
            StopTheSlowed(table, unnamed=False, parted=parted),
        ),
    )


PROFILES: dict[str, Callable[[], Profile]] = {"adaptive": adaptive}
