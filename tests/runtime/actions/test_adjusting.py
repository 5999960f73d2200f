"""What reaches a run that is running: instructions over a real channel server, priorities at a stand-in process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.runtime.actions.adjusting import _AFTER_S, ASIDE_WEIGHT, LAST_WEIGHT, Adjuster
from prefect_gpu.runtime.channel import ChannelServer
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement
from prefect_gpu.scheduling.model.instructions import Finish, OpenGate, SetCores, SetShare
from prefect_gpu.training import protocol
from tests.runtime.launches import launched
from tests.runtime.stand_ins import MemoryHandle

NODE = Node("n", (Device("GPU-1", "H200", 8), Device("virtual-0", "virtual", 8, virtual=True)), (0, 1, 2))


class Handle(MemoryHandle):
    """Remembers what would be done to the process."""

    def __init__(self) -> None:
        super().__init__("r")
        self.did: list[Any] = []

    def bind(self, cpus: tuple[int, ...]) -> bool:
        self.did.append(("bind", cpus))
        return True

    def set_priority(self, weight: float) -> bool:
        self.did.append(("priority", weight))
        return True


class Desk:
    """An adjuster, and one run that it adjusts."""

    def __init__(self, device: str = "virtual-0", behind: str | None = None, weight: float = 1.0) -> None:
        self.channel = ChannelServer(lambda *event: None)
        self.channel.admit("r", "token")
        self.runs: dict[str, Launch] = {}
        self.saved: list[tuple[str | None, float, tuple[int, ...]]] = []
        self.adjuster = Adjuster(self.channel, Fleet((NODE,)), self.runs, self.save, lambda: 5.0)
        place = Placement("n", (device,), (0,))
        self.handle = Handle()
        gate = {"gated": behind is not None, "behind": behind}
        self.run = launched("r", place, handle=self.handle, folder=Path(), weight=weight, **gate)

    def rank(self, runs: dict[str, Launch]) -> None:
        """These are launched, and one of them has begun or ended to save."""
        self.runs.clear()
        self.runs.update(runs)
        self.adjuster.rank()

    def save(self, run: Launch) -> None:
        self.saved.append((run.record.behind, run.record.weight, run.record.placement.cpus))

    async def told(self) -> list[tuple[str, dict[str, Any]]]:
        """What waits for the run in the channel."""
        while self.adjuster._tasks:
            await next(iter(self.adjuster._tasks))
        frames = [json.loads(frame) for frame in self.channel._runs["r"].instructions.values()]
        return [(frame["kind"], frame["data"]) for frame in frames]


async def test_a_gate_is_noted_before_it_is_opened_and_the_processor_comes_after() -> None:
    desk = Desk(behind="a")
    desk.adjuster.carry_out(desk.run, OpenGate("r", "a saves"))
    assert desk.saved == [(None, 1.0, (0,))] and desk.handle.did == []
    assert await desk.told() == [(protocol.OPEN_GATE, {})]
    assert desk.handle.did == [("priority", 1.0)]


async def test_whoever_prepares_behind_another_has_a_small_share_of_the_processor() -> None:
    behind, free = Desk(behind="a"), Desk()
    behind.adjuster.started(behind.run)
    free.adjuster.started(free.run)
    assert behind.handle.did == [("priority", ASIDE_WEIGHT)] and free.handle.did == []


async def test_a_run_that_went_through_its_gate_by_itself_gets_its_processor_back() -> None:
    desk = Desk(behind="a")
    desk.adjuster._trains(desk.run)
    assert desk.run.record.behind is None and desk.saved
    assert await desk.told() == [(protocol.OPEN_GATE, {})] and desk.handle.did == [("priority", 1.0)]
    desk.adjuster._trains(desk.run)
    assert len(await desk.told()) == 1


async def ranked(desk: Desk, runs: dict[str, Launch]) -> None:
    desk.rank(runs)
    assert not desk.handle.did, "the next one is told first that it may train"
    await asyncio.sleep(2 * _AFTER_S)


def another(behind: str | None = None) -> Launch:
    return launched("s", Placement("n", ("virtual-0",), (0,)), handle=MemoryHandle("s"), behind=behind)


def saving(weight: float = 1.0) -> Desk:
    desk = Desk(weight=weight)
    for phase in (protocol.PREPARING, protocol.TRAINING, protocol.SAVING):
        desk.run.enter(phase, 1.0, {})
    return desk


@pytest.mark.parametrize(("weight", "given"), [(1.0, ASIDE_WEIGHT), (0.1, 0.1)])
async def test_whoever_saves_makes_room_and_has_it_back_when_it_trains_again(weight: float, given: float) -> None:
    desk = saving(weight)
    runs = {"r": desk.run, "s": another()}
    await ranked(desk, runs)
    assert desk.handle.did == [("priority", given)]
    for phase in (protocol.PREPARING, protocol.TRAINING):
        desk.run.enter(phase, 3.0, {})
    desk.adjuster._trains(desk.run)
    desk.rank(runs)
    await asyncio.sleep(2 * _AFTER_S)
    assert desk.handle.did[1:] == [("priority", weight)]


async def test_whoever_saves_comes_last_while_somebody_prepares() -> None:
    desk, next_one = saving(), another(behind="x")
    runs = {"r": desk.run, "s": next_one}
    await ranked(desk, runs)
    assert desk.handle.did == [("priority", LAST_WEIGHT)]
    next_one.enter(protocol.PREPARING, 2.0, {})
    next_one.enter(protocol.PREPARING, 3.0, {"waiting": True})
    for _ in range(2):  # the second time, nothing is new
        desk.rank(runs)
        await asyncio.sleep(2 * _AFTER_S)
    assert desk.handle.did[1:] == [("priority", ASIDE_WEIGHT)]


async def test_nobody_is_ranked_alone_or_after_the_end() -> None:
    desk = saving()
    await ranked(desk, {"r": desk.run})
    assert desk.handle.did == []
    desk.rank({"r": desk.run, "s": another()})
    desk.adjuster.close()
    await asyncio.sleep(2 * _AFTER_S)
    assert desk.handle.did == []


@pytest.mark.parametrize(("still_behind", "opened"), [(None, [(protocol.OPEN_GATE, {})]), ("a", [])])
async def test_the_gate_of_an_adopted_run_is_opened_unless_it_is_to_wait(still_behind: str | None, opened: Any) -> None:
    desk = Desk(behind="a")
    desk.adjuster.make_up(desk.run, behind=still_behind)
    assert await desk.told() == opened


async def test_cores_are_changed_in_the_process_and_told_to_its_libraries() -> None:
    desk = Desk()
    desk.adjuster.carry_out(desk.run, SetCores("r", (1, 2), ""))
    assert desk.saved == [(None, 1.0, (1, 2))] and desk.handle.did == [("bind", (1, 2))]
    assert await desk.told() == [(protocol.USE_CPUS, {"cpus": [1, 2]})]


@pytest.mark.parametrize(
    ("device", "weight", "priority", "paced"),
    [("virtual-0", 0.25, 0.25, 1.0), ("virtual-0", 0.0, 1.0, 0.0), ("GPU-1", 0.25, 0.25, 0.25)],
)
async def test_a_share_is_a_priority_and_on_a_gpu_and_to_pause_a_part_of_the_time(
    device: str, weight: float, priority: float, paced: float
) -> None:
    desk = Desk(device)
    desk.adjuster.carry_out(desk.run, SetShare("r", weight, ""))
    assert desk.saved == [(None, weight, (0,))] and desk.handle.did == [("priority", priority)]
    assert await desk.told() == [(protocol.SET_SHARE, {"weight": paced})]


async def test_a_run_that_is_to_end_early_is_asked_to_stop() -> None:
    desk = Desk()
    desk.adjuster.carry_out(desk.run, Finish("r", "it has converged"))
    assert await desk.told() == [(protocol.STOP, {"reason": "it has converged"})]
