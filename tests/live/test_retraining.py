"""The retraining pipeline as people run it: deployed by one command, started by events, in a pool."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_gpu.blocks import CheckpointStorage
from prefect_gpu.demo.stage import POOL, Stage
from prefect_gpu.lab.sandbox import wait_until
from prefect_gpu.retraining import ModelRegistry
from tests.radosgw import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

DEADLINE_S = 240.0  # against hanging for ever; nothing is asserted on time
PIPELINE = "retrain-pipeline"


class Retraining:
    """The repository's deployments in a pool of a server of its own, for data and models in a place of the test's."""

    def __init__(self, stage: Stage, data: str, registry: str) -> None:
        self.stage, self.models = stage, ModelRegistry(registry)
        self.api = httpx.Client(base_url=f"{stage.ui_url}/api", timeout=60.0, trust_env=False)
        self.pipeline = self.of(PIPELINE)
        for flow, parameters in {
            PIPELINE: {"data": data, "registry": registry},
            "scan-digits": {"data": data},
            "roll-back": {"registry": registry},
        }.items():
            self.ask("PATCH", f"/deployments/{self.of(flow)['id']}", {"parameters": parameters})

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        def answered() -> httpx.Response | None:
            answer = self.api.request(method, path, json=body)
            return None if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE else answer  # SQLite is locked

        answer = wait_until(answered, what=f"an answer to {method} {path}", timeout_s=DEADLINE_S, every_s=0.2)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def of(self, flow: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"/deployments/name/{flow}/{POOL}"))

    def runs(self) -> list[dict[str, Any]]:
        """The pipeline's runs that an event has started, oldest first."""
        return [one for one in self.stage.runs() if one["flow_name"] == PIPELINE]

    def run(self, flow: str, **parameters: Any) -> None:
        """Run a flow in the pool to its end."""
        run = self.stage.submit(flow, **parameters)
        self.ended(run)

    def ended(self, run: str) -> None:
        wait_until(
            lambda: self.stage.result(run)["type"] in ("COMPLETED", "FAILED", "CRASHED"),
            what=f"the end of {run}", timeout_s=DEADLINE_S, every_s=0.5,
        )  # fmt: skip
        assert self.stage.result(run)["type"] == "COMPLETED", self.stage.logs(run)

    def retrained(self, runs: int) -> str:
        """Wait until events have started so many runs, and they are over. Returns what the newest is called."""
        wait_until(
            lambda: len(self.runs()) >= runs, what=f"run {runs} of the pipeline", timeout_s=DEADLINE_S, every_s=0.5
        )
        assert len(self.runs()) == runs
        newest = self.runs()[-1]
        self.ended(newest["id"])
        return str(newest["id"])

    def champion(self) -> str:
        champion = self.models.champion()
        assert champion is not None
        return champion.name

    def events(self) -> list[dict[str, Any]]:
        found = self.ask("POST", "/events/filter", {"filter": {"event": {"name": ["dataset.arrived"]}}})
        return list(found["events"])


@contextmanager
def deployed(
    data: str, registry: str, settings: dict[str, str] | None = None, block: CheckpointStorage | None = None
) -> Iterator[Retraining]:
    """Deployed by ``prefect deploy --all --prefect-file deployments/prefect.yaml``, in a pool with a worker.

    Args:
        block: Registered as ``models``.
    """
    stage = Stage(settings)
    try:
        stage.start_server()
        stage.start_worker()
        stage.deploy()
        with temporary_settings({PREFECT_API_URL: f"{stage.ui_url}/api"}):
            if block is not None:
                block.save("models")
            retraining = Retraining(stage, data, registry)
        yield retraining
    finally:
        stage.close()


@pytest.mark.slow
def test_data_that_arrive_start_one_retraining(tmp_path: Path) -> None:
    data, registry = str(tmp_path / "data"), str(tmp_path / "registry")
    with deployed(data, registry) as retraining:
        assert [one["schedule"]["cron"] for one in retraining.pipeline["schedules"]] == ["0 3 * * *"]
        retraining.run("scan-digits")
        retraining.retrained(1)
        assert retraining.champion() == "v0001"
        versions = retraining.models.versions()

        # Of an event that comes again, Prefect takes none; of another one about the same data, the pipeline none.
        (event, *_) = retraining.events()
        sent = {name: event[name] for name in ("occurred", "event", "resource", "payload", "id")}
        retraining.ask("POST", "/events", [sent])
        retraining.ask("POST", "/events", [{**sent, "id": str(uuid4())}])
        retraining.retrained(2)
        time.sleep(1)  # long enough for a run of the first to show up, if there was one
        assert len(retraining.runs()) == 2
        assert retraining.models.versions() == versions


