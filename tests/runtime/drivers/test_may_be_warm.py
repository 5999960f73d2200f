"""Which launches may take a container that was made before them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.runtime.drivers.base import ContainerSpec, LaunchSpec
from prefect_gpu.runtime.drivers.docker.warm import may_be_warm

PLAIN = LaunchSpec("run", Path("/run"), ("python", "-m", "prefect.engine"), {}, Path())


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"cpus": (0, 1)}, True),
        ({"argv": ("/opt/venv/bin/python3.12", "-m", "train")}, True),
        ({"argv": ("python", "train.py")}, False),
        ({"argv": ("bash", "-c", "python -m train")}, False),
        ({"meets": True}, False),
        ({"gpus": ("GPU-1",)}, False),
        ({"shares": (Path("/data/checkpoints/run"),)}, True),
        ({"shares": (Path("/data"),)}, True),
        ({"shares": (Path("/datasets/run"),)}, False),
        ({"shares": (Path("/read/run"),)}, False),
        ({"shares": (Path("/inside/run"),)}, False),
    ],
)
def test_a_launch_may_be_warm(changed: dict[str, Any], expected: bool) -> None:
    how = ContainerSpec("image", volumes=("/data:/data", "/read:/read:ro", "/outside:/inside"))
    assert may_be_warm(dataclasses.replace(PLAIN, **changed), how) is expected
