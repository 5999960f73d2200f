"""What a run is told of its devices, and what holds frameworks to its part of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.runtime.launch.run_environment import mps_runs, run_environment
from prefect_gpu.scheduling.model.cluster import Device
from prefect_gpu.training import protocol

GPU = Device("GPU-1", "test", 8 << 30)
OTHER = Device("GPU-2", "test", 4 << 30)
VIRTUAL = Device("virtual-0", "virtual", 8 << 30, virtual=True)
LIMITS = {
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "CUPY_GPU_MEMORY_LIMIT",
}


def environment(folder: Path, *devices: Device, **values: Any) -> dict[str, str]:
    return run_environment(
        run_id="r",
        devices=devices,
        cpus=(0,),
        checkpoints=str(folder / "checkpoints"),
        locks=folder / "locks",
        **values,
    )


@pytest.fixture
def pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an MPS control daemon of this machine would have its pipes."""
    folder = tmp_path / "mps"
    folder.mkdir()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(folder))
    return folder


def test_a_run_that_shares_gpus_is_limited_on_the_smallest_of_them(tmp_path: Path, pipes: Path) -> None:
    env = environment(tmp_path, GPU, OTHER, shared=True, memory_bytes=1 << 30)
    assert env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.2500"
    assert env[protocol.ENV_MEMORY] == env["CUPY_GPU_MEMORY_LIMIT"] == str(1 << 30)
    assert env.keys() >= LIMITS and "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in env


def test_where_mps_runs_the_driver_is_told_the_limit(tmp_path: Path, pipes: Path) -> None:
    (pipes / "control").touch()  # stands in for the daemon's pipe: there is no GPU here
    env = environment(tmp_path, GPU, OTHER, shared=True, memory_bytes=1 << 30)
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1024M,1=1024M"
    assert mps_runs({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) is False
    elsewhere = environment(tmp_path, GPU, OTHER, shared=True, memory_bytes=1 << 30, local=False)
    assert elsewhere.keys() == env.keys() - {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}, "no container sees this daemon"


@pytest.mark.parametrize(
    ("device", "values"),
    [(GPU, {}), (GPU, {"memory_bytes": 1 << 30}), (VIRTUAL, {"shared": True, "memory_bytes": 1 << 30})],
    ids=["alone", "alone, of known size", "on a virtual device"],
)
def test_others_are_not_told_of_limits(tmp_path: Path, pipes: Path, device: Device, values: dict[str, Any]) -> None:
    (pipes / "control").touch()
    env = environment(tmp_path, device, **values)
    assert not LIMITS & env.keys() and "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in env
    assert (protocol.ENV_MEMORY in env) == bool(values.get("shared"))


def test_a_run_that_was_stopped_is_told_what_it_had_saved(tmp_path: Path) -> None:
    assert environment(tmp_path, saved_step=40)[protocol.ENV_SAVED] == "40"
    assert protocol.ENV_SAVED not in environment(tmp_path)
