"""Nodes whose kernel kills what takes more main memory than its allocation has, as with Slurm's task/cgroup."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_gpu.lab.slurm_nodes import SlurmLab, started
from prefect_gpu.runtime.drivers.base import Demand
from prefect_gpu.runtime.drivers.conformance import MakeSpec, until
from prefect_gpu.runtime.launch.diagnosis import diagnose, ran_out_of_memory
from tests.runtime.drivers.slurm.conftest import make, watched
from tests.runtime.drivers.slurm.test_accounting import SMALL, TAKES, WAITS, run_in_one
from tests.support import process_number

pytestmark = pytest.mark.full


@pytest.fixture
def lab() -> Iterator[SlurmLab]:
    with started(nodes=1, number=200 + process_number(), kernel_memory=True) as running:
        yield running


async def test_the_kernel_kills_one_run_its_neighbour_goes_on_and_the_next_starts_in_the_same_allocation(
    lab: SlurmLab, tmp_path: Path, make_spec: MakeSpec, caplog: pytest.LogCaptureFixture
) -> None:
    hungry, neighbour, later = make_spec(TAKES), make_spec(WAITS), make_spec("print('done')")
    async with watched(make(lab, tmp_path / "allocations", [SMALL], idle_s=2.0)) as pool:
        first, second = await run_in_one(pool, hungry, neighbour)
        (hungry.cwd / "go").touch()
        report = await first.wait()
        assert report.returncode == -9 and ran_out_of_memory(report), report
        assert "The kernel killed a process of the run because main memory ran out" in diagnose(report)
        assert not report.carries_on and not report.lost, "in the next allocation it would take as much"
        third = await pool.driver.launch(dataclasses.replace(later, node=pool.nodes[0].id))
        report = await third.wait()
        assert report.returncode == 0 and not ran_out_of_memory(report)
        await second.stop(0)
        pool.demand = Demand()
        await until(lambda: not lab.queue())
        await pool.until(lambda: not pool.nodes)
    assert "ran out of main memory" not in caplog.text, "the allocation was given back in peace"
