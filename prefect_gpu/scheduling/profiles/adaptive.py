"""Ours: the best composition that we know, and the default."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.scheduling.policies.allocation.adaptive import Adaptive
from prefect_gpu.scheduling.policies.allocation.elastic import Elastic, Protection
from prefect_gpu.scheduling.policies.apart import Apart
from prefect_gpu.scheduling.policies.core_tuning import CoreTuning
from prefect_gpu.scheduling.policies.cores import CoreHistory
from prefect_gpu.scheduling.policies.cpu_array import Lending
from prefect_gpu.scheduling.policies.demotion import Demotion
from prefect_gpu.scheduling.policies.elimination import Eliminator
from prefect_gpu.scheduling.policies.grace import Grace
from prefect_gpu.scheduling.policies.order import LeastService
from prefect_gpu.scheduling.policies.relief import Relief
from prefect_gpu.scheduling.policies.rotation import Spread
from prefect_gpu.scheduling.policies.separation import Separation
from prefect_gpu.scheduling.policies.sharing import KnownCompany
from prefect_gpu.scheduling.policies.speculation import Speculation
from prefect_gpu.scheduling.policies.successor import Successor
from prefect_gpu.scheduling.policies.weights import Weights
from prefect_gpu.scheduling.profiles.profile import Profile


def _adaptive() -> Profile:
    history, apart, weights = CoreHistory(), Apart(), Weights()
    return Profile(
        "adaptive",
        LeastService(),
        placement=Spread(),
        sharing=KnownCompany(apart),
        allocation=Elastic(Adaptive(history)),
        # Each does nothing where nobody says what it needs to know, or where the world cannot carry it out. The
        # eliminator comes before the tuning: it is to see what a run did with the cores it was measured with.
        reactions=(
            Protection(),
            Grace(),
            Successor(),
            Speculation(),
            Separation(apart, weights),
            Demotion(weights),
            Lending(history),
            Relief(weights, Eliminator()),
            CoreTuning(history, weights=weights),
        ),
    )


PROFILES: dict[str, Callable[[], Profile]] = {"adaptive": _adaptive}
