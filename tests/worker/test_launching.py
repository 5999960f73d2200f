"""Deployments whose code lies on the worker's machine are started without asking for them again."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.responses import DeploymentResponse

from prefect_gpu.worker.launching import local_source

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
