"""The environment variables that tell a run which devices, cores and channel are its own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from prefect_gpu.scheduling.cluster import Device
from prefect_gpu.training import protocol


def run_environment(
    *,
    run_id: str,
    token: str,
    devices: Sequence[Device],
    cpus: Sequence[int],
    channel_url: str,
    channel_file: Path,
    checkpoints: Path,
) -> dict[str, str]:
    """Everything that the driver adds to a run's environment.

    A run sees the GPUs that it was granted, by UUID, and no others: a run on virtual devices, or on none, sees no GPU.
    """
    gpus = [device.id for device in devices if not device.virtual]
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        protocol.ENV_RUN_ID: run_id,
        protocol.ENV_TOKEN: token,
        protocol.ENV_CHANNEL: channel_url,
        protocol.ENV_CHANNEL_FILE: str(channel_file),
        protocol.ENV_DEVICES: json.dumps(
            [{key: value for key, value in dataclasses.asdict(device).items() if key != "cores"} for device in devices]
        ),
        protocol.ENV_CPUS: ",".join(map(str, cpus)),
        protocol.ENV_CHECKPOINTS: str(checkpoints),
    }
