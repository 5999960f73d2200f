"""What sizes do to costs in all programs alike: the slopes that a program with few runs starts from.

Twice the batch size is about twice the time of a step, whatever is trained. Where programs share names of parameters,
the slopes of their logarithms are learned from all of them together, each program with a level of its own (Liquid's one
model for all, §4). A program's own model then only has to learn how it differs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from prefect_gpu.estimation.program.features import LEAST_SPREAD, Value, flatten
from prefect_gpu.estimation.runs import TARGETS, FinishedRun
from prefect_gpu.estimation.scales import to_scale

LEAST_PROGRAMS = 3  # that share a name before it says anything
_RIDGE = 4.0  # worth as many runs in which nothing depends on anything

Slopes = Mapping[str, float]  # by column, of the logarithm of its value


def shared_slopes(programs: Sequence[Sequence[FinishedRun]]) -> dict[str, dict[str, float]]:
    """By target, the slopes that all programs have in common; what runs declare of themselves is left out."""
    runs = [[(_submitted(run), run.measured) for run in its] for its in programs]
    found = {}
    for target in TARGETS:
        telling = [[(facts, to_scale(target, its[target])) for facts, its in own if target in its] for own in runs]
        found[target] = _learn([([facts for facts, _ in own], np.array([y for _, y in own])) for own in telling])
    return found


def _submitted(run: FinishedRun) -> dict[str, Value]:
    return {name: value for name, value in flatten(run.known)[0].items() if name[0] != "@"}


def _learn(programs: Sequence[tuple[Sequence[Mapping[str, Value]], np.ndarray]]) -> dict[str, float]:
    told = [(_logarithms(facts), y) for facts, y in programs if len(y) > 1]
    counts = Counter(name for columns, _ in told for name in columns)
    names = sorted(name for name, count in counts.items() if count >= LEAST_PROGRAMS)
    if not names:
        return {}
    x = np.vstack([np.column_stack([_centred(columns, name, len(y)) for name in names]) for columns, y in told])
    away = np.concatenate([y - y.mean() for _, y in told])
    spread = np.maximum(x.std(axis=0), LEAST_SPREAD)
    x = x / spread
    slopes = np.linalg.solve(x.T @ x + _RIDGE * np.eye(len(names)), x.T @ away) / spread
    return dict(zip(names, slopes.tolist(), strict=True))


def expected(facts: Mapping[str, Value], slopes: Slopes) -> float:
    """What the slopes make of a run's sizes, on the learned scale, up to the level of its program."""
    sizes = ((slope, facts.get(name)) for name, slope in slopes.items())
    return sum(slope * math.log(value) for slope, value in sizes if isinstance(value, float) and value > 0)


def _logarithms(facts: Sequence[Mapping[str, Value]]) -> dict[str, np.ndarray]:
    """By column, the logarithms of what varies among the runs of a program and is positive in all of them."""
    found = {}
    for name in facts[0]:
        values = [run.get(name) for run in facts]
        if all(isinstance(value, float) and value > 0 for value in values):
            logs = np.log(np.array(values, dtype=float))
            if np.ptp(logs) > 1e-9:
                found[name] = logs
    return found


def _centred(columns: Mapping[str, np.ndarray], name: str, count: int) -> np.ndarray:
    return columns[name] - columns[name].mean() if name in columns else np.zeros(count)