@pytest.mark.needs("mlflow")
@pytest.mark.timeout(900)
def test_models_in_s3_are_promoted_if_they_are_better_and_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3Server
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    database = f"sqlite:///{tmp_path}/mlflow.db"
    settings = {
        "PREFECT_INTEGRATIONS_GPU_PASS_ENVIRONMENT": "AWS_*,MLFLOW_*",
        "MLFLOW_TRACKING_URI": database,
        "MLFLOW_ARTIFACT_ROOT": str(tmp_path / "artifacts"),
    }
    data = f"s3://{BUCKET}/{PIPELINE}/data?endpoint_url={s3.endpoint_url}"
    block = CheckpointStorage(
        bucket=BUCKET, prefix=f"{PIPELINE}/in", endpoint_url=s3.endpoint_url, region="default",
        access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY,
    )  # fmt: skip
    with deployed(data, "block:checkpoint-storage/models/digits", settings=settings, block=block) as retraining:
        for number, champion in enumerate(("v0001", "v0002"), start=1):
            retraining.run("scan-digits")
            if number == 2:
                s3_goes_away_and_comes_back(s3, retraining)
            retraining.retrained(number)
            assert retraining.champion() == champion
        retraining.run("scan-digits", mislabelled=1.0)
        last = retraining.retrained(3)
        assert retraining.champion() == "v0002"
        retraining.run("roll-back", reason="too slow in use")
        check_decisions(retraining, last)
        check_mlflow(retraining, database)


def s3_goes_away_and_comes_back(s3: S3Server, retraining: Retraining) -> None:
    """While the second model is trained. The pipeline has read what it needs, and waits for the model."""

    def second() -> dict[str, Any] | None:
        trainings = [one for one in retraining.stage.runs() if one["flow_name"] == "train-classifier"]
        return trainings[1] if len(trainings) > 1 else None

    wait_until(second, what="the second training", timeout_s=DEADLINE_S, every_s=0.1)
    s3.halt()
    wait_until(
        lambda: (one := second()) and one["state_name"] == "AwaitingRetry",
        what="a training that has missed S3", timeout_s=DEADLINE_S, every_s=0.5,
    )  # fmt: skip
    s3.resume()


def check_decisions(retraining: Retraining, last: str) -> None:
    assert retraining.champion() == "v0001"
    decisions = retraining.models.decisions()
    assert [one.action for one in decisions] == ["promoted", "promoted", "kept", "rolled back"]
    better, kept, back = decisions[1:]
    assert better.facts["p_value"] < 0.05 < kept.facts["p_value"] and "it is better" in better.reason
    assert back.reason == "too slow in use" and kept.run == last and last in kept.run_url
    (page,) = retraining.ask(
        "POST",
        "/artifacts/filter",
        {"artifacts": {"flow_run_id": {"any_": [last]}, "key": {"any_": ["retrain-pipeline"]}}},
    )
    assert "# v0002 stays the champion" in page["data"] and "| p-value | 0." in page["data"]


def check_mlflow(retraining: Retraining, database: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(database)
    runs = client.search_runs(["0"])
    versions = retraining.models.versions()
    assert {one.data.tags["prefect.flow_run_id"] for one in runs} == {one.run for one in versions}
    newest = next(one for one in runs if one.data.tags["prefect.flow_run_id"] == versions[-1].run)
    assert newest.data.tags["prefect.flow_run_url"] == versions[-1].run_url
    assert newest.data.tags["data_version"] == versions[-1].data_version
    assert newest.data.params["epochs"] == "40" and newest.info.status == "FINISHED"
    losses = client.get_metric_history(newest.info.run_id, "loss")
    assert [one.step for one in losses] == [*range(1, 41)]
    assert losses[-1].value == pytest.approx(versions[-1].metrics["training_loss"])
    assert [one.path for one in client.list_artifacts(newest.info.run_id, "model")] == ["model/model.joblib"]
