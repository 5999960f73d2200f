"""Nodes that see no file of the worker's: what runs need is sent, and what they say comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import psutil
import pytest
from prefect.flows import Flow
from prefect.runner.storage import GitRepository

from prefect_gpu.lab.sandbox import Process, free_port, wait_until
from tests.live.pool import FLOWS
from tests.live.slurm.conftest import SlurmPool
from tests.live.slurm.test_faults import goes_on
from tests.live.test_preemption import STEPS, result_of, undisturbed
from tests.radosgw import BUCKET, S3Server


@contextlib.contextmanager
def git_server(folder: Path, host: str) -> Iterator[str]:
    """The test's flows in a repository that Git's own server has; its address."""
    work, served = folder / "flows", folder / "served"
    work.mkdir()
    shutil.copy(FLOWS, work)
    git = ["git", "-C", str(work), "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "flows"]):
        subprocess.run([*git, *command], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(served / "flows.git")], check=True)
    port = free_port()
    command = ["git", "daemon", "--export-all", "--verbose", f"--base-path={served}", f"--port={port}", str(served)]
    server = Process(command, log=folder / "git.log", env=os.environ, cwd=folder)
    try:
        server.wait_for_output("Ready to rumble")
        yield f"git://{host}:{port}/flows.git"
    finally:
        server.terminate()


async def deployed(pool: SlurmPool, repository: str, flow: str) -> UUID:
    """A deployment that gets its code from the repository."""
    source: Any = await Flow.afrom_source(GitRepository(repository), entrypoint=f"{FLOWS.name}:{flow}")
    deployment = await source.ato_deployment(name=f"{pool.name}-git", work_pool_name=pool.name)
    return UUID(str(await deployment.apply()))


def seen_by_others(job: str, pool: SlurmPool) -> str:
    """What any user of the cluster can see of a job and of its processes, and a little more."""
    told = [pool.lab.command("scontrol", "show", "job", "-dd", job), pool.lab.command("squeue", "-o", "%all")]
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            told += [*one.cmdline(), *(f"{name}={value}" for name, value in one.environ().items())]
    return "\n".join(told)


@asynccontextmanager
async def unseen(
    pool: SlurmPool, s3: S3Server, folder: Path, shape: dict[str, Any]
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Nodes that see nothing of the worker's: where the flows' repository is, and what workers are told."""
    home = folder / "home"
    home.mkdir()
    setup = [f"export PREFECT_HOME={home}"]
    await pool.allow(shape, shared_folder=False, python=sys.executable, setup=setup)
    endpoint = f"http://{pool.lab.gateway}:{urlsplit(s3.endpoint_url).port}"
    where: dict[str, Any] = {
        "slurm_port": str(free_port()),
        "checkpoints": f"s3://{BUCKET}/runs?endpoint_url={endpoint}",
    }
    with pool.lab.hidden(pool.state_dir, FLOWS.parent), git_server(folder, pool.lab.gateway) as repository:
        yield repository, where


@pytest.mark.full
async def test_a_gang_meets_where_nothing_of_the_workers_is_seen(
    slurm_pool: SlurmPool, s3: S3Server, tmp_path: Path
) -> None:
    """And its parameter server with them, in another part of the job."""
    trace, hurry = tmp_path / "trace", tmp_path / "hurry"
    one_device = {"nodes": 2, "gres": "gpu:1", "virtual_devices": 1, "maximum": 1, "more_nodes": [{"cpus": 1}]}
    async with unseen(slurm_pool, s3, tmp_path, one_device) as (repository, where):
        slurm_pool.start_worker(others=s3.environment, **where)
        deployment = await deployed(slurm_pool, repository, "carries_on_together")
        run = await slurm_pool.client.create_flow_run_from_deployment(
            deployment,
            parameters={"trace": str(trace), "hurry": str(hurry), "steps": STEPS, "step_s": 0.1},
            job_variables={"workers": 2, "ps": 1, "preemptible": True},
        )
        await goes_on(trace)
        hurry.touch()
        state = await slurm_pool.until(run.id)
        assert state.is_completed(), state
        assert result_of(trace) == undisturbed(STEPS)
        [row] = await slurm_pool.rows([run.id])
        assert [part["role"] for part in row.parts] == ["worker", "worker", "server"]
        assert row.parts[0]["node"] != row.parts[1]["node"]
        await asyncio.to_thread(slurm_pool.stop_workers)
        slurm_pool.lab.command("scancel", *slurm_pool.lab.queue())
        await asyncio.to_thread(wait_until, slurm_pool.given_back, what="the allocations to end")


async def test_a_run_carries_on_where_nothing_of_the_workers_is_seen_with_the_same_result(
    slurm_pool: SlurmPool, s3: S3Server, tmp_path: Path
) -> None:
    """Its code comes by git, its checkpoints are in S3, and its worker and its allocation are lost on the way."""
    lab, trace, hurry = slurm_pool.lab, tmp_path / "trace", tmp_path / "hurry"
    async with unseen(slurm_pool, s3, tmp_path, {"maximum": 1}) as (repository, where):
        nowhere = slurm_pool.start_worker(slurm_port=where["slurm_port"])
        refused = await slurm_pool.submit("carries_on", job_variables={"preemptible": True}, trace=str(trace))
        state = await slurm_pool.until(refused)
        assert "preemptible=True needs checkpoints that every node reaches" in (state.message or ""), state
        await asyncio.to_thread(nowhere.terminate)
        worker = slurm_pool.start_worker(others=s3.environment, **where)
        deployment = await deployed(slurm_pool, repository, "carries_on")
        parameters = {"trace": str(trace), "hurry": str(hurry), "steps": STEPS, "step_s": 0.12}
        run = await slurm_pool.client.create_flow_run_from_deployment(
            deployment, parameters=parameters, job_variables={"preemptible": True}
        )
        await goes_on(trace)
        [first] = lab.queue()
        [record] = (slurm_pool.state_dir / "slurm").glob("*/????????.json")
        assert json.loads(record.read_text())["token"] not in seen_by_others(first, slurm_pool)
        await asyncio.to_thread(worker.kill)
        worker = slurm_pool.start_worker(others=s3.environment, **where)
        worker.wait_for_output("adopted it")
        await goes_on(trace)
        lab.command("scancel", first)
        await goes_on(trace)
        [second] = lab.queue()
        assert second != first
        hurry.touch()
        state = await slurm_pool.until(run.id)
        assert state.is_completed(), state
        assert result_of(trace) == undisturbed(STEPS)
        worker.wait_for_output("Finished in state Completed()")  # what the run has written, repeated
        [row] = await slurm_pool.rows([run.id])
        assert row.outcome == "completed" and row.trained_s is not None and row.rss_peak_bytes
        assert slurm_pool.noted("finished")[str(run.id)] == 1
        await asyncio.to_thread(slurm_pool.stop_workers)
        lab.command("scancel", *lab.queue())
        await asyncio.to_thread(wait_until, slurm_pool.given_back, what="the allocations to end")
