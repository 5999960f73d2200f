"""Flow runs on nodes that Slurm lends: what users see of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.lab.checkout import IMAGE, environment, volumes
from prefect_gpu.lab.docker_nodes import Lab
from tests.live.pool import LivePool
from tests.live.slurm.conftest import SlurmPool
from tests.live.slurm.test_faults import goes_on
from tests.live.test_preemption import STEPS, result_of, undisturbed


async def test_runs_train_on_a_node_that_slurm_lends(slurm_pool: SlurmPool, tmp_path: Path) -> None:
    """And the node is asked for as the first run comes."""
    await slurm_pool.allow()
    assert slurm_pool.given_back()
    slurm_pool.start_worker()
    there, many = tmp_path / "there", tmp_path / "many"
    too_large = await slurm_pool.submit("train", job_variables={"gpus": 3})
    run_id = await slurm_pool.submit("carries_on", trace=str(there), steps=40)
    others = [await slurm_pool.submit("carries_on", trace=f"{many}{number}", steps=10) for number in range(6)]
    state = await slurm_pool.until(too_large)
    assert "no shape of the block gpu-slurm holds that (small: 2 devices of 8.0 GiB" in (state.message or ""), state
    state = await slurm_pool.until(run_id)
    assert state.is_completed(), state
    assert await slurm_pool.node(run_id) in slurm_pool.lab.nodes
    for one in others:
        assert (await slurm_pool.until(one)).is_completed()
    [row] = await slurm_pool.rows([run_id])
    assert row.outcome == "completed" and row.node and row.trained_s is not None
    assert result_of(there) == undisturbed(40)


async def test_each_run_has_a_job_of_its_own_where_the_site_wants_it_so(slurm_pool: SlurmPool) -> None:
    await slurm_pool.allow({"maximum": 2}, mode="one-job-per-run")
    slurm_pool.start_worker()
    runs = [await slurm_pool.submit("train", job_variables={"gpus": 1}) for _ in range(3)]
    for run_id in runs:
        state = await slurm_pool.until(run_id)
        assert state.is_completed(), state
    jobs = {(await slurm_pool.place(run_id)).partition(":")[0] for run_id in runs}
    assert len(jobs) == len(runs), jobs


@pytest.mark.full
async def test_the_same_flow_file_runs_with_three_drivers(slurm_pool: SlurmPool, cluster: Lab, tmp_path: Path) -> None:
    """On nodes of Slurm, as processes of this machine, and in containers: nothing of the flow's file says which."""
    in_containers = {
        "driver": "docker",
        "docker_host": cluster.nodes[0].url,
        "advertise": cluster.gateway,
        "channel_host": "0.0.0.0",
        "image": IMAGE,
        "checkpoints": str(tmp_path / "checkpoints"),
        "container_volumes": "*",
        "virtual_devices": "1",
    }
    mounted = {"env": environment() | {"NOTES": str(slurm_pool.notes)}, "volumes": volumes(tmp_path)}
    await slurm_pool.allow()
    kinds: list[tuple[str, Callable[[], object], dict[str, Any]]] = [
        ("slurm", slurm_pool.start_worker, {}),
        ("process", lambda: LivePool.start_worker(slurm_pool, state_dir=tmp_path / "here", virtual_devices="1"), {}),
        ("docker", lambda: LivePool.start_worker(slurm_pool, state_dir=tmp_path / "there", **in_containers), mounted),
    ]
    for name, start, variables in kinds:
        start()
        run_id = await slurm_pool.submit("carries_on", job_variables=variables, trace=str(tmp_path / name), steps=40)
        state = await slurm_pool.until(run_id)
        assert state.is_completed(), (name, state)
        assert result_of(tmp_path / name) == undisturbed(40)
        await asyncio.to_thread(slurm_pool.stop_workers)


@pytest.mark.full
async def test_a_gang_meets_across_the_nodes_of_an_allocation(slurm_pool: SlurmPool, tmp_path: Path) -> None:
    """And its parameter server with them: the job is a heterogeneous one, with a node without devices for that."""
    one_device = {"nodes": 2, "gres": "gpu:1", "virtual_devices": 1, "maximum": 1, "more_nodes": [{"cpus": 1}]}
    await slurm_pool.allow(one_device)
    slurm_pool.start_worker()
    trace, hurry = tmp_path / "trace", tmp_path / "hurry"
    run_id = await slurm_pool.submit(
        "carries_on_together",
        job_variables={"workers": 2, "ps": 1, "preemptible": True},
        trace=str(trace),
        steps=STEPS,
        step_s=0.1,
        hurry=str(hurry),
    )
    await goes_on(trace)
    first = slurm_pool.lab.queue()[0].partition("+")[0]
    slurm_pool.lab.command("scancel", first)
    await goes_on(trace)
    hurry.touch()
    state = await slurm_pool.until(run_id)
    assert state.is_completed(), state
    assert result_of(trace) == undisturbed(STEPS)
    assert {line.split()[3] for line in trace.read_text().splitlines()} == {"3"}
    [row] = await slurm_pool.rows([run_id])
    assert [(part["role"], len(part["devices"])) for part in row.parts] == [("worker", 1), ("worker", 1), ("server", 0)]
    assert row.parts[0]["node"] != row.parts[1]["node"]
    assert {part["node"].rpartition(".")[2] for part in row.parts}.isdisjoint({first})


async def test_a_cancelled_run_ends_as_cancelled(slurm_pool: SlurmPool, tmp_path: Path) -> None:
    await slurm_pool.allow()
    slurm_pool.start_worker(cancel_grace_seconds="5")
    run_id = await slurm_pool.submit("train", hold=str(tmp_path / "never"))
    await slurm_pool.until(run_id, "Training")
    await slurm_pool.cancel(run_id)
    assert (await slurm_pool.until(run_id, "Cancelled")).is_cancelled()
    assert "Crashed" not in await slurm_pool.names(run_id)
