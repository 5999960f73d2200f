"""From a grant to a process: whose claim it is, and what need not be asked again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.client.schemas.responses import DeploymentResponse
from prefect.states import Running, Scheduled, Suspended

from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.runtime.host import NotOursError
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker.launching.launcher import Launcher, local_source
from tests.worker.prefect_stand_in import OneRun, asking

STEP = "prefect.deployments.steps.set_working_directory"


def a_deployment(entrypoint: str | None, *steps: dict[str, Any]) -> DeploymentResponse:
    return DeploymentResponse(id=uuid4(), flow_id=uuid4(), name="d", entrypoint=entrypoint, pull_steps=list(steps))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with ``flows/train.py`` in it."""
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "train.py").touch()
    return tmp_path


def test_a_folder_of_this_machine_needs_no_steps(code: Path) -> None:
    deployment = a_deployment("flows/train.py:train", {STEP: {"directory": str(code)}})
    assert local_source(deployment) == (code, "flows/train.py:train")


def test_where_there_is_more_to_do_the_steps_are_run(code: Path) -> None:
    here = {STEP: {"directory": str(code)}}
    clone = {"prefect.deployments.steps.git_clone": {"repository": "https://example.org/x"}}
    others = [
        None,
        a_deployment("flows/train.py:train"),
        a_deployment(None, here),
        a_deployment("flows.train", here),
        a_deployment("flows/missing.py:train", here),
        a_deployment("flows/train.py:train", here, here),
        a_deployment("flows/train.py:train", clone),
        a_deployment("flows/train.py:train", {**here, **clone}),
        a_deployment("flows/train.py:train", {STEP: {"directory": "flows"}}),
        a_deployment("flows/train.py:train", {STEP: {"directory": str(code) + "/{{ $BRANCH }}"}}),
        a_deployment("flows/train.py:train", {STEP: {"directory": None}}),
        a_deployment("flows/train.py:train", {STEP: {}}),
    ]
    for deployment in others:
        assert local_source(deployment) is None, deployment


def a_launcher(prefect: OneRun) -> Launcher:
    worker: Any = SimpleNamespace(client=prefect, name="w")
    nobody: Any = None
    return Launcher(worker, nobody, nobody, nobody, asking(prefect), GpuSettings())


async def test_a_claim_whose_answer_is_lost_is_ours_all_the_same() -> None:
    """The server is restarted just then. Given up, the run would stay pending for ever."""
    prefect = OneRun(Scheduled())
    prefect.lose_answer = httpx.ReadError("the server was restarted")
    await a_launcher(prefect)._claim(prefect.as_read(), prefect.launch())
    assert prefect.shown[0] == "pending"


async def test_a_claim_that_did_not_reach_prefect_is_tried_again_later() -> None:
    prefect = OneRun(Scheduled())
    prefect.unreachable = httpx.ConnectError("the server is being restarted")
    with pytest.raises(LaunchError):
        await a_launcher(prefect)._claim(prefect.as_read(), prefect.launch())
    assert prefect.shown[0] == "scheduled"


async def test_a_run_that_another_worker_has_started_and_that_is_suspended_is_not_ours() -> None:
    """Prefect's client then raises what no `except Exception` catches: the device would be held for ever."""
    prefect = OneRun(Scheduled(), Running(), Suspended())
    with pytest.raises(NotOursError):
        await a_launcher(prefect)._claim(prefect.as_read(), prefect.launch())
    assert prefect.shown[0] == "paused"


def test_what_the_worker_imports_for_itself_does_not_change_the_environment_of_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """scikit-learn, with which the pool learns, sets KMP_… as it is imported. No run would start warm any more."""
    prefect = OneRun(Scheduled())
    launcher = a_launcher(prefect)
    launcher._control = SimpleNamespace(register=lambda run_id: {})  # type: ignore[assignment]
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
    configuration: Any = SimpleNamespace(env={"OWN": "1"}, command="true", working_dir=tmp_path, stream_output=False)
    spec = launcher._specify(prefect.as_read(), prefect.launch(), configuration, None, {})
    assert spec.env["OWN"] == "1" and "PATH" in spec.env
    assert "KMP_INIT_AT_FORK" not in spec.env
