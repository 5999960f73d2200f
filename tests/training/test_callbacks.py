"""The callbacks against the real libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier
from sklearn.svm import LinearSVC

from prefect_gpu.training import training_run
from prefect_gpu.training.callbacks.sklearn import fit_incrementally, fit_warm_start
from prefect_gpu.training.callbacks.xgboost import XGBoostReporter, load_booster
from prefect_gpu.training.protocol import CHECKPOINT, ENV_CHECKPOINTS, PROGRESS, STOP
from tests.training.conftest import as_another_process

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4))
Y = (X[:, 0] + 0.3 * RNG.normal(size=200) > 0).astype(int)
PARAMS = {"objective": "binary:logistic", "eval_metric": ["logloss", "auc"], "nthread": 1}
BATCHES = [(X[:100], Y[:100]), (X[100:], Y[100:])]


def matrix() -> Any:
    return xgboost.DMatrix(X, Y)


def valid_loss(model: Any) -> float:
    return float(log_loss(Y, model.predict_proba(X)))


def test_xgboost_reports_the_first_metric_as_loss_and_the_others_by_name(pool: Any) -> None:
    history: dict[str, Any] = {}
    with training_run(steps=5) as run:
        xgboost.train(
            PARAMS, matrix(), 5, evals=[(matrix(), "valid")], evals_result=history, verbose_eval=False,
            callbacks=[XGBoostReporter(run)],
        )  # fmt: skip
    with run.saving():
        pass
    assert pool.losses == [[step + 1, loss] for step, loss in enumerate(history["valid"]["logloss"])]
    assert pool.data(PROGRESS)[-1]["metrics"] == {"valid_auc": history["valid"]["auc"][-1]}
    assert pool.phases == ["preparing", "training", "saving", "finished"]


def test_xgboost_reports_the_metric_that_was_chosen(pool: Any) -> None:
    with training_run(steps=2) as run:
        model = xgboost.XGBClassifier(
            n_estimators=2,
            eval_metric=["logloss", "auc"],
            callbacks=[XGBoostReporter(run, data="validation_1", metric="auc")],
        )
        model.fit(X, Y, eval_set=[(X, Y), (X[:50], Y[:50])], verbose=False)
    with run.saving():
        pass
    assert [loss for _, loss in pool.losses] == model.evals_result()["validation_1"]["auc"]


@pytest.mark.parametrize("arguments", [{"data": "test"}, {"metric": "rmse"}])
def test_xgboost_names_a_metric_that_is_not_there(arguments: dict[str, str]) -> None:
    with training_run() as run, pytest.raises(ValueError, match=r"there is only (valid|logloss, auc)"):
        xgboost.train(PARAMS, matrix(), 1, evals=[(matrix(), "valid")], callbacks=[XGBoostReporter(run, **arguments)])
    with training_run() as run, pytest.raises(ValueError, match="nothing is evaluated"):
        xgboost.train(PARAMS, matrix(), 1, callbacks=[XGBoostReporter(run, **arguments)])


def test_xgboost_without_evaluation_counts_rounds_and_cv_reports_means() -> None:
    with training_run(steps=3) as run:
        xgboost.train(PARAMS, matrix(), 3, callbacks=[XGBoostReporter(run)])
    assert run.step == 3
    with training_run(steps=3, checkpoint_every=1e-9) as run:
        xgboost.cv(PARAMS, matrix(), 3, nfold=2, callbacks=[XGBoostReporter(run)])
    assert run.step == 3


def test_xgboost_carries_on_to_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path))
    with training_run(steps=6, checkpoint_every=1e-9) as run:
        xgboost.train(PARAMS, matrix(), 4, callbacks=[XGBoostReporter(run)])
    as_another_process()
    with training_run(steps=6) as run:
        booster = run.restore(load_booster)
        assert run.steps_left == 2
        booster = xgboost.train(PARAMS, matrix(), run.steps_left, xgb_model=booster, callbacks=[XGBoostReporter(run)])
    assert run.step == 6 and booster.num_boosted_rounds() == 6
    whole = xgboost.train(PARAMS, matrix(), 6)
    np.testing.assert_allclose(booster.predict(matrix()), whole.predict(matrix()), rtol=1e-5)


def test_xgboost_stops_with_a_checkpoint(pool: Any) -> None:
    pool.instruct(STOP, reason="enough")
    with training_run(steps=500) as run:
        pool.wait_for(lambda: pool.phases)
        while run._mailbox.stop is None:
            pass
        booster = xgboost.train(PARAMS, matrix(), 500, callbacks=[XGBoostReporter(run)])
    with run.saving():
        pass
    assert booster.num_boosted_rounds() == 1 and run.stopped == "enough"
    assert [event["step"] for event in pool.data(CHECKPOINT)] == [1]


@pytest.mark.parametrize("batches", [BATCHES, lambda: iter(BATCHES)])
def test_partial_fit_passes_are_steps(pool: Any, batches: Any) -> None:
    with training_run(steps=3) as run:
        model = fit_incrementally(
            run, SGDClassifier(loss="log_loss", random_state=0), batches, loss=valid_loss, classes=[0, 1]
        )
    with run.saving():
        pass
    assert run.step == 3 and len(pool.losses) == 3 and pool.losses[-1][1] == valid_loss(model)


def test_partial_fit_carries_on_to_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh() -> Any:
        return SGDClassifier(loss="log_loss", random_state=0, shuffle=False)

    whole = fresh()
    with training_run(steps=5) as run:
        whole = fit_incrementally(run, whole, BATCHES, classes=[0, 1])
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path))
    for steps in (2, 5):
        as_another_process()
        with training_run(steps=steps, checkpoint_every=1e-9) as run:
            model = fit_incrementally(run, fresh(), BATCHES, classes=[0, 1])
    np.testing.assert_allclose(model.coef_, whole.coef_)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (RandomForestClassifier(random_state=0), lambda m: len(m.estimators_)),
        (HistGradientBoostingClassifier(random_state=0), lambda m: m.n_iter_),
        (MLPClassifier(hidden_layer_sizes=(3,), random_state=0), lambda m: m.t_ / len(X)),
        (LogisticRegression(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_warm_start_grows_by_steps_and_carries_on(
    model: Any, size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: Any
) -> None:
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path))
    for steps in (2, 4):
        as_another_process()
        with training_run(steps=steps, checkpoint_every=1e-9) as run:
            fitted = fit_warm_start(run, model, X, Y, per_step=3, loss=valid_loss)
    assert run.step == 4 and np.isfinite(valid_loss(fitted))
    assert size is None or size(fitted) == 12
    assert not [warning for warning in recwarn if "onverge" in str(warning.message)]


def test_what_cannot_be_trained_in_steps_is_said() -> None:
    with training_run(steps=1) as run:
        with pytest.raises(TypeError, match="no partial_fit: use fit_warm_start"):
            fit_incrementally(run, RandomForestClassifier(), BATCHES)
        with pytest.raises(TypeError, match="read only once"):
            fit_incrementally(run, SGDClassifier(), iter(BATCHES))
        with pytest.raises(TypeError, match="needs warm_start"):
            fit_warm_start(run, LinearSVC(), X, Y)
        with pytest.raises(ValueError, match="per_step=0"):
            fit_warm_start(run, RandomForestClassifier(), X, Y, per_step=0)
    with training_run() as run, pytest.raises(ValueError, match="steps=None"):
        fit_warm_start(run, RandomForestClassifier(), X, Y)


def test_the_callbacks_are_not_imported_by_the_package() -> None:
    import subprocess

    code = "import prefect_gpu.training.callbacks, sys; print('xgboost' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
