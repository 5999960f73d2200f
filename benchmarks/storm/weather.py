"""What happens in a storm: each kind of act, and the order in which a seed lets them happen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

import httpx
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import PrefectException

from benchmarks.storm.world import World
from prefect_gpu.worker import GpuWorker

_PATHS = ("", "", r"/api/flow_runs/", r"/api/work_pools/", r"/set_state", r"/api/v2/concurrency_limits", r"/api/logs")


@dataclass(frozen=True)
class Act:
    """One thing that happens.

    Attributes:
        at_s: When, in seconds from the storm's beginning.
        kind: A name of :data:`KINDS`.
        seed: Of its choices.
    """

    at_s: float
    kind: str
    seed: int


def forecast(seed: int, minutes: float, every_s: float) -> list[Act]:
    """What will happen: as many acts as fit, of all kinds in equal parts, in an order that the seed decides."""
    chance = random.Random(seed)
    acts: list[Act] = []
    left: list[str] = []
    at = 0.0
    while True:
        at += chance.expovariate(1.0 / every_s)
        if at > 60.0 * minutes:
            return acts
        if not left:
            left = chance.sample(sorted(KINDS), len(KINDS))
        acts.append(Act(round(at, 1), left.pop(), chance.randrange(2**31)))


def as_json(acts: list[Act]) -> list[dict[str, Any]]:
    """For a report that can be replayed."""
    return [asdict(act) for act in acts]


async def happen(world: World, act: Act) -> None:
    """Do it, wait as long as it lasts, and undo what is to be undone. The server may refuse what a user asks of it."""
    with contextlib.suppress(PrefectException, httpx.HTTPError):
        await KINDS[act.kind](world, random.Random(act.seed))


# -- the network ------------------------------------------------------------------------------------------------------


def _answers(
    answer: Any, least_s: float = 2.0, most_s: float = 30.0
) -> Callable[[World, random.Random], Awaitable[None]]:
    async def act(world: World, chance: random.Random) -> None:
        fault = await world.proxy.fail(answer, chance.choice(_PATHS), delay_s=chance.uniform(0.2, 3.0))
        await asyncio.sleep(chance.uniform(least_s, most_s))
        await world.proxy.heal(fault)

    return act


async def restart_server(world: World, chance: random.Random) -> None:
    """The server is down for a while."""
    await asyncio.to_thread(world.sandbox.stop_server)
    await asyncio.sleep(chance.uniform(0.0, 15.0))
    await asyncio.to_thread(world.sandbox.start_server)


# -- workers ----------------------------------------------------------------------------------------------------------


async def kill_worker(world: World, chance: random.Random) -> None:
    """kill -9, and another one later, if the one that stands by is not enough."""
    if living := world.living():
        chance.choice(living).kill()
    await asyncio.sleep(chance.uniform(0.0, 10.0))
    world.start_worker()


async def freeze_worker(world: World, chance: random.Random) -> None:
    """One stands still, for longer than its lease or not quite."""
    if living := world.living():
        with world.standing_still(chance.choice(living)), contextlib.suppress(ProcessLookupError):
            await asyncio.sleep(chance.uniform(1.0, 40.0))
        _fill_up(world)


async def stop_worker(world: World, chance: random.Random) -> None:
    """Ctrl-C, as for an upgrade."""
    if living := world.living():
        await asyncio.to_thread(chance.choice(living).terminate)
    world.start_worker()


async def roll_back(world: World, chance: random.Random) -> None:
    """All workers are of the earlier version for a while, and then of this one again."""
    if world.former is None:
        return
    world.stop_workers()
    world.start_worker(former=True)
    await asyncio.sleep(chance.uniform(15.0, 40.0))
    world.stop_workers()
    _fill_up(world)


async def step_clock(world: World, chance: random.Random) -> None:
    """The workers' clocks are set back or forth by up to two hours, and later right again."""
    world.set_clock(chance.choice((-1, 1)) * chance.uniform(60.0, 7200.0))
    await asyncio.sleep(chance.uniform(5.0, 30.0))
    world.set_clock(0.0)


# -- disks ------------------------------------------------------------------------------------------------------------


async def fill_disk(world: World, chance: random.Random) -> None:
    """The file system of the workers' state has no byte left."""
    if not world.can_fill_disk:
        return
    filler = world.state / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(b"\0" * 65536)
            file.flush()
    await asyncio.sleep(chance.uniform(2.0, 15.0))
    filler.unlink()


