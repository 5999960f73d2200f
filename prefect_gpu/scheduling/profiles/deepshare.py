"""DeepShare (Ryu & Eo, 2023): placement by contention sensitivity.

No trained policy is shipped yet: the profile ``deepshare`` is the paper's RL-Hybrid with a search of one step in the
place of the network. A policy that was trained can be given to :func:`hybrid`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from prefect_gpu.scheduling.policies.allocation.contention import ContentionAware
from prefect_gpu.scheduling.policies.allocation.rounds import HeadOfLine
from prefect_gpu.scheduling.policies.contention import TRAFFIC, Key, SensitivityTable
from prefect_gpu.scheduling.policies.order import LeastService, Order
from prefect_gpu.scheduling.policies.peer_orders import LeastComplete, MostServed
from prefect_gpu.scheduling.policies.sharing import NoSharing
from prefect_gpu.scheduling.policies.spreading import EvenSpread
from prefect_gpu.scheduling.profiles.profile import Profile


def _baseline(name: str, order: Order) -> Profile:
    return Profile(
        name, order, placement=EvenSpread(), sharing=NoSharing(), allocation=HeadOfLine(), patience_s=math.inf
    )


def greedy(
    table: SensitivityTable | None = None, speeds: Mapping[Key, float] | None = None, *, gpus_power: float = 1.5
) -> Profile:
    """The greedy rule alone. Without a table, contention is predicted from the traffic of the paper's six models."""
    allocation = ContentionAware(table or SensitivityTable(traffic=TRAFFIC), speeds, gpus_power=gpus_power)
    return Profile("deepshare-greedy", LeastService(), sharing=NoSharing(), allocation=allocation, patience_s=math.inf)


PROFILES: dict[str, Callable[[], Profile]] = {
    "deepshare-las": lambda: _baseline("deepshare-las", MostServed()),
    "deepshare-srtf": lambda: _baseline("deepshare-srtf", LeastComplete()),
    "deepshare-greedy": greedy,
}
