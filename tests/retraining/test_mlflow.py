"""Trainings in MLflow, with the real one and its database; and without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from prefect_gpu import training_run
from prefect_gpu.retraining import MLflowRun, mlflow_run


def train(loss: float, fails_at: int | None = None, **more: Any) -> MLflowRun:
    with training_run(steps=3) as run, mlflow_run(run, {"lr": 0.1}, code=__file__, **more) as log:
        for step in run.steps():
            if step == fails_at:
                raise RuntimeError("no luck")
            run.report(loss=loss / (step + 1), accuracy=step / 3)
    return log


def test_without_mlflow_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("prefect_gpu.retraining.mlflow_logging.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "mlflow", None)  # importing it fails
    log = train(0.5)
    log.log_file(tmp_path)
    log.log_metrics(accuracy=0.9)
    assert log.run_id == ""


def test_of_a_gang_the_first_instance_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_gpu.retraining.mlflow_logging.is_further_instance", lambda: True)
    assert train(0.5).run_id == ""


def test_without_a_server_mlflow_is_not_even_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_gpu.retraining.mlflow_logging.find_spec", lambda name: object())
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert train(0.5).run_id == ""


def test_an_mlflow_that_cannot_be_imported_costs_no_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is broken, say, by another version of what it needs."""
    monkeypatch.setattr("prefect_gpu.retraining.mlflow_logging.find_spec", lambda name: object())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert train(0.5).run_id == "" and "MLflow could not be imported" in caplog.text


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """What a pretended MLflow is told of each step."""
    told: list[dict[str, float]] = []
    server = MagicMock(**{"active_run.return_value": None})
    server.log_metrics = lambda numbers, **more: told.append(numbers)
    monkeypatch.setattr("prefect_gpu.retraining.mlflow_logging.find_spec", lambda name: object())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", server)
    return told


def test_a_name_that_mlflow_refuses_does_not_cost_the_loss_of_its_step(logged: list[dict[str, float]]) -> None:
    with training_run(steps=1) as run, mlflow_run(run, {}, code=__file__):
        for _ in run.steps():
            run.report(loss=0.5, **{"acc@5": 0.75, "val/f1 (macro)": 0.5})
    assert logged == [{"loss": 0.5, "acc_5": 0.75, "val/f1 _macro_": 0.5}]


def test_a_metric_that_is_undefined_in_a_step_ends_no_training(logged: list[dict[str, float]]) -> None:
    """``report()`` takes None, and an array of one number."""
    with training_run(steps=2) as run, mlflow_run(run, {}, code=__file__):
        for step in run.steps():
            run.report(loss=0.5, accuracy=np.array([0.75]) if step else None)
    assert logged == [{"loss": 0.5}, {"accuracy": 0.75, "loss": 0.5}]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of MLflow's; to make its tables takes seconds."""
    return tmp_path_factory.mktemp("mlflow") / "mlflow.db"


@pytest.mark.needs("mlflow")
class TestMLflow:
    @pytest.fixture(autouse=True)
    def client(self, database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        import mlflow

        monkeypatch.chdir(database.parent)  # artifacts go there
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
        mlflow.set_experiment("digits")
        yield mlflow.MlflowClient()
        assert mlflow.active_run() is None

    def test_parameters_losses_tags_and_the_model_are_there(self, client: Any, tmp_path: Path) -> None:
        log = train(0.6, tags={"data_version": "a"})
        (tmp_path / "model.txt").write_text("weights")
        log.log_file(tmp_path / "model.txt")
        log.log_metrics(held_out=0.9, unknown=None)
        found = client.get_run(log.run_id)
        assert found.info.status == "FINISHED" and found.data.params == {"lr": "0.1"}
        assert found.data.tags["data_version"] == "a" and found.data.tags["mlflow.source.git.commit"]
        losses = [(one.step, one.value) for one in client.get_metric_history(log.run_id, "loss")]
        assert losses == [(1, 0.6), (2, 0.3), (3, pytest.approx(0.2))]
        assert found.data.metrics["accuracy"] == pytest.approx(2 / 3) and found.data.metrics["held_out"] == 0.9
        assert [one.path for one in client.list_artifacts(log.run_id, "model")] == ["model/model.txt"]

    def test_a_training_that_carries_on_goes_on_with_its_run(
        self, client: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = {"code_version": "c", "run": "r-1", "run_url": "http://prefect/runs/r-1"}
        monkeypatch.setattr("prefect_gpu.retraining.mlflow_logging.origin", lambda code: made)
        with pytest.raises(RuntimeError, match="no luck"):
            train(0.6, fails_at=1)
        (failed,) = client.search_runs(
            [client.get_experiment_by_name("digits").experiment_id], "tags.`prefect.flow_run_id` = 'r-1'"
        )
        assert failed.info.status == "FAILED"
        again = train(0.6)
        assert again.run_id == failed.info.run_id
        found = client.get_run(again.run_id)
        assert found.info.status == "FINISHED"
        assert found.data.tags["prefect.flow_run_url"] == made["run_url"]

    def test_a_server_that_is_away_costs_no_training(
        self, client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        assert train(0.5).run_id == ""
        assert "MLflow could not begin a run; the training goes on without" in caplog.text
