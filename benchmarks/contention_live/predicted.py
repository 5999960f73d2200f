"""What the simulator says of the same gangs in many orders: whether the measured ones were lucky.

It is told what was measured of pairs of classes, and how long gangs take to begin and to end.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks._gangs.cluster import Cluster
from benchmarks._gangs.pool import PLACING_ALONE, Outcome
from benchmarks.contention_live import workload
from benchmarks.contention_live.sensitivities import Pairs
from prefect_gpu.papers.patience import without_patience
from prefect_gpu.scheduling.interference.sensitivity import SensitivityTable
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.simulation.effects.contention import Contention
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World

_ORDERS = 10


@dataclass(frozen=True)
class Ends:
    """Seconds from a grant to the first step, and from the last step to the end of all four processes."""

    launching_s: float
    saving_s: float


def ends_of(outcomes: Sequence[Outcome]) -> Ends:
    """The medians of the gangs that were never stopped."""
    whole = [one for one in outcomes if not one.stops]
    return Ends(
        statistics.median(one.training_s - one.granted_s for one in whole),
        statistics.median(one.ended_s - one.training_s - sum(one.step_s) for one in whole),
    )


def mean_jct_s(cluster: Cluster, name: str, seed: int, pairs: Pairs, ends: Ends) -> float:
    """Of one policy in one order; nobody is stopped.

    Raises:
        RuntimeError: A gang never ended.
    """
    jobs = [
        JobModel(
            gang.name,
            0.0,
            gang.estimate.service_s or 0.0,
            gang.request(cluster.cores_asked),
            launching_s=ends.launching_s,
            saving_s=ends.saving_s,
            estimate=gang.estimate,
            kind=gang.program.name,
        )
        for gang in workload.gangs(seed)
    ]
    truth = Contention(SensitivityTable({(own, other): 1 / slowdown for own, other, slowdown in pairs}))
    world = World(cluster.nodes, jobs, without_patience(name), physics=truth, abilities=PLACING_ALONE)
    world.scheduler.handle(ev.ContentionLearned(pairs), 0.0)
    results = world.run()
    if results.unfinished:
        raise RuntimeError(f"{len(results.unfinished)} gangs never ended under {name}, {results.unfinished[0]}")
    return statistics.mean(outcome.jct_s for outcome in results.outcomes)


def many_orders(
    cluster: Cluster, ours: Sequence[str], theirs: Sequence[str], pairs: Pairs, ends: Ends, orders: int = _ORDERS
) -> dict[str, dict[str, float]]:
    """By how many per cent ours differ in their mean time to completion from theirs: mean, least and most."""
    said = {
        name: [mean_jct_s(cluster, name, seed, pairs, ends) for seed in range(1, 1 + orders)]
        for name in (*ours, *theirs)
    }
    found = {}
    for one in ours:
        for other in theirs:
            changes = [100.0 * (a / b - 1.0) for a, b in zip(said[one], said[other], strict=True)]
            found[f"{one} against {other}"] = {
                "mean": round(statistics.mean(changes), 1),
                "least": round(max(changes), 1),
                "most": round(min(changes), 1),
            }
    return found
