"""Runs on nodes that see nothing of the worker's folders: what becomes of them while nobody listens."""

from __future__ import annotations

import tempfile
from pathlib import Path

from prefect_gpu.lab.sandbox import free_port
from prefect_gpu.lab.slurm_nodes import SlurmLab
from prefect_gpu.runtime.drivers.base import Demand
from prefect_gpu.runtime.drivers.conformance import MakeSpec, alive, until
from tests.runtime.drivers.slurm.conftest import WAITS, empty, make, process_of, running, watched

ENDS = """
    import os, time
    print("began", flush=True)
    open("ready", "w").close()
    while not os.path.exists("end"):
        time.sleep(0.02)
    print("ended by itself")
    raise SystemExit(5)
"""


def own_folder(folder: Path) -> Path:
    """Of the node of the one allocation that there is."""
    [record] = folder.glob("????????.json")
    return Path(tempfile.gettempdir()) / f"prefect-gpu-{record.stem}.0"


async def test_what_a_run_did_while_no_worker_was_there_is_heard_by_the_next(
    slurm: SlurmLab, folder: Path, make_spec: MakeSpec
) -> None:
    """And then nothing of it is left on the node."""
    port, spec = free_port(), make_spec(ENDS)
    async with watched(make(slurm, folder, shared=False, port=port)) as pool:
        handle = await running(pool, spec)
        there = own_folder(folder)
        assert (there / "runs").is_dir() and there.stat().st_mode & 0o077 == 0
    (spec.cwd / "end").touch()
    await until(lambda: not alive(process_of(handle)))
    async with watched(make(slurm, folder, shared=False, port=port, comes_back_s=15.0)) as pool:
        adopted = await pool.driver.adopt(spec.run_id, spec.run_dir)
        assert adopted is not None
        report = await adopted.wait()
        assert (report.returncode, report.tail) == (5, ("began", "ended by itself"))
        assert report.max_rss_bytes and report.cpu_seconds is not None
        await until(lambda: not any((there / "runs").iterdir()))
        pool.demand = Demand()
        slurm.command("scancel", *slurm.queue())
        await empty(slurm)
        await until(lambda: not there.exists())


async def test_a_run_whose_allocation_ends_while_no_worker_is_there_is_lost(
    slurm: SlurmLab, folder: Path, make_spec: MakeSpec
) -> None:
    port, spec = free_port(), make_spec(WAITS)
    async with watched(make(slurm, folder, shared=False, port=port)) as pool:
        await running(pool, spec)
    slurm.command("scancel", *slurm.queue())
    await empty(slurm)
    async with watched(make(slurm, folder, shared=False, port=port)) as pool:
        adopted = await pool.driver.adopt(spec.run_id, spec.run_dir)
        assert adopted is not None
        report = await adopted.wait()
        assert (report.returncode, report.lost, report.carries_on) == (None, True, True)
