"""Ours and the five regressors of Liquid's Fig. 10, asked the same question: what will these runs need?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.program.features import flatten
from prefect_gpu.estimation.program.regressors import make_regressor
from prefect_gpu.estimation.runs import FinishedRun, Interval

_ID_LIKE = 20  # different texts in a column from which on the contenders are spared it


def submitted(run: FinishedRun) -> FinishedRun:
    """The run as it was when it was submitted: it had not declared anything yet."""
    return replace(run, known=replace(run.known, declared={}))


def ours(train: Sequence[FinishedRun], test: Sequence[FinishedRun], target: Sequence[str]) -> dict[str, list[Interval]]:
    """Our intervals of the test runs, by target; a target that cannot be estimated is left out."""
    estimator = Estimator(train)
    estimates = [estimator.estimate(submitted(run).known) for run in test]
    return {
        name: [one.targets[name] for one in estimates]
        for name in target
        if all(name in one.targets for one in estimates)
    }


def plain(
    name: str, train: Sequence[FinishedRun], test: Sequence[FinishedRun], target: str, *, with_program: bool = True
) -> np.ndarray:
    """What a regressor of Fig. 10 predicts, used as the paper says: job type and parameters in, the value itself out.

    Categories, the program among them, become columns of 0 and 1; what a program has no parameter for is the median of
    the others'; columns of ids, which would only hurt the contenders, are taken away beforehand.
    """
    rows = [flatten(submitted(run).known)[0] for run in (*train, *test)]
    table = pd.DataFrame(rows)
    if with_program:
        table["program"] = [run.known.program for run in (*train, *test)]
    numbers = table.select_dtypes("number")
    texts = table.select_dtypes(exclude="number").astype("string")
    texts = texts[[column for column in texts if texts[column].nunique() <= _ID_LIKE]]
    numbers = numbers.fillna(numbers.iloc[: len(train)].median()).fillna(0.0)
    x = pd.concat([numbers, pd.get_dummies(texts)], axis=1).to_numpy(float)
    regressor = make_regressor(name, runs=len(train))
    regressor.fit(x[: len(train)], np.array([run.measured[target] for run in train]))
    return np.asarray(regressor.predict(x[len(train) :]), dtype=float)


def r2(measured: np.ndarray, predicted: np.ndarray) -> float:
    """The part of the variance that is explained; 1 is all of it."""
    return 1.0 - float(((measured - predicted) ** 2).sum() / ((measured - measured.mean()) ** 2).sum())


def rmse(measured: np.ndarray, predicted: np.ndarray) -> float:
    """Root of the mean squared error, in the target's unit."""
    return float(np.sqrt(np.mean((measured - predicted) ** 2)))
