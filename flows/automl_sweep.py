"""Search for the best model: Optuna proposes, the pool trains several trials at a time, the best one is kept.

Run it here, with the trials in the pool:

    python flows/automl_sweep.py

or deploy everything (``prefect deploy --all --prefect-file deployments/prefect.yaml``) and start it from the UI.
To adapt it: put your data into `load`, your training into a function like `train_mlp`, its search space into
`propose`.
"""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import joblib
import numpy as np
import optuna
import xgboost
from optuna.trial import FrozenTrial, Trial, TrialState
from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from sklearn import datasets
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from prefect_gpu import gpu, training_run
from prefect_gpu.training.callbacks.xgboost import XGBoostReporter, load_booster

Dataset = Literal["digits", "breast_cancer", "wine"]
CHECKPOINT_EVERY = 5.0  # seconds; from there a trial carries on elsewhere when its node is lost


class Split(NamedTuple):
    """Train on the first pair, choose by the second, report the third."""

    x: np.ndarray
    y: np.ndarray
    x_validation: np.ndarray
    y_validation: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load(dataset: Dataset, seed: int) -> Split:
    """A data set that ships with scikit-learn, split 60/20/20; the same split for the same seed."""
    x, y = getattr(datasets, f"load_{dataset}")(return_X_y=True)
    split = partial(train_test_split, random_state=seed)
    x, x_rest, y, y_rest = split(x, y, test_size=0.4, stratify=y)
    x_validation, x_test, y_validation, y_test = split(x_rest, y_rest, test_size=0.5, stratify=y_rest)
    return Split(x, y, x_validation, y_validation, x_test, y_test)


@gpu(work_pool="gpus", gpus=1, category="tabular")
@flow(name="train-mlp", flow_run_name="mlp {dataset} {hidden} lr {lr:.2g}", retries=2, persist_result=True)
def train_mlp(
    model_path: str,
    dataset: Dataset = "digits",
    hidden: int = 64,
    lr: float = 1e-3,
    alpha: float = 1e-4,
    batch_size: int = 32,
    epochs: int = 30,
    seed: int = 0,
) -> dict[str, float]:
    """Train a neural network and save it.

    Args:
        model_path: Where the model goes (joblib, a scikit-learn pipeline).
        dataset: What to learn.
        hidden: Neurons in the hidden layer.
        lr: Learning rate of Adam.
        alpha: L2 regularisation.
        batch_size: Samples per update.
        epochs: Passes over the training data.
        seed: Of the split, the weights and the order of the samples.

    Returns:
        Accuracy on the ``validation`` and ``test`` data.
    """
    with training_run(steps=epochs, batch_size=batch_size, checkpoint_every=CHECKPOINT_EVERY) as run:
        data = load(dataset, seed)
        scaler = StandardScaler().fit(data.x)
        model = run.restore(joblib.load) or MLPClassifier(
            (hidden,), learning_rate_init=lr, alpha=alpha, batch_size=min(batch_size, len(data.x)), random_state=seed
        )
        x, x_validation = scaler.transform(data.x), scaler.transform(data.x_validation)
        run.ready()
        for _ in run.steps():
            model.partial_fit(x, data.y, classes=np.unique(data.y))  # one pass, in small batches
            run.report(
                loss=model.loss_,
                accuracy=model.score(x_validation, data.y_validation),
                checkpoint=partial(joblib.dump, model),
            )
    with run.saving():
        pipeline = make_pipeline(scaler, model)
        joblib.dump(pipeline, model_path)
        return {
            "validation": float(pipeline.score(data.x_validation, data.y_validation)),
            "test": float(pipeline.score(data.x_test, data.y_test)),
        }


