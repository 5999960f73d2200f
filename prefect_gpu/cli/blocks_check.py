"""The doctor's check of the blocks that say what the nodes of a pool are, and how it is divided."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from prefect_gpu.cli.server_check import configured_server
from prefect_gpu.runtime.telemetry import Finding

if TYPE_CHECKING:
    from prefect_gpu.settings import GpuSettings

_TIMEOUT_S = 5.0


def check_blocks(settings: GpuSettings) -> list[Finding]:
    """Whether these blocks are there, and can be used. Without them no worker starts.

    A block that is as it should be gives no finding. The blocks of checkpoints and of Slurm have checks of their own.
    """
    if not (settings.cluster or settings.quota) or not configured_server():
        return []
    try:
        return asyncio.run(asyncio.wait_for(_read(settings), _TIMEOUT_S))
    except Exception:  # what is wrong with the server is another check's finding
        return []


async def _read(settings: GpuSettings) -> list[Finding]:
    from prefect.client.orchestration import get_client

    from prefect_gpu.blocks.base import BlockError
    from prefect_gpu.worker.from_blocks import read_cluster, read_quota

    findings = []
    async with get_client() as client:
        for subject, read in (("nodes", read_cluster), ("shares", read_quota)):
            try:
                await read(settings, client)
            except BlockError as error:
                findings.append(
                    Finding("error", subject, str(error), "See which blocks there are: `prefect block ls`.")
                )
    return findings
