"""The clock of the worker's machine is set, or the machine sleeps: runs are followed, and durations are what passed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.training import protocol
from tests.runtime.stand_ins import MemoryHandle, until
from tests.runtime.test_controller import Bench, running

HOUR = 3600.0
# What the machine's clock does in a moment in which nothing else passes.
STEPS = {"set back": -HOUR, "set forward": HOUR, "suspended": 8 * HOUR}


class Process:
    """A run's process on the same machine, as it speaks over the channel.

    Args:
        steady: Whether it has the clock that nobody sets; a run of an earlier release has not.
    """

    def __init__(self, bench: Bench, client: ClientConnection, *, steady: bool) -> None:
        self.bench, self.client, self.steady = bench, client, steady
        self.seq = 0

    def frame(self, **said: Any) -> str:
        """One frame, with the time that it has now."""
        own_s = 77.0  # each process may count from another moment
        shown = {"at": self.bench.now + self.bench.shown}
        return json.dumps({**said, **shown, **({"clock": self.bench.now - own_s} if self.steady else {})})

    async def hello(self) -> None:
        """Begin to speak."""
        env = self.bench.driver.specs[0].env
        hello = {"type": "hello", "protocol": protocol.PROTOCOL_VERSION, "run": "a", "session": "process"}
        await self.client.send(self.frame(**hello, token=env[protocol.ENV_TOKEN]))
        self.seq = json.loads(await self.client.recv())["acked"]

    async def report(self, kind: str, **data: Any) -> None:
        """Tell something that happens now."""
        await self.send(self.event(kind, **data))

    def event(self, kind: str, **data: Any) -> str:
        """Something that happens now, to be told later."""
        self.seq += 1
        return self.frame(type="event", seq=self.seq, kind=kind, data=data)

    async def send(self, frame: str) -> None:
        """Tell it, and wait until it has been handled."""
        await self.client.send(frame)
        assert json.loads(await self.client.recv())["type"] == "ack"


def losses_told(bench: Bench) -> list[float]:
    """What the scheduler has been told of the run's losses."""
    events = [json.loads(line) for line in (bench.folder / "events" / "pool.jsonl").read_text().splitlines()]
    return [one["value"] for one in events if one.get("event") == "LossReported"]


@pytest.mark.parametrize("steady", [True, False], ids=["this release", "an earlier one"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_run_is_followed_and_its_durations_are_what_passed(step: str, steady: bool, tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        handle = await bench.launch()
        async with connect(bench.driver.specs[0].env[protocol.ENV_CHANNEL], proxy=None) as client:
            process = Process(bench, client, steady=steady)
            await process.hello()
            bench.now += 10.0
            await process.report(protocol.PHASE, phase=protocol.PREPARING)
            bench.now += 20.0
            await process.report(protocol.PHASE, phase=protocol.TRAINING, steps=4)
            for number in range(4):
                if number == 2:
                    bench.shown += STEPS[step]
                bench.now += 5.0
                await process.report(protocol.PROGRESS, step=number + 1, steps=4, loss=4.0 - number)
            assert losses_told(bench) == [4.0, 3.0, 2.0, 1.0]
            bench.now += 5.0
            await process.report(protocol.PHASE, phase=protocol.SAVING)
            bench.now += 5.0
            await process.report(protocol.PHASE, phase=protocol.FINISHED)
        handle.end(0, ended_at=bench.now + bench.shown)
        await bench.controller.wait_idle()
        [row] = bench.host.rows
        assert row.ended_at == bench.now + bench.shown, "what is kept is what the clock shows then"
        assert row.granted_at == row.ended_at - 60.0 and row.prepared_s == 30.0
        assert (row.trained_s, row.saved_s) == (25.0, 5.0) and row.pace["50"] == 10.0


@pytest.mark.parametrize("step", STEPS)
async def test_what_a_run_tells_late_is_dated_when_it_happened(step: str, tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        await bench.launch()
        address = bench.driver.specs[0].env[protocol.ENV_CHANNEL]
        async with connect(address, proxy=None) as client:
            process = Process(bench, client, steady=True)
            await process.hello()
            bench.now += 10.0
            late = process.event(protocol.PHASE, phase=protocol.TRAINING)
        bench.shown += STEPS[step]
        bench.now += 30.0
        async with connect(address, proxy=None) as process.client:
            await process.hello()
            await process.send(late)
        assert bench.record()["times"]["training"] == 1010.0


@pytest.mark.parametrize("step", STEPS)
async def test_the_next_worker_counts_on(step: str, tmp_path: Path) -> None:
    world: dict[Path, MemoryHandle] = {}
    async with running(tmp_path, world) as bench:
        await bench.launch()
        async with connect(bench.driver.specs[0].env[protocol.ENV_CHANNEL], proxy=None) as client:
            process = Process(bench, client, steady=True)
            await process.hello()
            bench.now += 10.0
            await process.report(protocol.PHASE, phase=protocol.TRAINING)
        bench.shown += STEPS[step]
    async with running(tmp_path, world, now=bench.now + 40.0, shown=bench.shown) as later:
        handle = later.controller.runs["a"].handle
        assert isinstance(handle, MemoryHandle)
        handle.end(0, ended_at=later.now + later.shown - 20.0)
        await later.controller.wait_idle()
        [row] = later.host.rows
        assert row.trained_s == 20.0 and row.ended_at == later.now + later.shown - 20.0


@pytest.mark.parametrize("step", STEPS)
async def test_what_is_to_be_tried_again_waits_no_longer_than_it_should(step: str, tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.host.prepare_errors.append(LaunchError("Prefect could not be asked"))
        bench.submit("a")
        await until(lambda: bench.controller.runs == {})
        bench.shown += STEPS[step]
        bench.now += 1.0
        bench.controller.handle(ev.TimePassed())
        assert "a" not in bench.controller.runs
        bench.now += 1.5
        bench.controller.handle(ev.TimePassed())
        assert "a" in bench.controller.runs
