"""What is kept of a run that was read."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.responses import DeploymentResponse

from prefect_gpu.worker.queue.intake import with_defaults


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": {"lr": {"default": 0.1}, "epochs": {"default": 5}}}, {"lr": 0.1, "epochs": 9}),
        ({"properties": {"lr": {"title": "lr"}, "odd": "text"}}, {"epochs": 9}),
        ({"properties": {"model": {"default": {"width": 64}}}}, {"model": {"width": 64}, "epochs": 9}),
        ({}, {"epochs": 9}),
        (None, {"epochs": 9}),
    ],
)
def test_a_parameter_that_is_left_out_has_its_default(schema: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    """Left out and given, the same value once was two values for estimates."""
    deployment = DeploymentResponse(id=uuid4(), flow_id=uuid4(), name="gpus", parameter_openapi_schema=schema)
    assert with_defaults({"epochs": 9}, deployment) == expected
    assert with_defaults({"epochs": 9}, None) == {"epochs": 9}
