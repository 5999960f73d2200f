"""A pool whose nodes a real Slurm lends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from prefect.client.orchestration import PrefectClient

from benchmarks._host.served import using
from prefect_gpu.blocks import GpuSlurm, SlurmShape
from prefect_gpu.lab.sandbox import Process, Sandbox, wait_until
from prefect_gpu.lab.slurm_nodes import SlurmLab
from tests.live.pool import LivePool, work_pool

SMALL: dict[str, Any] = {"name": "small", "gres": "gpu:2", "time": "30", "virtual_devices": 2, "maximum": 3}


class SlurmPool(LivePool):
    """See :class:`LivePool`. The nodes see the test's folder and this checkout, as they are on this machine."""

    def __init__(self, sandbox: Sandbox, client: PrefectClient, name: str, folder: Path, lab: SlurmLab) -> None:
        super().__init__(sandbox, client, name, folder)
        self.lab = lab

    async def allow(self, *shapes: dict[str, Any], **more: Any) -> None:
        """Say what Slurm may be asked for, before a worker starts."""
        found = [SlurmShape(**SMALL | shape) for shape in shapes or ({},)]
        settings = {"idle_seconds": 5.0, "poll_seconds": 0.5, "conf": self.lab.conf} | more
        block = GpuSlurm(shapes=found, **settings)
        await block.save(self.name, overwrite=True)  # type: ignore[misc]

    def start_worker(self, *arguments: str, wait: bool = True, state_dir: Path | None = None, **env: Any) -> Process:
        settings = {
            "slurm": self.name,
            "advertise": self.lab.gateway,
            "channel_host": "0.0.0.0",
        }
        given = {name: value for name, value in (settings | env).items() if value is not None}
        return super().start_worker(*arguments, wait=wait, state_dir=state_dir, **given)

    async def node(self, run_id: UUID) -> str:
        """The machine that a run was on: which node of the cluster."""
        return (await self.place(run_id)).partition(".")[0]

    def given_back(self) -> bool:
        """Whether Slurm has no job of anybody's."""
        return not self.lab.queue()


@pytest_asyncio.fixture
async def slurm_pool(
    slurm: SlurmLab, wide_sandbox: Sandbox, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[SlurmPool]:
    """A gpu pool without a worker yet. After the test, nothing may be left in Slurm: all was given back."""
    async with pool_on(slurm, wide_sandbox, tmp_path, request.node.nodeid) as live:
        yield live


@pytest_asyncio.fixture
async def served_pool(
    served_slurm: SlurmLab, wide_sandbox: Sandbox, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[SlurmPool]:
    """The same on a cluster that has accounting, minds main memory, and is served by slurmrestd."""
    async with pool_on(served_slurm, wide_sandbox, tmp_path, request.node.nodeid) as live:
        yield live


@asynccontextmanager
async def pool_on(lab: SlurmLab, sandbox: Sandbox, folder: Path, node_id: str) -> AsyncIterator[SlurmPool]:
    with using(sandbox):
        async with work_pool("slurm", node_id) as (client, name):
            live = SlurmPool(sandbox, client, name, folder, lab)
            try:
                yield live
                (folder / "go").touch()
                await asyncio.to_thread(wait_until, live.given_back, what="the allocations to be given back")
            finally:
                await asyncio.to_thread(live.stop_workers)
                if left := lab.queue():
                    lab.command("scancel", *left)
                    await asyncio.to_thread(wait_until, live.given_back, what="the allocations to end")