@gpu(work_pool="gpus", gpus=1, category="tabular")
@flow(
    name="train-xgboost",
    flow_run_name="xgboost {dataset} depth {max_depth} lr {lr:.2g}",
    retries=2,
    persist_result=True,
)
def train_xgboost(
    model_path: str,
    dataset: Dataset = "digits",
    max_depth: int = 4,
    lr: float = 0.3,
    subsample: float = 1.0,
    rounds: int = 60,
    seed: int = 0,
) -> dict[str, float]:
    """Train gradient-boosted trees and save them.

    Args:
        model_path: Where the model goes (XGBoost's own format).
        dataset: What to learn.
        max_depth: Depth of a tree.
        lr: Learning rate (XGBoost's eta).
        subsample: Share of the samples that each tree sees.
        rounds: Boosting rounds.
        seed: Of the split and of the sampling.

    Returns:
        Accuracy on the ``validation`` and ``test`` data.
    """
    with training_run(steps=rounds, checkpoint_every=CHECKPOINT_EVERY) as run:
        data = load(dataset, seed)
        train = xgboost.DMatrix(data.x, data.y)
        validation = xgboost.DMatrix(data.x_validation, data.y_validation)
        restored = run.restore(load_booster)
        parameters = {
            "objective": "multi:softmax",
            "num_class": len(np.unique(data.y)),
            "max_depth": max_depth,
            "eta": lr,
            "subsample": subsample,
            "seed": seed,
        }
        run.ready()
        model = xgboost.train(
            parameters,
            train,
            num_boost_round=run.steps_left,
            evals=[(validation, "validation")],
            verbose_eval=False,
            xgb_model=restored,
            callbacks=[XGBoostReporter(run)],
        )
    with run.saving():
        model.save_model(model_path)
        return {
            "validation": float(np.mean(model.predict(validation) == data.y_validation)),
            "test": float(np.mean(model.predict(xgboost.DMatrix(data.x_test)) == data.y_test)),
        }


def propose(trial: Trial, effort: float = 1.0) -> tuple[Any, dict[str, Any], str]:
    """The search space: a training function, its parameters, and what its model file is called."""
    if trial.suggest_categorical("family", ["mlp", "xgboost"]) == "mlp":
        return (
            train_mlp,
            {
                "hidden": trial.suggest_int("hidden", 8, 256, log=True),
                "lr": trial.suggest_float("mlp_lr", 1e-4, 1e-1, log=True),
                "alpha": trial.suggest_float("alpha", 1e-6, 1e-1, log=True),
                "batch_size": trial.suggest_categorical("batch_size", [16, 32, 64, 128]),
                "epochs": max(1, round(30 * effort)),
            },
            "joblib",
        )
    return (
        train_xgboost,
        {
            "max_depth": trial.suggest_int("max_depth", 2, 8),
            "lr": trial.suggest_float("xgboost_lr", 1e-2, 1.0, log=True),
            "subsample": trial.suggest_float("subsample", 0.5, 1.0),
            "rounds": max(1, round(60 * effort)),
        },
        "ubj",
    )


