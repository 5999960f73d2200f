"""The doctor's checks of Slurm: are its commands here, does it answer, and does it have what the block asks for."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from prefect_gpu.cli.server_check import configured_server
from prefect_gpu.runtime.telemetry import Finding

if TYPE_CHECKING:
    from prefect_gpu.blocks import GpuSlurm, SlurmShape
    from prefect_gpu.runtime.drivers.slurm.cluster import Cluster, Partition
    from prefect_gpu.settings import GpuSettings

_TIMEOUT_S = 15.0
_CONNECT_S = 3.0
_BLOCKS = "See which blocks there are: `prefect block ls`."


def check_slurm(settings: GpuSettings) -> list[Finding]:
    """What a pool on Slurm needs, if the settings ask for one. Takes some seconds at most."""
    if not (settings.driver == "slurm" or settings.slurm) or not configured_server():
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
    if not wrong:
        wrong = await _of_shapes(block, slurm)
    if not wrong and block.tunnel is None:
        wrong = await _of_server(settings)
    shapes = ", ".join(f"{shape.name} (up to {shape.maximum})" for shape in block.shapes)
    return wrong or [Finding("ok", "Slurm", f"Cluster {await slurm.cluster_name()} answers; shapes: {shapes}.")]


async def _of_server(settings: GpuSettings) -> list[Finding]:
    """Whether a Prefect server on this machine listens at the address that runs are told of it."""
    from prefect_gpu.worker.nodes.reach import seen_from_outside

    url = configured_server() or ""
    told = seen_from_outside(url, settings.advertise)
    if told == url:
        return []  # it is no address of this machine alone
    parts = urlsplit(told)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        _, opened = await asyncio.wait_for(asyncio.open_connection(parts.hostname, port), _CONNECT_S)
    except (OSError, asyncio.TimeoutError):
        said = f"Nodes would find no Prefect server at {told}, as runs are told."
        remedy = f"Let it listen there, too: `prefect server start --host 0.0.0.0 --port {port}`."
        return [Finding("error", "Slurm", said, remedy)]
    opened.close()
    return []


async def _of_shapes(block: GpuSlurm, slurm: Cluster) -> list[Finding]:
    """What Slurm itself says of each shape: that no node has so many cores, say."""
    found = []
    for shape in block.plan("python3").shapes:
        if refusal := await slurm.refusal(shape.options("prefect-gpu-doctor", Path(os.devnull))):
            said = f"Slurm would refuse an allocation of the shape {shape.name}: {refusal}."
            remedy = "Correct the block. What nodes have: `sinfo --format='%P %l %c %m %G'` (time, cores, MiB, GPUs)."
            found.append(Finding("error", "Slurm", said, remedy))
    return found


def _of_partitions(block: GpuSlurm, partitions: dict[str, Partition]) -> list[Finding]:
    usual = next((name for name, one in partitions.items() if one.default), "")
    found = (
        _of_partition(shape, asked, partitions)
        for shape in block.shapes
        for asked in dict.fromkeys(nodes.partition or usual for nodes in (shape, *shape.more_nodes))
    )
    return [one for one in found if one is not None]


def _of_partition(shape: SlurmShape, asked: str, partitions: dict[str, Partition]) -> Finding | None:
    """What is wrong with the partition that a shape asks for. It may name several: Slurm takes the first that does."""
    from prefect_gpu.blocks.slurm import minutes_of

    names = [name.strip() for name in asked.split(",") if name.strip()]
    if unheard := [name for name in names if name not in partitions]:
        said = f"The shape {shape.name} asks for the partition {unheard[0]!r}, and there is none of that name."
        known = ", ".join(sorted(partitions)) or "none"
        return Finding("error", "Slurm", f"{said} There are: {known}.", "Correct the block: `sinfo`.")
    there = [partitions[name] for name in names]
    if there and all(one.state != "up" for one in there):
        said = f"The partition {asked} of the shape {shape.name} is {there[0].state}: no allocation starts there."
        return Finding("warning", "Slurm", said, "Ask its administrators why: `sinfo --list-reasons`.")
    most = max((_minutes(one.time) for one in there), default=math.inf)
    if minutes_of(shape.time) <= most:
        return None
    said = (
        f"The shape {shape.name} asks for {shape.time}, and a job of the partition {asked} may last for {most:.0f} "
        "minutes: Slurm would never start its allocations."
    )
    remedy = f"Give the shape less time in the block: `time: {most:.0f}`, in minutes."
    # A quality of service may allow more.
    return Finding("warning" if shape.qos else "error", "Slurm", said, remedy)


def _minutes(time: str) -> float:
    from prefect_gpu.blocks.slurm import minutes_of

    try:
        return minutes_of(time)
    except ValueError:  # "infinite"
        return math.inf
