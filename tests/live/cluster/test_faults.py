"""What may go wrong on a Swarm: every run ends once, and carries on from its checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from prefect_gpu.lab.docker_nodes import LabNode
from prefect_gpu.runtime.drivers.docker import Endpoint
from tests.forge import SHORT_LEASE
from tests.live.cluster.pool import ClusterPool
from tests.live.pool import COLD, DEADLINE_S, eventually
from tests.live.test_preemption import result_of, steps_of, undisturbed

STEPS = 200
HURRY = "hurry"  # once it is there, no step takes any time
DEVICES = 2  # of each node


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.fixture(autouse=True)
def all_nodes_are_back(swarm: ClusterPool) -> Iterator[None]:
    """After a test that stops nodes."""
    yield
    for node in swarm.lab.nodes:
        if node.process is None:
            swarm.lab.start_engine(node)


async def trains(trace: Path, steps: int = 20) -> None:
    """Wait until so many steps are done."""

    async def far_enough() -> bool:
        return len(steps_of(trace)) >= steps

    await eventually(far_enough, f"{steps} steps of {trace}")


async def node_of(swarm: ClusterPool, run_id: UUID) -> LabNode:
    """The node that a run is on."""
    name = (await swarm.place(run_id)).split(":")[0]
    return next(node for node in swarm.lab.nodes if node.name == name)


def words_of(trace: Path, column: int) -> set[str]:
    """What stands in a column of the trace."""
    return {line.split()[column] for line in trace.read_text().splitlines()}


def tries(trace: Path) -> list[list[int]]:
    """The steps of each container, in their order."""
    found: dict[str, list[int]] = {}
    for line in trace.read_text().splitlines():
        step, container, *_ = line.split()
        found.setdefault(container, []).append(int(step))
    return list(found.values())


def went_on(trace: Path) -> None:
    """The result is that of an undisturbed run, and no step is missing."""
    assert sorted(set(steps_of(trace))) == list(range(STEPS))
    assert result_of(trace) == undisturbed(STEPS)


async def test_a_run_whose_container_is_killed_is_tried_again(swarm: ClusterPool, trace: Path) -> None:
    swarm.start_worker(**COLD)
    run_id = await swarm.submit("carries_on", trace=str(trace), steps=STEPS, hurry=str(swarm.folder / HURRY))
    await trains(trace)
    node, pid = await node_of(swarm, run_id), await swarm.place(run_id)
    client = Endpoint(node.url).connect()
    client.api.kill(pid.split(":")[1])
    client.close()
    (swarm.folder / HURRY).touch()
    assert (await swarm.until(run_id)).is_completed()
    went_on(trace)
    first, second = tries(trace)
    assert 0 < second[0] <= first[-1] + 1, "it carried on from a checkpoint"


async def test_a_run_whose_node_is_lost_carries_on_elsewhere(swarm: ClusterPool, trace: Path) -> None:
    """The daemon and everything on the node is gone, as if its power were cut."""
    swarm.start_worker()
    manager, others = swarm.lab.nodes[0], []
    for number in range(2 * DEVICES):  # one more than the manager's node takes
        trace = trace.with_name(f"trace-{number}")
        hurry = str(swarm.folder / HURRY)
        run_id = await swarm.submit("carries_on", trace=str(trace), steps=STEPS, step_s=0.5, hurry=hurry)
        await trains(trace, 5)
        lost = await node_of(swarm, run_id)
        if lost is not manager:
            break
        others.append(run_id)
    await asyncio.to_thread(swarm.lab.stop_engine, lost)
    (swarm.folder / HURRY).touch()
    assert (await swarm.until(run_id)).is_completed()
    went_on(trace)
    assert len(words_of(trace, 1)) == 2
    assert (await node_of(swarm, run_id)).name != lost.name
    for other in others:
        assert (await swarm.until(other)).is_completed()


async def test_a_worker_that_takes_over_follows_the_containers(swarm: ClusterPool, trace: Path) -> None:
    first = swarm.start_worker(others=SHORT_LEASE)
    hurry = str(swarm.folder / HURRY)
    run_id = await swarm.submit("carries_on", trace=str(trace), steps=STEPS, step_s=0.5, hurry=hurry)
    await trains(trace, 5)
    first.kill()
    second = swarm.start_worker(others=SHORT_LEASE)
    await asyncio.to_thread(second.wait_for_output, "adopted it", timeout_s=DEADLINE_S)
    (swarm.folder / HURRY).touch()
    assert (await swarm.until(run_id)).is_completed()
    went_on(trace)
    assert len(words_of(trace, 2)) == 1, "it was not started again"
    [row] = await swarm.rows([run_id])
    assert row.steps_done == STEPS, "it found the new worker's channel"


async def test_a_run_is_cancelled_and_one_that_was_taken_over_as_well(swarm: ClusterPool, trace: Path) -> None:
    first = swarm.start_worker(others=SHORT_LEASE, **COLD)
    traces = [trace.with_name(f"trace-{number}") for number in range(2)]
    run_ids = [await swarm.submit("carries_on", trace=str(one), steps=100_000) for one in traces]
    for one in traces:
        await trains(one)
    for run_id in run_ids:
        await swarm.cancel(run_id)
        assert (await swarm.until(run_id)).name == "Cancelled"
        assert "Crashed" not in await swarm.names(run_id), "whoever waits for the run would take it for the end"
        if run_id == run_ids[0]:
            first.kill()
            swarm.start_worker(others=SHORT_LEASE, **COLD).wait_for_output("adopted it", timeout_s=DEADLINE_S)
