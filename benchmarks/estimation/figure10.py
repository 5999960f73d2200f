"""Liquid's Fig. 10 on our trainings: error against the number of runs learned from, for six ways to learn."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from typing import Any

import numpy as np

from benchmarks.estimation.contenders import ours, plain, r2, rmse
from prefect_gpu.estimation.program.regressors import REGRESSORS
from prefect_gpu.estimation.runs import CPU_CORES, LAUNCHING_S, MEMORY_BYTES, SAVING_S, STEP_S, TRAINING_S, FinishedRun

MEASURED = (TRAINING_S, STEP_S, LAUNCHING_S, SAVING_S, MEMORY_BYTES, CPU_CORES)
TEST_RUNS = 50  # as in the paper
PROCESSES = 2
OURS = "prefect-gpu"

Scores = dict[str, dict[str, dict[str, float]]]  # by way to learn, target, figure


def split(runs: Sequence[FinishedRun], train: int, number: int) -> tuple[list[FinishedRun], list[FinishedRun]]:
    """Random runs to learn from, and 50 others; no run is among the others of two numbers up to :func:`splits_of`."""
    mixed = list(runs)
    random.Random(0).shuffle(mixed)
    asked = mixed[TEST_RUNS * number : TEST_RUNS * (number + 1)]
    others = mixed[: TEST_RUNS * number] + mixed[TEST_RUNS * (number + 1) :]
    random.Random(number).shuffle(others)
    return others[:train], asked


def splits_of(runs: Sequence[FinishedRun]) -> range:
    """As many test sets as there are without a run in common."""
    return range(len(runs) // TEST_RUNS)


def compare(runs: Sequence[FinishedRun], train: int, seeds: Sequence[int], contenders: Sequence[str]) -> Scores:
    """Median figures over some splits: R², RMSE, and for ours how often the 90 % interval held (a mean)."""
    with ProcessPoolExecutor(PROCESSES) as pool:
        splits = list(pool.map(_one_split, repeat(runs), repeat(train), seeds, repeat(contenders)))
    scores: Scores = defaultdict(lambda: defaultdict(dict))
    for name, target, figure in splits[0]:
        values = [found[name, target, figure] for found in splits]
        scores[name][target][figure] = (statistics.mean if figure == "held" else statistics.median)(values)
    return {name: dict(by_target) for name, by_target in scores.items()}


def _one_split(
    runs: Sequence[FinishedRun], train: int, seed: int, contenders: Sequence[str]
) -> dict[tuple[str, str, str], float]:
    """By way to learn, target and figure."""
    found: dict[tuple[str, str, str], float] = {}
    learned, asked = split(runs, train, seed)
    intervals = ours(learned, asked, MEASURED)
    for target in MEASURED:
        measured = np.array([run.measured[target] for run in asked])
        medians = np.array([one.median for one in intervals[target]])
        held = [one.low <= value <= one.high for one, value in zip(intervals[target], measured, strict=True)]
        found[OURS, target, "held"] = float(np.mean(held))
        found[OURS, target, "relative"] = float(np.median(np.abs(medians - measured) / measured))
        predictions = {OURS: medians} | {name: plain(name, learned, asked, target) for name in contenders}
        for name, predicted in predictions.items():
            found[name, target, "r2"] = r2(measured, predicted)
            found[name, target, "rmse"] = rmse(measured, predicted)
    return found


def unseen(runs: Sequence[FinishedRun], programs: Sequence[str]) -> dict[str, Any]:
    """Each of some programs is estimated from the runs of all others. R² over all of them together."""
    gathered: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in (OURS, "random-forest")}
    truth: dict[str, list[float]] = defaultdict(list)
    held: dict[str, list[bool]] = defaultdict(list)
    for program in programs:
        learned = [run for run in runs if run.known.program != program]
        asked = [run for run in runs if run.known.program == program]
        intervals = ours(learned, asked, MEASURED)
        for target in MEASURED:
            truth[target] += [run.measured[target] for run in asked]
            gathered[OURS][target] += [one.median for one in intervals[target]]
            held[target] += [
                one.low <= run.measured[target] <= one.high for one, run in zip(intervals[target], asked, strict=True)
            ]
            gathered["random-forest"][target] += plain(
                "random-forest", learned, asked, target, with_program=False
            ).tolist()
    return {
        target: {
            "held": float(np.mean(held[target])),
            **{
                name: {
                    "r2": r2(np.array(truth[target]), np.array(predicted[target])),
                    "off_by_factor": float(
                        np.exp(np.median(np.abs(np.log(np.array(predicted[target]) / np.array(truth[target])))))
                    ),
                }
                for name, predicted in gathered.items()
            },
        }
        for target in MEASURED
    }


ALL = tuple(REGRESSORS)
