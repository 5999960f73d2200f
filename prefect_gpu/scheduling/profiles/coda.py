"""CODA (Zhao et al., ICDCS 2020): cores tuned, arrays for CPU and GPU jobs, contention eliminated."""

from __future__ import annotations

import math
from collections.abc import Callable

from prefect_gpu.scheduling.policies.allocation.multi_array import MultiArray
from prefect_gpu.scheduling.policies.core_tuning import CoreTuning
from prefect_gpu.scheduling.policies.cores import CoreHistory
from prefect_gpu.scheduling.policies.elimination import Eliminator
from prefect_gpu.scheduling.policies.free_cores import FreeCores
from prefect_gpu.scheduling.policies.order import Drf, Fifo, Order
from prefect_gpu.scheduling.policies.sharing import NoSharing
from prefect_gpu.scheduling.profiles.profile import Profile


def _coda(name: str, *, eliminates: bool = True) -> Profile:
    history = CoreHistory()
    return Profile(
        name,
        sharing=NoSharing(),
        allocation=MultiArray(history),
        # The eliminator first: it is to see what a run did with the cores it was measured with.
        reactions=(*((Eliminator(),) if eliminates else ()), CoreTuning(history, keeps_asked=False)),
        patience_s=math.inf,
    )


def _as_asked(name: str, order: Order) -> Profile:
    return Profile(name, order, FreeCores(), NoSharing(), patience_s=math.inf)


PROFILES: dict[str, Callable[[], Profile]] = {
    "coda": lambda: _coda("coda"),
    "coda-without-eliminator": lambda: _coda("coda-without-eliminator", eliminates=False),
    "coda-fifo": lambda: _as_asked("coda-fifo", Fifo()),
    "coda-drf": lambda: _as_asked("coda-drf", Drf()),
}
