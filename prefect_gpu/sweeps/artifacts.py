"""What a sweep leaves on the page of its flow run: the table of its trials, and a picture of them."""

from __future__ import annotations

import base64
import io
import re
import warnings
from math import isfinite
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial
from prefect.artifacts import create_image_artifact, create_table_artifact
from prefect.runtime import flow_run

from prefect_gpu.sweeps.spoken import logger
from prefect_gpu.units import plural

_MOST_ROWS = 200


def show(study: optuna.Study, objective: str) -> None:
    """Make both, if this is a flow run. An error is logged: the study's result is worth more than its picture."""
    try:
        if flow_run.id and study.trials:
            _show(study, objective)
    except Exception as error:
        logger().warning("The table and the picture of the trials could not be made: %r", error)


def _show(study: optuna.Study, objective: str) -> None:
    key = re.sub(r"[^a-z0-9-]+", "-", study.study_name.lower()).strip("-") or "sweep"
    description = f"{plural(len(study.trials), 'trial')}, the best first"
    at_once: Any = {"_sync": True}  # else Prefect returns a coroutine in an async flow, and nobody awaits it
    create_table_artifact(table(study, objective), key=f"{key}-trials", description=description, **at_once)
    if picture := parallel_coordinates(study, objective):
        url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        create_image_artifact(
            url,
            key=f"{key}-parameters",
            description="Each line is a trial, also those that ended early",
            **at_once,
        )


def table(study: optuna.Study, objective: str) -> list[dict[str, Any]]:
    """A row for each trial: those that ended, the best first; then those that were pruned or failed."""
    sign = 1.0 if study.direction is optuna.study.StudyDirection.MINIMIZE else -1.0

    def rank(trial: FrozenTrial) -> tuple[int, float, int]:
        order = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        place = order.index(trial.state) if trial.state in order else len(order)
        return place, sign * trial.value if trial.value is not None else 0.0, trial.number

    def row(trial: FrozenTrial) -> dict[str, Any]:
        begin: dict[str, Any] = {
            "trial": trial.number,
            objective: None if trial.value is None else f"{trial.value:.6g}",
            "state": trial.state.name.lower(),
            "steps": trial.last_step,
        }
        end = {"run": trial.user_attrs.get("flow_run", "")}
        taken = begin.keys() | end  # a parameter may be called as a column is, such as steps, or a kind of loss
        params = {
            f"{name} (parameter)" if name in taken else name: f"{value:.4g}" if isinstance(value, float) else value
            for name, value in trial.params.items()
        }
        return begin | params | end

    return [row(trial) for trial in sorted(study.trials, key=rank)[:_MOST_ROWS]]


def parallel_coordinates(study: optuna.Study, objective: str) -> bytes | None:
    """A PNG with a line for each trial that has a value, whoever ended early with the last that it had reported.

    None without matplotlib, or with nothing to draw.
    """
    known = [trial for trial in study.trials if trial.value is not None and trial.params and isfinite(trial.value)]
    if len(known) < 2:
        return None
    # Optuna draws only trials that are complete.
    drawn_study = optuna.create_study(direction=study.direction)
    drawn_study.add_trials(
        create_trial(value=trial.value, params=trial.params, distributions=trial.distributions) for trial in known
    )
    try:
        import matplotlib
        from matplotlib import pyplot
        from optuna.visualization.matplotlib import plot_parallel_coordinate
    except ImportError:
        return None
    drawn, users = io.BytesIO(), matplotlib.get_backend()
    matplotlib.use("Agg")  # no window opens
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna calls its drawings experimental
            plot_parallel_coordinate(drawn_study, target_name=objective)
        figure = pyplot.gcf()
        figure.set_size_inches(9, 4)
        figure.savefig(drawn, format="png", dpi=90, bbox_inches="tight")
        pyplot.close(figure)
    finally:
        matplotlib.use(users)  # else what a notebook draws after its sweep would not be seen
    return drawn.getvalue()
