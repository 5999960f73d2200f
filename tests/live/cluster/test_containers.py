"""Flow runs as containers on a Swarm: what users see of them."""

from __future__ import annotations

import asyncio

from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

from prefect_gpu.lab.checkout import volumes
from tests.live.cluster.pool import ClusterPool
from tests.live.pool import COLD, eventually


async def test_a_training_runs_in_a_container_and_the_next_one_takes_one_that_waits(swarm: ClusterPool) -> None:
    swarm.start_worker()
    first = await swarm.submit("train", steps=5)
    state = await swarm.until(first)
    assert state.is_completed(), state
    names = [node.name for node in swarm.lab.nodes]
    node, container = (await swarm.place(first)).split(":")
    assert node in names and len(container) == 12

    async def logged() -> bool:
        logs = await swarm.client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[first])))
        return all(any(text in log.message for log in logs) for text in ("gave this run", "Finished in state"))

    await eventually(logged, "what the worker and the run log")
    [row] = await swarm.rows([first])
    assert row.outcome == "completed" and row.node == node and row.trained_s is not None and not row.warm_start

    async def ready() -> bool:
        return await asyncio.to_thread(swarm.one_waits)

    warm = False
    for _ in range(3):  # the worker may hear of it a moment after us
        await eventually(ready, "a warm container")
        run_id = await swarm.submit("train", steps=5)
        assert (await swarm.until(run_id)).is_completed()
        [row] = await swarm.rows([run_id])
        assert row.outcome == "completed" and row.trained_s is not None
        warm = warm or row.warm_start
    assert warm
    swarm.stop_workers()
    assert not swarm.one_waits()


async def test_what_goes_wrong_says_why(swarm: ClusterPool) -> None:
    swarm.start_worker(**COLD)
    missing = await swarm.submit("plain", job_variables={"image": "no-such-image:1", "image_pull_policy": "Never"})
    hungry = await swarm.submit("eats_memory", mebibytes=600, job_variables={"memory_limit": "300MiB"})
    state = await swarm.until(missing)
    assert state.is_crashed() and "is not on its node" in (state.message or "")
    state = await swarm.until(hungry)
    assert state.is_crashed() and "more memory than its container's limit" in (state.message or "")


async def test_a_run_gets_nothing_of_the_host_that_the_operator_does_not_allow(swarm: ClusterPool) -> None:
    """Neither a run that a user submits, nor one that is submitted from within another."""
    folders = [volume.partition(":")[0] for volume in volumes(swarm.folder)]
    swarm.start_worker(container_volumes=",".join(folders), container_memory_max="4GiB", **COLD)
    whole = await swarm.submit("plain", job_variables={"volumes": [*volumes(swarm.folder), "/:/host"]})
    state = await swarm.until(whole)
    assert state.is_crashed() and "volumes='/:/host' is not allowed" in (state.message or "")
    assert "PREFECT_INTEGRATIONS_GPU_CONTAINER_VOLUMES" in (state.message or "")
    near = await swarm.submit("plain", job_variables={"network": "host"})
    state = await swarm.until(near)
    assert state.is_crashed() and "network='host' is not allowed" in (state.message or "")
    assert (await swarm.until(await swarm.submit("train", steps=5))).is_completed()
