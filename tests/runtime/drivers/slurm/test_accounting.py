"""How an allocation ended, as the real slurmdbd knows it when Slurm's queue has long forgotten the job."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from prefect_gpu.lab.slurm_nodes import SlurmLab
from prefect_gpu.runtime.drivers.base import Demand, LaunchSpec, RunHandle, Wanted
from prefect_gpu.runtime.drivers.conformance import MakeSpec, probes, until
from prefect_gpu.runtime.drivers.slurm.client import SlurmClient
from prefect_gpu.runtime.drivers.slurm.driver import SlurmDriver
from prefect_gpu.scheduling.model.jobs import Request
from tests.runtime.drivers.slurm.conftest import (
    PART,
    SHAPE,
    Forgetful,
    Watched,
    cancel,
    make,
    preempt,
    set_down,
    watched,
)

SMALL = dataclasses.replace(SHAPE, parts=(dataclasses.replace(PART, memory="1G"),))
ONE = Demand(waiting=(Wanted(Request(gpus=1)),))
WAITS = "import time; open('ready', 'w').close(); time.sleep(600)"
TAKES = """
    import time
    open('ready', 'w').close()
    while not __import__('os').path.exists('go'):
        time.sleep(0.02)
    held = b'x' * (2 << 30)
    time.sleep(600)
"""


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    return probes(tmp_path)


@pytest.fixture
async def folder(tmp_path: Path, served_slurm: SlurmLab) -> AsyncIterator[Path]:
    """Of the allocations of a pool. After the test, nothing is left of them."""
    yield tmp_path / f"allocations-{os.getpid()}"
    if left := served_slurm.queue():
        served_slurm.command("scancel", "--quiet", *left)
    await until(lambda: not served_slurm.queue())


async def run_in_one(pool: Watched, *specs: LaunchSpec) -> Sequence[RunHandle]:
    """Runs on a node that came for them."""
    pool.demand = ONE
    await pool.until(lambda: pool.nodes)
    pool.demand = Demand(busy=frozenset(node.id for node in pool.nodes))
    handles = [await pool.driver.launch(dataclasses.replace(spec, node=pool.nodes[0].id)) for spec in specs]
    for spec in specs:
        await until((spec.cwd / "ready").exists)
    return handles


def driver_of(lab: SlurmLab, folder: Path) -> SlurmDriver:
    return make(lab, folder, [SMALL], client=Forgetful(lab.conf, patience_s=2.0))


@pytest.mark.parametrize(
    ("end", "said"), [(cancel, "CANCELLED by root"), (set_down, "NODE_FAIL"), (preempt, "PREEMPTED")]
)
async def test_a_worker_that_was_away_for_long_learns_how_an_allocation_ended(
    served_slurm: SlurmLab, folder: Path, make_spec: MakeSpec, end: Callable[[SlurmLab, str, str], None], said: str
) -> None:
    spec = make_spec(WAITS)
    async with watched(driver_of(served_slurm, folder)) as pool:
        await run_in_one(pool, spec)
        [job] = served_slurm.queue()
        host = pool.nodes[0].id.partition(".")[0]
    end(served_slurm, job, host)
    await until(lambda: job not in served_slurm.queue())
    accounting = SlurmClient(served_slurm.conf)
    while not await accounting.ends([job]):  # noqa: ASYNC110 -- it is told a moment later
        await asyncio.sleep(0.1)
    async with watched(driver_of(served_slurm, folder)) as pool:
        handle = await pool.driver.adopt(spec.run_id, spec.run_dir)
        assert handle is not None
        report = await handle.wait()
        assert said in report.cause and report.carries_on, report


async def test_without_an_answer_of_the_accounting_all_goes_on(
    served_slurm: SlurmLab, folder: Path, make_spec: MakeSpec
) -> None:
    served_slurm.script("accounting-stop")
    try:
        async with watched(driver_of(served_slurm, folder)) as pool:
            [handle] = await run_in_one(pool, make_spec(WAITS))
            [job] = served_slurm.queue()
            served_slurm.command("scancel", job)
            report = await handle.wait()
            assert report.carries_on and "not in Slurm's queue any more" in report.cause, report
    finally:
        served_slurm.script("accounting-start")


async def test_a_run_that_takes_more_memory_than_its_allocation_has_ends_and_its_neighbour_carries_on(
    served_slurm: SlurmLab, folder: Path, make_spec: MakeSpec
) -> None:
    """Slurm ends the whole allocation, and does not say who it was: who was alone is to blame."""
    spec, neighbour = make_spec(TAKES), make_spec(WAITS)
    async with watched(make(served_slurm, folder, [SMALL])) as pool:
        handles = await run_in_one(pool, spec, neighbour)
        (spec.cwd / "go").touch()
        for handle in handles:
            report = await handle.wait()
            assert report.carries_on and report.lost, report
            assert "ran out of main memory (OUT_OF_MEMORY)" in report.cause
        await pool.until(lambda: not pool.nodes)
        again = make_spec(TAKES)
        [handle] = await run_in_one(pool, again)
        (again.cwd / "go").touch()
        report = await handle.wait()
        assert not report.carries_on and not report.lost and report.returncode is None
        assert "the shape 'small'" in report.cause and "more `memory` in the block gpu-slurm" in report.cause
