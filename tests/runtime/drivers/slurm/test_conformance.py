"""The slurm driver: the conformance suite in an allocation of a real Slurm, cold and warm."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_gpu.lab.slurm_nodes import SlurmLab
from prefect_gpu.runtime.drivers.conformance import DriverConformance, MakeDriver, alive
from tests.runtime.drivers.slurm.conftest import SHAPE, make, watched


@pytest.fixture(scope="module", params=[False, True], ids=["cold", "warm"])
def allocation(
    slurm: SlurmLab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """A folder with one allocation, whose agents wait for whatever driver comes."""
    folder = tmp_path_factory.mktemp(f"pool{int(request.param)}")

    async def begin() -> None:
        shape = dataclasses.replace(SHAPE, minimum=1)
        driver = make(slurm, folder, [shape], warm=request.param, preload=("json", "subprocess"))
        async with watched(driver) as pool:
            await pool.until(lambda: pool.nodes)

    asyncio.run(begin())
    yield folder
    slurm.command("scancel", *slurm.queue())


class TestSlurm(DriverConformance):
    @pytest.fixture
    def make_driver(self, slurm: SlurmLab, allocation: Path) -> MakeDriver:
        return lambda echo: make(slurm, allocation, echo=echo, comes_back_s=2.0)

    def still_alive(self, pid: int | str) -> bool:
        return alive(
            int(str(pid).rpartition(":")[2])
        )  # the nodes are name spaces of this machine, which see its processes
