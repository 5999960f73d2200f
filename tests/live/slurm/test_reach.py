"""Nodes that cannot connect to the worker's machine: runs there are as those that can."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.live.slurm.conftest import SlurmPool
from tests.live.slurm.ssh import LOGIN, connects, served, unreachable
from tests.live.slurm.test_faults import goes_on, train
from tests.live.test_preemption import STEPS, result_of, undisturbed


@pytest.mark.needs("openssh")
@pytest.mark.parametrize("opened_by", ["node", "worker"])
async def test_a_run_trains_behind_a_tunnel_which_breaks_and_with_another_worker(
    slurm_pool: SlurmPool, tmp_path: Path, opened_by: str
) -> None:
    """The tunnel is opened again, and leads to the next worker, whose ports are others."""
    lab, trace, hurry = slurm_pool.lab, tmp_path / "trace", tmp_path / "hurry"
    by_node = opened_by == "node"
    server = urlsplit(slurm_pool.sandbox.api_url)
    assert connects(lab.nodes[0], lab.gateway, server.port or 0)
    with served(lab, tmp_path, at_nodes=not by_node) as ssh, unreachable(lab):
        assert not any(connects(node, lab.gateway, server.port or 0) for node in lab.nodes)
        tunnel = {"opened_by": opened_by, "ssh_options": ["-F", str(ssh.config)]} | ({"via": LOGIN} if by_node else {})
        await slurm_pool.allow({"maximum": 1}, tunnel=tunnel)
        # A worker that opens them itself listens nowhere but at its own machine's loopback.
        where = {} if by_node else {"advertise": None, "channel_host": "127.0.0.1"}
        worker = slurm_pool.start_worker(**where)
        run_id = await train(slurm_pool, trace, hurry)
        await slurm_pool.until(run_id, "Training")
        await goes_on(trace)
        [job] = lab.queue()
        assert ssh.break_connections() > 0
        await goes_on(trace)
        await asyncio.to_thread(worker.kill)
        worker = slurm_pool.start_worker(**where)
        worker.wait_for_output("adopted it")
        other = await slurm_pool.submit("train", job_variables={"gpus": 1}, hold=str(hurry))
        await slurm_pool.until(other, "Training")  # its agent, its channel and Prefect: all lead to the next worker
        await goes_on(trace)
        assert lab.queue() == [job]
        hurry.touch()
        assert (await slurm_pool.until(other)).is_completed()
        state = await slurm_pool.until(run_id)
        assert state.is_completed(), state
        [row] = await slurm_pool.rows([run_id])
        assert row.outcome == "completed" and row.trained_s is not None
        await asyncio.to_thread(slurm_pool.stop_workers)
        lab.command("scancel", *lab.queue())
    assert result_of(trace) == undisturbed(STEPS)
    assert slurm_pool.noted("finished")[str(run_id)] == 1