async def lose_power(world: World, chance: random.Random) -> None:
    """All workers and runs are gone at once, and what was written last of one record is torn."""
    world.stop_workers()
    for process in world.sandbox.runs_left():
        with contextlib.suppress(Exception):
            process.kill()
    files = sorted((file for file in world.state.glob("runs/*/*") if file.is_file()), key=os.path.getmtime)
    if files:
        torn = chance.choice(files[-4:])
        with torn.open("r+b") as file:
            file.truncate(chance.choice((0, torn.stat().st_size // 2)))
    _fill_up(world)


async def reuse_pids(world: World, chance: random.Random) -> None:
    """Workers and runs are gone, and other people's processes have the numbers of the runs' when a worker is back."""
    world.stop_workers()
    world.give_pids_to_others()
    _fill_up(world)


# -- runs that misbehave ----------------------------------------------------------------------------------------------


async def flood(world: World, chance: random.Random) -> None:
    """A run prints as much as it can."""
    await world.submit_misbehaving("floods", megabytes=chance.randrange(5, 30))


async def nonsense(world: World, chance: random.Random) -> None:
    """A run lies to the controller."""
    await world.submit_misbehaving("talks_nonsense", seed=chance.randrange(10**6))


async def kill_run(world: World, chance: random.Random) -> None:
    """A process of a run is killed, as by the kernel."""
    if processes := world.sandbox.runs_left():
        with contextlib.suppress(Exception):
            chance.choice(processes).kill()


# -- users ------------------------------------------------------------------------------------------------------------


async def cancel_runs(world: World, chance: random.Random) -> None:
    """Some runs are cancelled, wherever they are."""
    for run in _some(await world.open(), chance):
        await world.cancel(run)


async def delete_runs(world: World, chance: random.Random) -> None:
    """Some runs are deleted, wherever they are."""
    for run in _some(await world.open(), chance):
        await world.delete(run)


async def retry_runs(world: World, chance: random.Random) -> None:
    """Some runs that were cancelled are retried."""
    for run in _some(await world.cancelled(), chance):
        await world.retry(run)


async def pause_pool(world: World, chance: random.Random) -> None:
    """The pool is paused for a while."""
    await world.client.update_work_pool(world.pool, WorkPoolUpdate(is_paused=True))
    await asyncio.sleep(chance.uniform(2.0, 20.0))
    while True:  # or nothing would ever run again, which is no fault of ours
        with contextlib.suppress(PrefectException, httpx.HTTPError):
            await world.client.update_work_pool(world.pool, WorkPoolUpdate(is_paused=False))
            return
        await asyncio.sleep(1.0)


async def delete_deployment(world: World, chance: random.Random) -> None:
    """The deployment is deleted while runs of it wait and train; a new one takes its place."""
    await world.delete_deployment()


async def delete_flow(world: World, chance: random.Random) -> None:
    """The flow is deleted, with all of its runs wherever they are; it is deployed again."""
    await world.delete_flow()


async def delete_pool(world: World, chance: random.Random) -> None:
    """A pool is deleted under a worker that serves it; its worker must not take others with it."""
    name = f"doomed-{chance.randrange(10**9)}"
    template = GpuWorker.get_default_base_job_template()
    await world.client.create_work_pool(WorkPoolCreate(name=name, type="gpu", base_job_template=template))
    state = world.folder / name
    worker = world.sandbox.start_worker(name, env=world.environment(state, state / "checkpoints"), wait=False)
    await asyncio.sleep(chance.uniform(8.0, 15.0))
    await world.client.delete_work_pool(name)
    await asyncio.sleep(chance.uniform(0.0, 5.0))
    await asyncio.to_thread(worker.terminate, timeout_s=20.0)
    shutil.rmtree(state, ignore_errors=True)


def _some(runs: list[Any], chance: random.Random) -> list[Any]:
    return chance.sample(runs, min(len(runs), chance.randrange(1, 3)))


def _fill_up(world: World) -> None:
    """One leads and one stands by, as it should be."""
    for _ in range(2 - len(world.living())):
        world.start_worker()


KINDS: dict[str, Callable[[World, random.Random], Awaitable[None]]] = {
    "the server answers 401": _answers(401),
    "the server answers 404": _answers(404),
    "the server answers 429": _answers(429),
    "the server answers 500": _answers(500),
    "the server answers 503": _answers(503),
    "the server cannot be reached": _answers("refuse"),
    "the server stands still": _answers("freeze", 5.0, 45.0),
    "the server's answers are lost": _answers("cut", 1.0, 8.0),
    "the server's answers are truncated": _answers("truncate", 1.0, 8.0),
    "the server is slow": _answers("slow"),
    "the server restarts": restart_server,
    "a worker is killed": kill_worker,
    "a worker stands still": freeze_worker,
    "a worker is stopped": stop_worker,
    "the worker is rolled back": roll_back,
    "the clock is stepped": step_clock,
    "the disk is full": fill_disk,
    "the power is lost": lose_power,
    "numbers of processes are used again": reuse_pids,
    "a run floods": flood,
    "a run talks nonsense": nonsense,
    "a run is killed": kill_run,
    "runs are cancelled": cancel_runs,
    "runs are retried": retry_runs,
    "runs are deleted": delete_runs,
    "the pool is paused": pause_pool,
    "the deployment is deleted": delete_deployment,
    "the flow is deleted": delete_flow,
    "another pool is deleted": delete_pool,
}
"""Every kind of act, by what is said of it."""
