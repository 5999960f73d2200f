"""The flows of the search: one training for everybody. With plain Optuna it prunes itself, as Optuna's pages say.

Each report is noted as a line: Unix seconds, the validation loss, the step and the trial.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from prefect import flow

from prefect_gpu import training_run


@flow(persist_result=True)
def boosted(
    learning_rate: float,
    max_depth: int,
    subsample: float,
    max_features: float,
    min_samples_leaf: int,
    *,
    trace: str,
    steps: int,
    plain: list[Any] | None = None,
) -> float:
    """Gradient boosting on digits."""
    parameters = {"learning_rate": learning_rate, "max_depth": max_depth, "subsample": subsample}
    more = {"max_features": max_features, "min_samples_leaf": min_samples_leaf}
    return _train("boosted", {**parameters, **more}, trace, steps, plain)


@flow(persist_result=True)
def network(
    lr: float,
    momentum: float,
    channels: int,
    batch: int,
    decay: float,
    *,
    trace: str,
    steps: int,
    plain: list[Any] | None = None,
) -> float:
    """A small convolutional network on digits."""
    parameters = {"lr": lr, "momentum": momentum, "channels": channels, "batch": batch, "decay": decay}
    return _train("network", parameters, trace, steps, plain)


def _train(name: str, parameters: dict[str, Any], trace: str, steps: int, plain: list[Any] | None) -> float:
    """Train, report, and end early if that is said.

    Args:
        plain: Of plain Optuna: the study's storage, its name and the trial's id; None: the sweep sees to it.
    """
    from benchmarks.search.problems import PROBLEMS

    trial = _trial_of(*plain) if plain else None
    noted = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    loss = float("inf")
    with training_run(steps=steps) as run:
        problem = PROBLEMS[name](**parameters)
        run.restore(problem.load)
        for number in run.steps():
            loss = problem.step(number)
            os.write(noted, (json.dumps([time.time(), loss, number, os.getpid()]) + "\n").encode())
            run.report(loss=loss, checkpoint=problem.save)
            if trial is not None:
                trial.report(loss, number)
                if trial.should_prune():
                    trial.set_user_attr("pruned", True)
                    break
    return loss


def _trial_of(storage: str, study: str, trial: int) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Optuna's own pruner by default: the median.
    return optuna.trial.Trial(optuna.load_study(study_name=study, storage=storage), trial)
