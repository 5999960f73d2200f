"""The sweep and its trainings, in this process and without a server."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import optuna
import pytest
import xgboost
from sklearn.datasets import load_wine

from flows import automl_sweep as sweep


def test_the_neural_network_trains_without_prefect(tmp_path: Path) -> None:
    scores = sweep.train_mlp.fn(str(tmp_path / "model"), dataset="wine", epochs=20)
    assert scores["validation"] > 0.8 and scores["test"] > 0.8
    assert joblib.load(tmp_path / "model").score(*load_wine(return_X_y=True)) > 0.8


def test_the_trees_train_without_prefect(tmp_path: Path) -> None:
    scores = sweep.train_xgboost.fn(str(tmp_path / "model.ubj"), dataset="breast_cancer", rounds=10)
    assert scores["validation"] > 0.85
    assert xgboost.Booster(model_file=tmp_path / "model.ubj").num_boosted_rounds() == 10


def test_the_best_model_is_kept_and_described(tmp_path: Path) -> None:
    best = sweep.automl_sweep.fn("wine", trials=4, directory=str(tmp_path), where="here")
    assert json.loads((tmp_path / "best.json").read_text()) == best
    assert Path(best["model"]).exists() and best["validation_accuracy"] > 0.7
    assert {path.name for path in tmp_path.iterdir()} == {"best.json", Path(best["model"]).name}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Trials that take no time: the score is what a formula makes of the parameters. Trial 2 fails."""
    ran: list[dict[str, Any]] = []

    class Quick:
        @staticmethod
        def fn(model_path: str, **parameters: Any) -> dict[str, float]:
            ran.append(parameters)
            if Path(model_path).stem == "2":
                raise MemoryError("out of memory")
            Path(model_path).write_text("model")
            score = 1 / (1 + abs(parameters["lr"] - 0.01))
            return {"validation": score, "test": score}

    original = sweep.propose
    monkeypatch.setattr(sweep, "propose", lambda *asked: (Quick, *original(*asked)[1:]))
    return ran


def test_a_failed_trial_is_told_to_optuna_and_does_not_stop_the_sweep(
    tmp_path: Path, quick: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    studies: list[optuna.Study] = []
    create = optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **options: studies.append(create(**options)) or studies[0])
    best = sweep.automl_sweep.fn(trials=6, parallel=2, directory=str(tmp_path), where="here")
    states = [trial.state.name for trial in studies[0].trials]
    assert states == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]
    page = sweep.report(studies[0], best)
    assert "Trial 2 failed: MemoryError: out of memory" in page and best["model"] in page


def test_the_same_seed_proposes_the_same_trials(tmp_path: Path, quick: list[dict[str, Any]]) -> None:
    for seed in (1, 1, 2):
        sweep.automl_sweep.fn(trials=16, parallel=3, seed=seed, directory=str(tmp_path), where="here")
    for parameters in quick:
        del parameters["seed"]
    assert quick[:16] == quick[16:32] != quick[32:]


def test_two_sweeps_with_one_folder_keep_their_trials_apart(
    tmp_path: Path, quick: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    monkeypatch.setattr(sweep, "keep", lambda best, folder, dataset: kept.append(best.user_attrs["model"]))
    monkeypatch.setattr(sweep, "report", lambda *_: "")
    monkeypatch.setattr(sweep, "create_markdown_artifact", lambda *_, **__: None)
    for run in ("a", "b"):
        monkeypatch.setattr(sweep, "flow_run", SimpleNamespace(id=run))
        sweep.automl_sweep.fn(trials=1, directory=str(tmp_path), where="here")
    assert [Path(model).parent.name for model in kept] == ["trials-a", "trials-b"]


@pytest.mark.parametrize(("trials", "parallel"), [(1, 4), (3, 1), (3, 3), (5, 2)])
def test_every_trial_runs_once_and_no_more_than_allowed_at_a_time(
    tmp_path: Path, quick: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, trials: int, parallel: int
) -> None:
    begun, most = 0, 0
    original_start, original_tell = sweep.start, sweep.tell

    def start(*arguments: Any) -> Any:
        nonlocal begun, most
        begun += 1
        most = max(most, begun)
        return original_start(*arguments)

    def tell(*arguments: Any) -> None:
        nonlocal begun
        original_tell(*arguments)
        begun -= 1

    monkeypatch.setattr(sweep, "start", start)
    monkeypatch.setattr(sweep, "tell", tell)
    sweep.automl_sweep.fn(trials=trials, parallel=parallel, directory=str(tmp_path), where="here")
    assert len(quick) == trials and begun == 0 and most == min(trials, parallel)


@pytest.mark.parametrize("field", ["trials", "parallel"])
def test_a_sweep_of_nothing_is_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}=0 is not allowed"):
        sweep.automl_sweep.fn(directory=str(tmp_path), where="here", **{field: 0})


def test_a_sweep_without_any_success_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: Any) -> dict[str, float]:
        raise ArithmeticError("on purpose")

    class Failing:
        fn = staticmethod(fails)

    monkeypatch.setattr(sweep, "propose", lambda *asked: (Failing, {}, "joblib"))
    with pytest.raises(RuntimeError, match=r"All 2 trials failed.*ArithmeticError: on purpose"):
        sweep.automl_sweep.fn(trials=2, directory=str(tmp_path), where="here")
