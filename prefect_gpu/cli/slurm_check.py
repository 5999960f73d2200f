"""The doctor's checks of Slurm: are its commands here, does it answer, and does it have what the block asks for."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

from prefect_gpu.runtime.telemetry import Finding

if TYPE_CHECKING:
    from prefect_gpu.blocks import GpuSlurm
    from prefect_gpu.settings import GpuSettings

_TIMEOUT_S = 15.0
_BLOCKS = "See which blocks there are: `prefect block ls`."


def check_slurm(settings: GpuSettings) -> list[Finding]:
    """What a pool on Slurm needs, if the settings ask for one. Takes some seconds at most."""
    if settings.driver != "slurm" and not settings.slurm:
        return []
    from prefect_gpu.blocks.base import BlockError
    from prefect_gpu.runtime.drivers.slurm.cluster import SlurmError

    try:
        return asyncio.run(asyncio.wait_for(_ask(settings), _TIMEOUT_S))
    except BlockError as error:
        return [Finding("error", "Slurm", str(error), _BLOCKS)]
    except SlurmError as error:
        return [Finding("error", "Slurm", f"Slurm does not answer: {error}", "Ask it yourself: `sinfo`.")]
    except asyncio.TimeoutError:
        return [Finding("error", "Slurm", f"Nobody has answered for {_TIMEOUT_S:.0f} s.", "Ask it yourself: `sinfo`.")]
    except Exception:  # what is wrong with the server is another check's finding
        return []


async def _ask(settings: GpuSettings) -> list[Finding]:
    from prefect.client.orchestration import get_client

    from prefect_gpu.runtime.drivers.slurm.client import missing_commands
    from prefect_gpu.worker.from_blocks import read_blocks

    async with get_client() as client:
        block = (await read_blocks(settings, client)).slurm
    assert block is not None, "one that is missing is an error"
    if lacking := [] if block.rest else missing_commands():
        return [
            Finding(
                "error",
                "Slurm",
                f"Slurm's command{'s' * (len(lacking) > 1)} {', '.join(lacking)} cannot be found.",
                "Start the worker on a login node of the cluster, install them (`apt-get install slurm-client`), or "
                "name the cluster's slurmrestd in the block: `rest: http://HOST:6820`.",
            )
        ]
    slurm = block.client(patience_s=0.0)
    partitions = await slurm.partitions()
    wrong = _of_partitions(block, partitions)
    of_worker = block.tunnel is not None and block.tunnel.opened_by == "worker"
    if of_worker and shutil.which("ssh") is None:
        said = "The block's tunnel is opened by the worker, and there is no program ssh on this machine."
        wrong.append(Finding("error", "Slurm", said, "Install it: `apt-get install openssh-client`."))
    if not block.shared_folder and not of_worker and not settings.slurm_port:
        said = "The block says shared_folder: false, and slurm_port is not set: nodes would not find the next worker."
        wrong.append(Finding("error", "Slurm", said, "`export PREFECT_INTEGRATIONS_GPU_SLURM_PORT=4290`."))
    if settings.advertise is None and not of_worker:
        wrong.append(
            Finding(
                "error",
                "Slurm",
                "advertise is not set: nodes would not know where the worker is.",
                "Give this machine's address as the nodes reach it: `export PREFECT_INTEGRATIONS_GPU_ADVERTISE=ADDRESS "
                "PREFECT_INTEGRATIONS_GPU_CHANNEL_HOST=ADDRESS`.",
            )
        )
    shapes = ", ".join(f"{shape.name} (up to {shape.maximum})" for shape in block.shapes)
    return wrong or [Finding("ok", "Slurm", f"Cluster {await slurm.cluster_name()} answers; shapes: {shapes}.")]


def _of_partitions(block: GpuSlurm, partitions: dict[str, str]) -> list[Finding]:
    found = []
    for shape in block.shapes:
        for partition in dict.fromkeys(nodes.partition for nodes in (shape, *shape.more_nodes)):
            state = partitions.get(partition, "") if partition else "up"
            if not state:
                there = ", ".join(sorted(partitions)) or "none"
                said = f"The shape {shape.name} asks for the partition {partition!r}, and there is none of that name."
                found.append(Finding("error", "Slurm", f"{said} There are: {there}.", "Correct the block: `sinfo`."))
            elif state != "up":
                said = f"The partition {partition} of the shape {shape.name} is {state}: no allocation starts there."
                found.append(Finding("warning", "Slurm", said, "Ask its administrators why: `sinfo --list-reasons`."))
    return found
