"""How a program's trainings go on after their first steps, learned from its finished runs.

The first steps of a training are slower than its later ones (compilers, caches), or, where models grow while they are
trained, quicker. How much is much the same in all runs of a program, and corrects what the first steps say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from prefect_gpu.estimation.online.training import Training
from prefect_gpu.estimation.runs import MARKS, NOTHING_KNOWN, TRAINING_S, FinishedRun, Pace

_LEAST = 3  # runs before anything is said
_MOST = 1.0  # a single run's correction, as a logarithm, counts as this at most
_USUAL = 0.15  # scatter that is assumed, worth two runs


def learn_pace(runs: Iterable[FinishedRun]) -> Pace | None:
    """The pace of some runs of one program; None if too few of them were followed from their first step."""
    found = [errors for run in runs if (errors := _errors(run)) is not None]
    if len(found) < _LEAST:
        return None
    bias, std = [], []
    for at_mark in zip(*found, strict=True):
        mean = sum(at_mark) / (len(at_mark) + 1)
        squares = sum((error - mean) ** 2 for error in at_mark) + 2 * _USUAL**2
        bias.append(mean)
        std.append(math.sqrt(squares / (len(at_mark) + 2)))
    return Pace(tuple(bias), tuple(std))


def _errors(run: FinishedRun) -> list[float] | None:
    """By mark, how much slower the rest of a run was than its steps up to there let expect."""
    total, steps = run.measured.get(TRAINING_S), run.steps
    if total is None or not steps or not run.completed or any(mark not in run.pace for mark in MARKS):
        return None
    training = Training(NOTHING_KNOWN, steps, 0.0)
    found = []
    for mark in MARKS:
        seconds = run.pace[mark]
        training.report(-(-steps * mark // 100), seconds)
        outlook = training.outlook(seconds)
        left = total - seconds
        if outlook is None or outlook.remaining_s.median <= 0 or left <= 0:
            return None
        found.append(max(-_MOST, min(_MOST, math.log(left / outlook.remaining_s.median))))
    return found
