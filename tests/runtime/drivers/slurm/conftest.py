"""A pool's allocations on the real Slurm."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.lab.slurm_nodes import SlurmLab
from prefect_gpu.runtime.drivers.base import Demand, LaunchSpec, RunHandle, Wanted
from prefect_gpu.runtime.drivers.conformance import MakeSpec, probes, until
from prefect_gpu.runtime.drivers.slurm import words
from prefect_gpu.runtime.drivers.slurm.client import SlurmClient
from prefect_gpu.runtime.drivers.slurm.cluster import SlurmJob
from prefect_gpu.runtime.drivers.slurm.driver import SlurmDriver
from prefect_gpu.runtime.drivers.slurm.parts import Part
from prefect_gpu.runtime.drivers.slurm.shapes import Plan, Shape
from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.scheduling.model.jobs import Request

LOGGER = logging.getLogger("test.driver")
PART = Part(gres="gpu:2", virtual_devices=2)
SHAPE = Shape("small", 30, (PART,), python=sys.executable)


def make(lab: SlurmLab, folder: Path, shapes: Sequence[Shape] = (SHAPE,), **more: Any) -> SlurmDriver:
    """A driver of a pool, whose allocations are kept in a folder."""
    one_run, shared = more.pop("one_run", False), more.pop("shared", True)
    plan = Plan(tuple(shapes), idle_s=more.pop("idle_s", 600.0), poll_s=0.5, one_run=one_run, shared=shared)
    settings: dict[str, Any] = {"warm": False, "alone_s": 600.0, "python": sys.executable}
    settings |= {name: more.pop(name) for name in list(more) if name in ("warm", "preload", "alone_s", "environ")}
    more = {"echo": lambda label, line: None, "comes_back_s": 5.0, "logger": LOGGER} | more
    return SlurmDriver(
        more.pop("client", None) or SlurmClient(lab.conf, patience_s=2.0),
        plan,
        folder,
        f"prefect-gpu-test-{folder.name}-",
        agents=words.Settings(url="", **settings),
        host=lab.gateway,
        **more,
    )


class Forgetful(SlurmClient):
    """Slurm's queue as it is after MinJobAge, which is minutes: jobs that are over are not there any more."""

    async def jobs(self, prefix: str) -> list[SlurmJob]:
        return [job for job in await super().jobs(prefix) if job.waits or job.runs]


class Watched:
    """A driver as the controller has it: with the demand that a test says, and the nodes that it tells of."""

    def __init__(self, driver: SlurmDriver) -> None:
        self.driver = driver
        self.demand = Demand()
        self.nodes: Sequence[Node] = ()
        driver.demand = lambda: self.demand

    def _tell(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():  # noqa: ASYNC110 -- it is Slurm that changes
            await asyncio.sleep(0.05)


@asynccontextmanager
async def watched(driver: SlurmDriver) -> AsyncIterator[Watched]:
    """Start the driver and let it have allocations as the demand says; at the end they go on without it."""
    one = Watched(driver)
    await driver.start()
    watching = asyncio.create_task(driver.watch_nodes(one._tell))
    try:
        yield one
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await driver.close()


ONE = Demand(waiting=(Wanted(Request(gpus=1)),))
WAITS = "import time; open('ready', 'w').close(); time.sleep(600)"


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    return probes(tmp_path)


@pytest.fixture
async def folder(tmp_path: Path, slurm: SlurmLab) -> AsyncIterator[Path]:
    """Of the allocations of a pool. After the test, nothing may be left of them."""
    yield tmp_path / f"allocations-{os.getpid()}"
    await empty(slurm)


async def running(pool: Watched, spec: LaunchSpec) -> RunHandle:
    """A run on a node that came for it."""
    pool.demand = ONE
    await pool.until(lambda: pool.nodes)
    pool.demand = Demand(busy=frozenset(node.id for node in pool.nodes))
    handle = await pool.driver.launch(dataclasses.replace(spec, node=pool.nodes[0].id))
    await until((spec.cwd / "ready").exists)
    return handle


def process_of(handle: RunHandle) -> int:
    return int(str(handle.pid).rpartition(":")[2])


async def empty(slurm: SlurmLab) -> None:
    await until(lambda: not slurm.queue())


# Ends of an allocation.


def cancel(slurm: SlurmLab, job: str, host: str) -> None:
    slurm.command("scancel", job)


def set_down(slurm: SlurmLab, job: str, host: str) -> None:
    slurm.command("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=test")
    with suppress(subprocess.CalledProcessError):  # its slurmd may have registered it again before (ReturnToService)
        slurm.command("scontrol", "update", f"NodeName={host}", "State=RESUME")


def preempt(slurm: SlurmLab, job: str, host: str) -> None:
    urgent = ["sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", f"--nodelist={host}", "--wrap=true"]
    slurm.command(*urgent)
