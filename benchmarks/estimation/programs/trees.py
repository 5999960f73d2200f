"""scikit-learn ensembles that grow step by step: gradient boosting and a random forest."""

from __future__ import annotations

from typing import Any

from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier

from benchmarks.estimation.programs.common import save, table
from prefect_gpu import training_run


def gradient_boosting(
    rows: int,
    columns: int,
    steps: int,
    trees_per_step: int,
    max_depth: int,
    subsample: float,
    loss: str,
    learning_rate: float,
    seed: int,
    **_: Any,
) -> None:
    """Boosted regression trees; the model then scores a table 30 times as large."""
    with training_run(steps=steps, features={"rows": rows, "columns": columns}) as run:
        data, target = table(30 * rows, columns, seed)
        train, wanted = data[:rows], target[:rows]
        model = GradientBoostingRegressor(
            n_estimators=0,
            max_depth=max_depth,
            subsample=subsample,
            loss=loss,
            learning_rate=learning_rate,
            warm_start=True,
            random_state=seed,
        )
        for _step in run.steps():
            model.n_estimators += trees_per_step
            model.fit(train, wanted)
            run.report(loss=model.train_score_[-1])
    with run.saving():
        save("model.bin", model=model, predictions=model.predict(data))


def random_forest(
    rows: int,
    columns: int,
    steps: int,
    max_depth: int,
    max_features: str | float,
    criterion: str,
    bootstrap: bool,
    classes: int,
    seed: int,
    **_: Any,
) -> None:
    """A random forest that gets one tree more a step."""
    with training_run(steps=steps, features={"rows": rows, "columns": columns}) as run:
        data, target = table(4 * rows, columns, seed, classes=classes)
        train, wanted = data[:rows], target[:rows]
        model = RandomForestClassifier(
            n_estimators=0,
            max_depth=max_depth,
            max_features=max_features,
            criterion=criterion,
            bootstrap=bootstrap,
            warm_start=True,
            random_state=seed,
        )
        for _step in run.steps():
            model.n_estimators += 1
            model.fit(train, wanted)
            run.report(accuracy=model.estimators_[-1].score(train[:200], wanted[:200]))
    with run.saving():
        save("model.bin", model=model, probabilities=model.predict_proba(data))
