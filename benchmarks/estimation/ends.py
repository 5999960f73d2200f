"""How well is the end of a training known while it is under way?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.estimation.contenders import submitted
from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.online.training import Training
from prefect_gpu.estimation.runs import MARKS, TRAINING_S, FinishedRun


def errors(
    estimator: Estimator, runs: Sequence[FinishedRun], progress: Mapping[str, Mapping[int, float]], upto: int
) -> list[float]:
    """Relative errors of the predicted training time after so many per cent of the steps.

    What is reported is the time at which 1, 2, 3, 5, ... per cent of the steps were done, up to ``upto``; 0: nothing.
    """
    found = []
    for run in runs:
        steps = run.steps or 0
        training = Training(estimator.estimate(submitted(run).known), steps, 0.0)
        now = 0.0
        for percent, seconds in sorted(progress[run.run_id].items()):
            if percent <= upto:
                training.report(-(-steps * percent // 100), seconds)
                now = seconds
        outlook = training.outlook(now)
        if outlook is not None:
            found.append(abs(outlook.total_s.median - run.measured[TRAINING_S]) / run.measured[TRAINING_S])
    return found


def by_percent(
    splits: Sequence[tuple[Sequence[FinishedRun], Sequence[FinishedRun]]], progress: Mapping[str, Mapping[int, float]]
) -> dict[int, float]:
    """The median error after 0, 1, 2, ... per cent of the steps.

    Args:
        splits: Pairs of (runs to learn from, runs to predict); the errors of all of them are pooled.
        progress: By run and percent, seconds since its training began.
    """
    asked = [(Estimator(learned), runs) for learned, runs in splits]
    return {
        percent: statistics.median(
            error for estimator, runs in asked for error in errors(estimator, runs, progress, percent)
        )
        for percent in (0, *MARKS)
    }
