"""What a cluster's accounts, and its main memory, allow: whoever waits for them, or ends by them, is told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from prefect_gpu.cli.slurm_check import check_slurm
from prefect_gpu.settings import GpuSettings
from tests.live.pool import DEADLINE_S, eventually
from tests.live.slurm.conftest import SlurmPool


async def said_of(pool: SlurmPool, run_id: UUID, words: str) -> str:
    """Wait until the run's state says this, and give all that it says."""
    told = ""

    async def said() -> bool:
        nonlocal told
        state = (await pool.read(run_id)).state
        told = f"{state.name}: {state.message}" if state is not None else ""
        return words in told

    try:
        await eventually(said, f"{words!r} in what {run_id} is told")
    except AssertionError as error:
        raise AssertionError(f"{error}; it is told {told!r}") from None
    return told


@pytest.mark.full
async def test_a_run_is_told_which_limit_of_its_account_it_waits_for(served_pool: SlurmPool, tmp_path: Path) -> None:
    reason = "QOSMaxGRESPerUser"
    await served_pool.allow({"account": "lab", "qos": "two-gpus", "maximum": 2})
    served_pool.start_worker()
    first = await served_pool.submit("train", job_variables={"gpus": 2}, hold=str(tmp_path / "go"))
    await served_pool.until(first, "Training")
    second = await served_pool.submit("train", job_variables={"gpus": 2})
    message = await said_of(served_pool, second, reason)
    assert f"an allocation of the shape 'small', waits for {reason}" in message
    (tmp_path / "go").touch()
    for run_id in (first, second):
        assert (await served_pool.until(run_id)).is_completed()


@pytest.mark.full
async def test_a_run_that_takes_too_much_memory_crashes_with_what_to_do_and_is_not_started_for_ever(
    served_pool: SlurmPool, tmp_path: Path
) -> None:
    """Though it is preemptible: what Slurm takes away because of the run itself, it would take away again."""
    await served_pool.allow({"memory": "1500M", "maximum": 1})
    served_pool.start_worker(warm_start="false")
    run_id = await served_pool.submit(
        "eats_memory", mebibytes=3000, hold=str(tmp_path / "never"), job_variables={"preemptible": True}
    )
    state = await served_pool.until(run_id)
    assert state.is_crashed(), state
    assert "OUT_OF_MEMORY" in (state.message or "") and "`memory`" in (state.message or "")
    assert served_pool.noted()[str(run_id)] == 1


@pytest.mark.full
async def test_a_drained_node_lets_its_run_end_and_takes_no_other_one(served_pool: SlurmPool, tmp_path: Path) -> None:
    """The pool asks the cluster by slurmrestd here, and the run does not see it."""
    await served_pool.allow({"maximum": 2}, rest=served_pool.lab.rest_socket)
    worker = served_pool.start_worker()
    first = await served_pool.submit("train", job_variables={"gpus": 1}, hold=str(tmp_path / "go"))
    await served_pool.until(first, "Training")
    node = await served_pool.node(first)
    served_pool.lab.command("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=a new fan")
    try:
        await asyncio.to_thread(worker.wait_for_output, f"{node} is drained (a new fan", timeout_s=DEADLINE_S)
        second = await served_pool.submit("train", job_variables={"gpus": 1})  # there is a free device beside the first
        assert (await served_pool.until(second)).is_completed()
        assert await served_pool.node(second) in set(served_pool.lab.nodes) - {node}
        other = next(one for one in served_pool.lab.nodes if one != node)
        served_pool.lab.command("scontrol", "update", f"NodeName={other}", "State=DRAIN", "Reason=a new fan")
        await asyncio.to_thread(worker.wait_for_output, f"{other} is drained (a new fan", timeout_s=DEADLINE_S)
        third = await served_pool.submit("train", job_variables={"gpus": 2})
        await said_of(served_pool, third, "waits for Nodes required for job are DOWN, DRAINED")
        (tmp_path / "go").touch()
        assert (await served_pool.until(first)).is_completed()
    finally:
        for name in served_pool.lab.nodes:
            served_pool.lab.command("scontrol", "update", f"NodeName={name}", "State=UNDRAIN")
    assert (await served_pool.until(third)).is_completed()


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({}, "answers; shapes: small (up to 3)"),
        ({"time": "4:00:00"}, "may last for 60 minutes: Slurm would never start its allocations"),
        ({"time": "4:00:00", "partition": "nowhere,train"}, "asks for the partition 'nowhere', and there is none"),
        (
            {"cpus": 4096},
            "would refuse an allocation of the shape small: Requested node configuration is not available",
        ),
    ],
)
async def test_the_doctor_says_what_slurm_would_never_grant(
    slurm_pool: SlurmPool, shape: dict[str, Any], said: str
) -> None:
    await slurm_pool.allow(shape)
    settings = GpuSettings(slurm=slurm_pool.name, advertise=slurm_pool.lab.gateway)
    [finding] = await asyncio.to_thread(check_slurm, settings)
    assert said in finding.text and finding.level == ("error" if shape else "ok")


async def test_the_doctor_says_that_nodes_would_find_no_prefect_server(slurm_pool: SlurmPool) -> None:
    """As where one listens at 127.0.0.1 alone, which is what it does if nothing is said."""
    await slurm_pool.allow()
    nobody = slurm_pool.lab.command("scontrol", "show", "node", slurm_pool.lab.nodes[0])
    address = nobody.partition("NodeAddr=")[2].split()[0]
    [finding] = await asyncio.to_thread(check_slurm, GpuSettings(slurm=slurm_pool.name, advertise=address))
    assert finding.level == "error" and f"no Prefect server at http://{address}:" in finding.text
    assert "--host 0.0.0.0" in finding.remedy
