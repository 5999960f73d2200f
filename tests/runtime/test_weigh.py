"""How a run's share is carried out: a processor by priority, a GPU by pauses. The driver's handle is a stand-in."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from prefect_gpu.runtime.actions.adjusting import Adjuster
from prefect_gpu.runtime.channel import ChannelServer
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.drivers.base import RunHandle
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement
from prefect_gpu.scheduling.model.instructions import SetShare
from tests.runtime.launches import launched


class Handle:
    """A process whose priority can be changed, or cannot."""

    def __init__(self, able: bool) -> None:
        self.able = able
        self.weights: list[float] = []

    def set_priority(self, weight: float) -> bool:
        self.weights.append(weight)
        return self.able


class Channel:
    def __init__(self) -> None:
        self.sent: list[float] = []

    async def instruct(self, run_id: str, kind: str, data: dict[str, Any]) -> None:
        self.sent.append(data["weight"])


@pytest.mark.parametrize(
    "virtual, able, weight, priority, pace",
    [
        (True, True, 0.25, 0.25, 1.0),
        (True, False, 0.25, 0.25, 0.25),
        (False, True, 0.25, 0.25, 0.25),
        (True, True, 0.0, 1.0, 0.0),
        (True, True, 1.0, 1.0, 1.0),
    ],
    ids=["a processor", "a priority that cannot be changed", "a GPU", "a pause", "a full share"],
)
async def test_a_share_reaches_the_run(virtual: bool, able: bool, weight: float, priority: float, pace: float) -> None:
    node = Node("n", (Device("d", "x", 1, virtual=virtual),), (0,))
    handle, channel = Handle(able), Channel()
    run = launched("r", Placement("n", ("d",), (0,)), handle=cast(RunHandle, handle))
    saved: list[float] = []
    adjuster = Adjuster(
        cast(ChannelServer, channel),
        Fleet((node,)),
        {},
        lambda run: saved.append(run.record.weight),
        lambda: 1.0,
    )
    adjuster.carry_out(run, SetShare("r", weight, "because"))
    await asyncio.sleep(0)
    assert (handle.weights, channel.sent, saved) == ([priority], [pace], [weight])
