"""CODA (Zhao et al., ICDCS 2020): cores tuned, arrays for CPU and GPU jobs, contention eliminated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from prefect_gpu.papers.baselines.orders import Drf
from prefect_gpu.papers.coda.free_cores import FreeCores
from prefect_gpu.papers.coda.multi_array import MultiArray
from prefect_gpu.papers.coda.owners import ArraysSuit
from prefect_gpu.scheduling.allocation.base import When
from prefect_gpu.scheduling.cores.throttle import ThrottleByBandwidth
from prefect_gpu.scheduling.cores.tuning import CoreTuning
from prefect_gpu.scheduling.order.orders import Fifo, Order
from prefect_gpu.scheduling.profiles import get_profile
from prefect_gpu.scheduling.profiles.adaptive import adaptive
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.scheduling.sharing.rules import NoSharing


def _coda(name: str, *, eliminates: bool = True) -> Profile:
    return Profile(
        name,
        sharing=NoSharing(),
        allocation=(MultiArray(),),
        # The eliminator first: it is to see what a run did with the cores it was measured with.
        reactions=(*((ThrottleByBandwidth(),) if eliminates else ()), CoreTuning(keeps_asked=False, least_use=0.0)),
        patience_s=math.inf,
    )


def _as_asked(name: str, order: Order) -> Profile:
    return Profile(name, order, FreeCores(), NoSharing(), patience_s=math.inf)


def of_owners(name: str) -> Profile:
    """The profile where all jobs say whose they are: with it, ``adaptive`` has CODA's arrays.

    Raises:
        ValueError: There is none of that name.
    """
    if name != "adaptive":
        return get_profile(name)
    found = adaptive()
    resize, *others = found.allocation
    return replace(found, allocation=(resize, When(ArraysSuit(), MultiArray()), *others))


PROFILES: dict[str, Callable[[], Profile]] = {
    "coda": lambda: _coda("coda"),
    "coda-without-eliminator": lambda: _coda("coda-without-eliminator", eliminates=False),
    "coda-fifo": lambda: _as_asked("coda-fifo", Fifo()),
    "coda-drf": lambda: _as_asked("coda-drf", Drf()),
}