@flow(name="automl-sweep")
def automl_sweep(
    dataset: Dataset = "digits",
    trials: int = 12,
    parallel: int = 2,
    directory: str = "models/sweep",
    seed: int = 0,
    effort: float = 1.0,
    where: Literal["pool", "here"] = "pool",
) -> dict[str, Any]:
    """Find the best model for a data set.

    The same seed proposes the same trials, however long each of them takes: results are told to Optuna in the
    order of the trials, and trial n is proposed when trial n - parallel has been told.

    Args:
        dataset: What to learn.
        trials: How many models to train.
        parallel: How many at a time.
        directory: Where the best model and its description go. In the pool, a folder that all runs see.
        seed: Of the proposals, the split and the trainings.
        effort: How long each trial trains, in multiples of the usual number of epochs or rounds.
        where: ``pool`` trains in the GPU pool; ``here`` one after the other in this process, without a server.

    Returns:
        The best model's description, as in ``best.json``.

    Raises:
        ValueError: ``trials`` or ``parallel`` is below 1.
        RuntimeError: Every trial failed.
    """
    for field, value in (("trials", trials), ("parallel", parallel)):
        if value < 1:
            raise ValueError(f"{field}={value} is not allowed: give at least 1.")
    folder = Path(directory).absolute()
    of_trials = folder / f"trials-{flow_run.id or 'here'}"  # another sweep may have the same folder
    of_trials.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))

    waiting: deque[tuple[Trial, Callable[[], dict[str, float]]]] = deque()
    for number in range(trials + parallel):
        if number >= parallel and waiting:
            tell(study, *waiting.popleft())
        if number < trials:
            trial = study.ask()
            train, parameters, suffix = propose(trial, effort)
            model = of_trials / f"{trial.number}.{suffix}"
            trial.set_user_attr("model", str(model))
            parameters |= {"model_path": str(model), "dataset": dataset, "seed": seed}
            waiting.append((trial, start(train, parameters, where)))

    if not study.get_trials(states=[TrialState.COMPLETE]):
        raise RuntimeError(f"All {trials} trials failed: look at one of their runs. The last: {why(study.trials[-1])}")
    description = keep(study.best_trial, folder, dataset)
    if flow_run.id:
        create_markdown_artifact(report(study, description), key="automl-sweep", description="The best model found")
    return description


def start(train: Any, parameters: dict[str, Any], where: str) -> Callable[[], dict[str, float]]:
    """Start one training, or only prepare it if it is to run here; call what is returned for its result."""
    return train.start(**parameters).result if where == "pool" else partial(train.fn, **parameters)


def tell(study: optuna.Study, trial: Trial, result: Callable[[], dict[str, float]]) -> None:
    """Wait for a trial and tell Optuna how it went. A failed one does not stop the sweep."""
    try:
        scores = result()
    except Exception as error:
        trial.set_user_attr("error", f"{type(error).__name__}: {error}")
        study.tell(trial, state=TrialState.FAIL)
    else:
        trial.set_user_attr("test", scores["test"])
        study.tell(trial, scores["validation"])


def why(trial: FrozenTrial) -> str:
    """Why a trial failed."""
    return str(trial.user_attrs.get("error", "no error was recorded"))


def keep(best: FrozenTrial, folder: Path, dataset: str) -> dict[str, Any]:
    """Keep the best model with its description and delete the others."""
    model = Path(best.user_attrs["model"])
    kept = folder / f"best{model.suffix}"
    model.replace(kept)
    shutil.rmtree(model.parent)
    description = {
        "dataset": dataset,
        "trial": best.number,
        "validation_accuracy": best.value,
        "test_accuracy": best.user_attrs["test"],
        "parameters": best.params,
        "model": str(kept),
    }
    (folder / "best.json").write_text(json.dumps(description, indent=2))
    return description


def report(study: optuna.Study, best: dict[str, Any]) -> str:
    """The sweep as a page for people."""
    finished = study.get_trials(states=[TrialState.COMPLETE])
    failed = study.get_trials(states=[TrialState.FAIL])
    lines = [
        f"# {best['parameters']['family']}: {best['test_accuracy']:.1%} of the test data right",
        f"Trial {best['trial']} of {len(study.trials)}, chosen by its validation accuracy. Model: `{best['model']}`",
        "",
        "| trial | validation | parameters |",
        "|---|---|---|",
    ]
    for trial in sorted(finished, key=lambda trial: trial.value or 0.0, reverse=True)[:10]:
        lines.append(f"| {trial.number} | {trial.value:.1%} | {readable(trial.params)} |")
    lines += ["", *(f"- Trial {trial.number} failed: {why(trial)}" for trial in failed)]
    return "\n".join(lines)


def readable(parameters: dict[str, Any]) -> str:
    """Parameters in one line."""
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in parameters.items()
    )


if __name__ == "__main__":
    print(json.dumps(automl_sweep(), indent=2))
