"""What a trained policy reaches on job sets: needs numpy alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import fmean

from prefect_gpu.papers.deepshare.contended import draw
from prefect_gpu.papers.deepshare.profiles import base, hybrid
from prefect_gpu.papers.deepshare.trained_policy import TrainedPolicy
from prefect_gpu.papers.deepshare.world import DeepShareWorld
from prefect_gpu.scheduling.interference.sensitivity import SensitivityTable
from prefect_gpu.simulation.traces import ContentionTable, TraceJob


def unseen_sets(mix: str, sets: int = 3, jobs: int = 256) -> list[list[TraceJob]]:
    """Job sets of a mix that no training draws: their seeds are of another kind."""
    return [draw(-1 - at, jobs, mix) for at in range(sets)]


def score(
    policy: TrainedPolicy,
    sets: Sequence[Iterable[TraceJob]],
    table: ContentionTable,
    *,
    with_rule: bool = False,
    flaw: bool = False,
) -> dict[str, float]:
    """The figures of the profile with this policy, each the mean over the job sets.

    Args:
        policy: The policy.
        sets: Job sets.
        table: Speeds and ratios, known to the profile.
        with_rule: Score ``deepshare-hybrid``, not ``deepshare-base``.
        flaw: See :class:`~prefect_gpu.papers.deepshare.world_in_rounds.RoundCluster`.
    """
    make = hybrid if with_rule else base
    found = []
    for jobs in sets:
        world = DeepShareWorld(jobs, table, make(SensitivityTable(table.ratios), table.isolated, policy), flaw=flaw)
        world.run()
        found.append({**asdict(world.figures()), "unfinished": float(len(world.results.unfinished))})
    return {name: fmean(one[name] for one in found) for name in found[0]}
