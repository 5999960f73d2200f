"""The slurm driver: the conformance suite in an allocation of a real Slurm, cold and warm."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from prefect_gpu.lab.sandbox import free_port, wait_until
from prefect_gpu.lab.slurm_nodes import SlurmLab
from prefect_gpu.runtime.drivers.base import Driver, LaunchSpec, RunHandle
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
    cancel_all(slurm)


def cancel_all(slurm: SlurmLab) -> None:
    """End what is left of a module's allocations."""
    if left := slurm.queue():
        slurm.command("scancel", *left)
    wait_until(lambda: not slurm.queue(), what="the allocations to end")


class TestSlurm(DriverConformance):
    @pytest.fixture
    def make_driver(self, slurm: SlurmLab, allocation: Path) -> MakeDriver:
        return lambda echo: make(slurm, allocation, echo=echo, comes_back_s=2.0)

    def still_alive(self, pid: int | str) -> bool:
        return alive(
            int(str(pid).rpartition(":")[2])
        )  # the nodes are name spaces of this machine, which see its processes


@pytest.fixture(scope="module")
def sending(slurm: SlurmLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A folder with one allocation that does not use it, and the port at which its agents look for a driver."""
    folder, port = tmp_path_factory.mktemp("sending"), free_port()

    async def begin() -> None:
        shape = dataclasses.replace(SHAPE, minimum=1)
        async with watched(make(slurm, folder, [shape], shared=False, port=port)) as pool:
            await pool.until(lambda: pool.nodes)

    asyncio.run(begin())
    yield folder, port
    cancel_all(slurm)


class Later(Driver):
    """The driver of a worker that is started as it is needed: agents find only the one that has their port."""

    def __init__(self, make_driver: MakeDriver, elsewhere: Driver) -> None:
        self._make, self._elsewhere = make_driver, elsewhere
        self._chosen: Driver | None = None

    async def _started(self) -> Driver:
        if self._chosen is None:
            self._chosen = self._make(lambda label, line: None)
            try:
                await self._chosen.start()
            except OSError:  # the first one is still there
                await self._chosen.close()
                self._chosen = self._elsewhere
                await self._chosen.start()
        return self._chosen

    async def start(self) -> None:
        await self._started()

    async def close(self) -> None:
        if self._chosen is not None:
            await self._chosen.close()

    async def launch(self, spec: LaunchSpec) -> RunHandle:
        return await (await self._started()).launch(spec)

    async def adopt(self, run_id: str, run_dir: Path) -> RunHandle | None:
        return await (await self._started()).adopt(run_id, run_dir)


class TestSlurmWithoutASharedFolder(TestSlurm):
    @pytest.fixture
    def make_driver(self, slurm: SlurmLab, sending: tuple[Path, int]) -> MakeDriver:
        folder, port = sending
        return lambda echo: make(slurm, folder, echo=echo, comes_back_s=15.0, shared=False, port=port)

    @pytest.fixture
    async def later_driver(
        self, make_driver: MakeDriver, slurm: SlurmLab, sending: tuple[Path, int]
    ) -> AsyncIterator[Driver]:
        elsewhere = make(slurm, sending[0], echo=lambda label, line: None, comes_back_s=0.1, shared=False)
        later = Later(make_driver, elsewhere)
        yield later
        await later.close()
