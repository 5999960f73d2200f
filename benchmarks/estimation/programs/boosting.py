"""xgboost with histograms: a regression, and a classification whose cost grows with the number of classes."""

from __future__ import annotations

from typing import Any

import xgboost

from benchmarks.estimation.programs.common import save, table
from prefect_gpu import training_run


def xgb_regression(
    rows: int,
    columns: int,
    steps: int,
    max_depth: int,
    max_bin: int,
    subsample: float,
    grow_policy: str,
    eta: float,
    seed: int,
    **_: Any,
) -> None:
    """Boosted trees on a large table."""
    features = {"rows": rows, "columns": columns}
    with training_run(steps=steps, features=features) as run:
        data, target = table(rows, columns, seed)
        settings: dict[str, Any] = {"max_depth": max_depth, "max_bin": max_bin, "subsample": subsample, "eta": eta}
        settings |= {"grow_policy": grow_policy, "tree_method": "hist", "nthread": 1, "seed": seed}
        _boost(run, data, target, settings)


def xgb_classes(
    rows: int,
    columns: int,
    steps: int,
    num_class: int,
    max_depth: int,
    colsample_bytree: float,
    min_child_weight: float,
    eta: float,
    seed: int,
    **_: Any,
) -> None:
    """One tree for each class a step."""
    features = {"rows": rows, "columns": columns, "classes": num_class}
    with training_run(steps=steps, features=features) as run:
        data, target = table(rows, columns, seed, classes=num_class)
        settings = {"objective": "multi:softprob", "num_class": num_class, "max_depth": max_depth, "eta": eta}
        settings |= {"colsample_bytree": colsample_bytree, "min_child_weight": min_child_weight}
        settings |= {"tree_method": "hist", "nthread": 1, "seed": seed}
        _boost(run, data, target, settings)


def _boost(run: Any, data: Any, target: Any, settings: dict[str, Any]) -> None:
    matrix = xgboost.QuantileDMatrix(data, target, nthread=1, max_bin=settings.get("max_bin", 256))
    model = xgboost.Booster(settings, [matrix])
    for step in run.steps():
        model.update(matrix, step)
        run.report()
    with run.saving():  # the leaf of each tree, which others use as features, for half of the rows
        half = xgboost.DMatrix(data[: len(data) // 2], nthread=1)
        leaves = model.predict(half, pred_leaf=True)
        save("model.bin", model=bytes(model.save_raw("ubj")), predictions=model.predict(matrix), leaves=leaves)
