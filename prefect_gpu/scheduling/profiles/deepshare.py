"""DeepShare (Ryu & Eo, 2023): placement by contention sensitivity.

No trained policy is shipped yet: until one is, the profile ``deepshare`` is the paper's RL-Hybrid without the RL. The
greedy rule, a search of one step, decides everything, and jobs that are slowed down too much are preempted. A policy
that was trained can be given to :func:`hybrid`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from prefect_gpu.scheduling.policies.allocation.composed import Composed
from prefect_gpu.scheduling.policies.allocation.contention import ContentionAware
from prefect_gpu.scheduling.policies.allocation.rounds import HeadOfLine
from prefect_gpu.scheduling.policies.contention import TRAFFIC, Key, SensitivityTable
from prefect_gpu.scheduling.policies.order import LeastService, Order
from prefect_gpu.scheduling.policies.peer_orders import LeastComplete, MostServed
from prefect_gpu.scheduling.policies.sharing import NoSharing
from prefect_gpu.scheduling.policies.slowed import SLOWDOWN_LIMIT, StopTheSlowed
from prefect_gpu.scheduling.policies.spreading import EvenSpread
from prefect_gpu.scheduling.policies.view import Policy
from prefect_gpu.scheduling.profiles.profile import Profile

GPUS_POWER = 1.5
LEAST_USED = 0.75


def _baseline(name: str, order: Order) -> Profile:
    return Profile(
        name, order, placement=EvenSpread(), sharing=NoSharing(), allocation=HeadOfLine(), patience_s=math.inf
    )


def greedy(
    table: SensitivityTable | None = None, speeds: Mapping[Key, float] | None = None, *, gpus_power: float = GPUS_POWER
) -> Profile:
    """The greedy rule alone.

    Args:
        table: How much jobs slow each other down; None predicts it from the traffic of the paper's six models.
        speeds: Speeds of jobs alone by how they are spread, if measured.
        gpus_power: Weight of the GPUs; see :func:`~prefect_gpu.scheduling.policies.contention.choose_start`.
    """
    table = predicted() if table is None else table
    allocation = ContentionAware(table, speeds, gpus_power=gpus_power)
    return Profile("deepshare-greedy", LeastService(), sharing=NoSharing(), allocation=allocation, patience_s=math.inf)


def hybrid(
    table: SensitivityTable | None = None,
    speeds: Mapping[Key, float] | None = None,
    policy: Policy | None = None,
    *,
    limit: float = SLOWDOWN_LIMIT,
    round_s: float = 0.0,
    gpus_power: float = GPUS_POWER,
) -> Profile:
    """RL-Hybrid (§IV): a policy, the greedy rule where it starts nothing, and preemption of jobs that are slowed down.

    The rule is there to keep the cluster busy: below three quarters of the devices in use it also starts jobs that will
    slow each other down a lot, if clearly more is done in all.

    Args:
        table: As for :func:`greedy`; it learns from measured slowdowns.
        speeds: As for :func:`greedy`.
        policy: What decides first. None, as long as no trained one is shipped: the greedy rule decides alone.
        limit: Slowdown above which a job is stopped.
        round_s: Decide only so often; a policy that was trained in rounds wants 300. 0: whenever something changes.
        gpus_power: As for :func:`greedy`.
    """
    table = predicted() if table is None else table
    allocation = ContentionAware(table, speeds, policy, least_used=LEAST_USED, gpus_power=gpus_power, round_s=round_s)
    return Profile(
        "deepshare",
        LeastService(),
        sharing=NoSharing(),
        allocation=allocation,
        reactions=(StopTheSlowed(table, limit),),
        patience_s=math.inf,
    )


def search(table: SensitivityTable | None = None, speeds: Mapping[Key, float] | None = None) -> Profile:
    """All compositions of jobs on each group of nodes are looked at; see :class:`.Composed`.

    Args:
        table: As for :func:`greedy`.
        speeds: As for :func:`greedy`.
    """
    allocation = Composed(predicted() if table is None else table, speeds)
    return Profile("deepshare-search", LeastService(), sharing=NoSharing(), allocation=allocation, patience_s=math.inf)


def predicted() -> SensitivityTable:
    """A table that predicts contention from the traffic of the paper's models (Table I), and learns."""
    return SensitivityTable(traffic=TRAFFIC)


PROFILES: dict[str, Callable[[], Profile]] = {
    "deepshare": hybrid,
    "deepshare-greedy": greedy,
    "deepshare-search": search,
    "deepshare-las": lambda: _baseline("deepshare-las", MostServed()),
    "deepshare-srtf": lambda: _baseline("deepshare-srtf", LeastComplete()),
}
