"""The environment variables that tell a run which devices, cores and channel are its own."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect_gpu.runtime.drivers.launched import environment
from prefect_gpu.scheduling.model.cluster import Device
from prefect_gpu.training import protocol


def run_environment(
    *,
    run_id: str,
    devices: Sequence[Device],
    cpus: Sequence[int],
    checkpoints: str,
    locks: Path,
    pool: str = "",
    shared: bool = False,
    memory_bytes: int | None = None,
    local: bool = True,
    batch_size: int | None = None,
    batch_sizes: tuple[int, int] | None = None,
    saved_step: int | None = None,
) -> dict[str, str]:
    """What each instance of a run is told of its place.

    A run sees the GPUs that it was granted, by UUID, and no others: a run on virtual devices, or on none, sees no GPU.

    Args:
        checkpoints: Address of the run's own store of checkpoints.
        pool: The id that checkpoints are marked with; empty: they are not.
        locks: Folder of the devices' lock files, as the run sees it.
        shared: Whether others may train on its devices.
        memory_bytes: What it was granted of each device; None: all of it. A run that shares real GPUs is held to it
            by what reads a limit from the environment; see :mod:`prefect_gpu.training.limits.caps` for the others.
        local: Whether it is a process of this machine. An MPS daemon is nothing to a container, which sees neither its
            pipes nor the shared memory of the machine.
        batch_size: Samples of the batch that the pool has chosen; None: the run is not told any.
        batch_sizes: Samples of the smallest and of the largest batch that it may choose.
        saved_step: The step of the checkpoint that it had when it was stopped before; None: it was not, or had none.
    """
    gpus = [device.id for device in devices if not device.virtual]
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        protocol.ENV_RUN_ID: run_id,
        protocol.ENV_DEVICES: json.dumps(
            [{key: value for key, value in dataclasses.asdict(device).items() if key != "cores"} for device in devices]
        ),
        protocol.ENV_CPUS: ",".join(map(str, cpus)),
        protocol.ENV_CHECKPOINTS: checkpoints,
        **({protocol.ENV_POOL: pool} if pool else {}),
        **({protocol.ENV_SAVED: str(saved_step)} if saved_step else {}),
        protocol.ENV_LOCKS: json.dumps([str(locks / f"{_file_name(device.id)}.lock") for device in devices]),
        **({protocol.ENV_BATCH_SIZE: f"{batch_size}/{batch_sizes[0]}"} if batch_size and batch_sizes else {}),
        **({protocol.ENV_SHARED: "1"} if shared else {}),
        **({protocol.ENV_MEMORY: str(memory_bytes)} if shared and memory_bytes is not None else {}),
        **(_limits(devices, memory_bytes, local) if shared and gpus and memory_bytes is not None else {}),
    }


def channel_environment(
    *, token: str, url: str, file: Path, gated: bool = False, keep_best: bool = False, stays: bool = False
) -> dict[str, str]:
    """What the instance that reports for the run is told of its channel.

    Args:
        token: What it shows there.
        file: Where the channel's address is found when the worker is another one.
        gated: Whether the run waits until its predecessor trains no more.
        keep_best: Whether its best checkpoint is kept, since it may be ended early.
        stays: Whether it is not preemptible: it is never stopped to carry on later.
    """
    return {
        protocol.ENV_TOKEN: token,
        protocol.ENV_CHANNEL: url,
        protocol.ENV_CHANNEL_FILE: str(file),
        **({protocol.ENV_GATED: "1"} if gated else {}),
        **({protocol.ENV_KEEP_BEST: "1"} if keep_best else {}),
        **({protocol.ENV_STAYS: "1"} if stays else {}),
    }


def _limits(devices: Sequence[Device], memory_bytes: int, local: bool) -> dict[str, str]:
    """What holds frameworks to their part of each GPU, as far as they read it at their start."""
    smallest = min(device.memory_bytes for device in devices)
    limits = {
        # JAX takes 75 % of each GPU at once unless told otherwise, TensorFlow all of it.
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{min(1.0, memory_bytes / smallest):.4f}",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "CUPY_GPU_MEMORY_LIMIT": str(memory_bytes),
    }
    if local and mps_runs(os.environ):
        mebibytes = max(1, memory_bytes >> 20)
        limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(f"{at}={mebibytes}M" for at in range(len(devices)))
    return limits


def mps_runs(environ: Mapping[str, str]) -> bool:
    """Whether a CUDA MPS control daemon serves this user: its pipes are there."""
    return (Path(environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps") / "control").exists()


def _file_name(device_id: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", device_id)


def devices_of_process(pid: int) -> tuple[str, ...]:
    """Ids of the devices that a process of this machine began with; none if that cannot be seen: it is a fork, say."""
    mark = f"{protocol.ENV_DEVICES}=".encode()
    told = next((one.removeprefix(mark) for one in environment(pid) if one.startswith(mark)), b"[]")
    try:
        return tuple(str(device["id"]) for device in json.loads(told))
    except (ValueError, TypeError, KeyError):
        return ()
