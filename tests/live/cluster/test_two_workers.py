"""Two workers that serve one Engine, without a common state folder: one leads, and removes what the other left."""

from __future__ import annotations

import asyncio
import signal

from prefect_gpu.lab.sandbox import Process
from tests.forge import SHORT_LEASE
from tests.live.cluster.pool import ClusterPool
from tests.live.pool import eventually


def start(swarm: ClusterPool, name: str) -> Process:
    """Each is on a machine of its own, as far as they know."""
    folder = swarm.folder / name
    return swarm.start_worker(wait=False, state_dir=folder, driver="docker", virtual_devices="1", others=SHORT_LEASE)


async def test_who_takes_over_without_records_removes_the_containers_and_every_run_ends_once(
    swarm: ClusterPool,
) -> None:
    first = start(swarm, "first")
    go = swarm.folder / "go"
    running = await swarm.submit("tried_again", hold=str(go))
    await swarm.until_noted(running)
    waiting = await swarm.submit("train")
    await swarm.until(waiting, "AwaitingGpu")
    [[old]] = swarm.containers().values()
    second = start(swarm, "second")
    await asyncio.to_thread(second.wait_for_output, "Standing by")
    first.popen.send_signal(signal.SIGSTOP)

    async def tried_again() -> bool:
        return swarm.noted()[str(running)] == 2

    await eventually(tried_again, "a second try")
    assert not any(old in names for names in swarm.containers().values())
    first.popen.send_signal(signal.SIGCONT)  # while a container of the other runs
    await asyncio.to_thread(first.wait_for_output, "no longer leads")
    await asyncio.to_thread(first.wait_for_output, "Standing by")
    go.touch()
    for run_id in (running, waiting):
        await swarm.until(run_id, "Completed")
    assert swarm.noted("finished") == {str(running): 1, str(waiting): 1}
    assert swarm.noted() == {str(running): 2, str(waiting): 1}
