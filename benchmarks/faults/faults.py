"""What may go wrong on a cluster: how it begins, how long it lasts, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Sequence
from datetime import datetime, timezone

from prefect.exceptions import FlowPauseTimeout, NotPausedError
from prefect.flow_runs import aresume_flow_run, asuspend_flow_run

from benchmarks.faults.soak import Fault
from benchmarks.faults.swarm import SwarmSoak
from prefect_gpu.runtime.drivers.docker import Endpoint
from prefect_gpu.runtime.drivers.docker.containers import IDLE

LASTS_S = 15.0


async def kill_container(soak: SwarmSoak, chance: random.Random) -> None:
    """As the kernel does when memory runs out, or an operator."""
    node = chance.choice([node for node in soak.lab.nodes if node.process is not None])
    client = Endpoint(node.url).connect()
    ours = client.containers.list(filters={"label": f"prefect-gpu.pool={soak.pool}"})
    running = [one for one in ours if not one.name.startswith(IDLE)]  # no run is in those that wait
    if running:
        with contextlib.suppress(Exception):  # it may have ended just now
            chance.choice(running).kill()
    client.close()


async def cut_power(soak: SwarmSoak, chance: random.Random) -> None:
    """The daemon and every container of a node are gone at once; later it is back."""
    node = chance.choice(soak.lab.nodes[1:])
    await asyncio.to_thread(soak.lab.stop_engine, node)
    await asyncio.sleep(LASTS_S)
    await asyncio.to_thread(soak.lab.start_engine, node)


async def cut_link(soak: SwarmSoak, chance: random.Random) -> None:
    """A node's cable is pulled; what runs there goes on, and reaches nobody."""
    node = chance.choice(soak.lab.nodes[1:])
    soak.lab.set_link(node, up=False)
    await asyncio.sleep(_longer(chance))
    soak.lab.set_link(node, up=True)


async def freeze_node(soak: SwarmSoak, chance: random.Random) -> None:
    """Everything on a node stands still for a while."""
    node = chance.choice(soak.lab.nodes[1:])
    pids = soak.lab.freeze(node)
    await asyncio.sleep(_longer(chance))
    soak.lab.thaw(pids)


async def restart_manager(soak: SwarmSoak, chance: random.Random) -> None:
    """The Swarm's manager is restarted, in order; its containers end with it."""
    manager = soak.lab.nodes[0]
    await asyncio.to_thread(soak.lab.stop_engine, manager)
    await asyncio.sleep(chance.uniform(0.0, LASTS_S))
    await asyncio.to_thread(soak.lab.start_engine, manager)


async def kill_worker(soak: SwarmSoak, chance: random.Random) -> None:
    """kill -9; the one that stands by takes over."""
    soak.leader.kill()
    await asyncio.sleep(LASTS_S)
    soak.start_worker()


async def freeze_worker(soak: SwarmSoak, chance: random.Random) -> None:
    """The worker stands still; the one that stands by takes over, and the frozen one is of no account any more."""
    frozen = soak.leader
    frozen.popen.send_signal(signal.SIGSTOP)
    await asyncio.sleep(3 * LASTS_S)
    with contextlib.suppress(ProcessLookupError):
        frozen.popen.send_signal(signal.SIGCONT)
    if frozen.popen.poll() is not None:
        soak.start_worker()


async def lose_registry(soak: SwarmSoak, chance: random.Random) -> None:
    """A run asks for an image of a registry that is away: it must say so, and disturb nobody."""
    await soak.submit_without_image()


async def lose_storage(soak: SwarmSoak, chance: random.Random) -> None:
    """S3 is away: nobody can save, and who begins now cannot restore."""
    await asyncio.to_thread(soak.storage.halt)
    await asyncio.sleep(LASTS_S)
    await asyncio.to_thread(soak.storage.resume)


async def cordon_device(soak: SwarmSoak, chance: random.Random) -> int:
    """The devices of a run that may be stopped are taken out of service; once it has left, they are put back."""
    trainings, since = await soak.trainings(), datetime.now(timezone.utc)
    if not trainings:
        return 0
    run, devices = chance.choice(list(trainings.items()))
    soak.cordons.add(dict.fromkeys(devices, "it is out of service for a while"))
    stopped = await soak.gave_way([run], since, 3 * LASTS_S)
    await asyncio.sleep(LASTS_S)
    soak.cordons.remove(*devices)
    return stopped


async def drain_node(soak: SwarmSoak, chance: random.Random) -> int:
    """The node of a run that may be stopped is to be drained by a date; it is gone for a while, and back."""
    trainings, since = await soak.trainings(), datetime.now(timezone.utc)
    if not trainings:
        return 0
    node = chance.choice([_node(devices) for devices in trainings.values()])
    there = {run: devices for run, devices in trainings.items() if _node(devices) == node}
    chosen = sorted({device for devices in there.values() for device in devices})
    soak.cordons.add(dict.fromkeys(chosen, "its node is to be drained"), by=time.time() + LASTS_S)
    stopped = await soak.gave_way(there, since, 3 * LASTS_S)
    await asyncio.sleep(LASTS_S)
    soak.cordons.remove(*chosen)
    return stopped


async def give_notice(soak: SwarmSoak, chance: random.Random) -> int:
    """All machines are announced to be taken away in a moment; then that is taken back."""
    trainings, since = await soak.trainings(), datetime.now(timezone.utc)
    soak.notice_file.write_text(f"{chance.uniform(0.5, 1.0) * LASTS_S:.1f}")
    stopped = await soak.gave_way(trainings, since, 3 * LASTS_S)
    await asyncio.sleep(LASTS_S)
    soak.notice_file.unlink()
    return stopped


async def suspend_run(soak: SwarmSoak, chance: random.Random) -> int:
    """Its user suspends a run, and resumes it after a while."""
    run = await soak.one_that_trains(chance)
    if run is None:
        return 0
    stopped = 0
    with contextlib.suppress(NotPausedError, FlowPauseTimeout, RuntimeError):  # it has just ended, or waits again
        await asuspend_flow_run(flow_run_id=run)
        stopped = 1
    await asyncio.sleep(chance.uniform(0.0, LASTS_S))
    with contextlib.suppress(NotPausedError):
        await aresume_flow_run(run)
    return stopped


async def ask_for_promises(soak: SwarmSoak, chance: random.Random) -> None:
    """Two runs want their deadlines promised: that of one is far away, that of the other cannot be promised."""
    await soak.submit_with_deadline("2h", may_be=True)
    await soak.submit_with_deadline("5s", may_be=False)


def _node(devices: Sequence[str]) -> str:
    return devices[0].rpartition("/")[0]


def _longer(chance: random.Random) -> float:
    """Long enough for the Swarm to give a node up, or not quite: it does after about 15 seconds."""
    return chance.uniform(0.5, 2.0) * LASTS_S


FAULTS = (
    Fault("a container is killed", kill_container, quick=True),
    Fault("a node loses its power", cut_power),
    Fault("a node's link is cut", cut_link),
    Fault("a node is frozen", freeze_node),
    Fault("the manager restarts", restart_manager),
    Fault("the worker is killed", kill_worker),
    Fault("the worker is frozen", freeze_worker),
    Fault("the registry is away", lose_registry, quick=True),
    Fault("S3 is away", lose_storage),
    Fault("a device is cordoned", cordon_device),
    Fault("a node is to be drained", drain_node),
    Fault("all machines get notice", give_notice),
    Fault("a run is suspended", suspend_run, quick=True),
    Fault("promises are asked for", ask_for_promises, quick=True),
)
