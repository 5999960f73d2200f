"""The experiments of Ryu & Eo (2023): four nodes of eight GPUs, and its policy against its authors' two baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from prefect_gpu.papers.comparison import Comparison
from prefect_gpu.papers.deepshare.contended import draw, predicted_table
from prefect_gpu.papers.deepshare.profiles import knowing
from prefect_gpu.papers.deepshare.world import DeepShareWorld
from prefect_gpu.scheduling.interference.sensitivity import SensitivityTable
from prefect_gpu.scheduling.profiles import Profile, get_profile
from prefect_gpu.simulation.results import quantile
from prefect_gpu.simulation.traces import ContentionTable, TraceJob, read_contention, read_trace

Figures = dict[str, float]

MEAN_RUNNING = "mean running time [s] (the authors' JCT)"
P90_RUNNING = "p90 running time [s] (the authors' JCT)"
MEAN_COMPLETION = "mean completion [s], waiting included"

# metric: improvement of RL-Hybrid over SRTF and over LAS (§VI)
_PAPER = {MEAN_RUNNING: (0.121, 0.151), P90_RUNNING: (0.164, 0.207), MEAN_COMPLETION: (0.121, 0.151)}
_BASELINES = {"deepshare-srtf": "SRTF as the authors' code has it", "deepshare-las": "LAS as the authors' code has it"}

_ASSUMED = (
    "The profile is RL-Hybrid without a trained network: the greedy rule decides. All jobs wait at 0, for 2, 4 or 8 "
    "GPUs (as in the authors' job sets; the paper says up to 32), in rounds of 300 s. The authors' baselines serve the "
    "most-served job and the least complete one first. All jobs are on two or four nodes, but for adaptive, which may "
    "put one on a single node: it then has its speed on two nodes, and no part in the contention (not measured). "
)
_PREDICTED = (
    "Throughput ratios are predicted from the bandwidth and comm/comp of Table I, in the world as in the profile."
)
_MEASURED = "Throughput ratios and speeds are those that the authors measured and publish."


def compare(quick: bool = False, tables: Path | None = None) -> list[Comparison]:
    """The paper's figures beside ours.

    Args:
        quick: One small job set.
        tables: The authors' folder with ``jobs`` (measured tables) and ``traces`` (job sets), to use these. None draws
            job sets of the paper's mix, and predicts contention from its Table I.
    """
    if tables is None:
        truth, assumed = predicted_table(), _ASSUMED + _PREDICTED
        sets = [draw(seed, 48 if quick else 256) for seed in range(1 if quick else 3)]
    else:
        truth, assumed = read_contention(tables / "jobs"), _ASSUMED + _MEASURED
        sets = [list(read_trace(tables / "traces" / "simulate" / "trace0"))]
    setting = f"normal mix, {len(sets[0])} jobs" + (", measured contention" if tables else "")
    baselines = {name: _mean(sets, truth, partial(get_profile, name)) for name in _BASELINES}
    ours = _mean(sets, truth, lambda: knowing("deepshare", SensitivityTable(truth.ratios), truth.isolated))
    adaptive = _mean(sets, truth, partial(get_profile, "adaptive"))
    return [
        Comparison(
            "deepshare",
            setting,
            metric,
            against,
            None,
            None,
            improvement,
            baselines[name][metric],
            ours[metric],
            adaptive[metric],
            assumed=assumed,
        )
        for metric, paper in _PAPER.items()
        for improvement, (name, against) in zip(paper, _BASELINES.items(), strict=True)
    ]


def run(jobs: Iterable[TraceJob], table: ContentionTable, profile: Profile) -> Figures:
    """The figures of one job set under one profile."""
    world = DeepShareWorld(jobs, table, profile, flaw=False)
    world.run()
    running = sorted(outcome.trained_s for outcome in world.results.finished)
    return {
        MEAN_RUNNING: fmean(running),
        P90_RUNNING: quantile(running, 0.9),
        MEAN_COMPLETION: world.figures().completion_s,
    }


def _mean(sets: Sequence[Sequence[TraceJob]], table: ContentionTable, profile: Callable[[], Profile]) -> Figures:
    figures = [run(jobs, table, profile()) for jobs in sets]
    return {metric: fmean(one[metric] for one in figures) for metric in figures[0]}
