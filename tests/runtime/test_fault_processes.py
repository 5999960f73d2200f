"""Pre-scheduling under faults, with real processes, real locks and a real channel that can be cut."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.drivers.base import Driver, ExitReport, LaunchSpec, RunHandle
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.launch.records import RunRecord
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model import instructions as do
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Estimate
from prefect_gpu.storage.row import Outcome
from tests.runtime.cut import Cut
from tests.runtime.stand_ins import RecordingHost

ROOT = Path(__file__).parents[2]
NODE = Node("here", (Device("virtual-0", "virtual", 8 << 30, virtual=True),), ())
ESTIMATE = Estimate(service_s=0.3, launching_s=0.3, saving_s=0.05)
PRELOAD = ["prefect_gpu.training", "prefect_gpu.training.channel.client", "prefect_gpu.training.channel.wire"]
PRELOAD += ["prefect_gpu.training.limits.usage", "tests.runtime.fault_training"]
PATIENCE_S = 60.0  # a test fails after this; none waits for it to pass
LOGGER = logging.getLogger("test.faults")


class SharedDriver(Driver):
    """The real driver; a worker that lets go of it does not end it for the next one."""

    def __init__(self, driver: ProcessDriver) -> None:
        self.driver = driver

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def launch(self, spec: LaunchSpec) -> RunHandle:
        return await self.driver.launch(spec)

    async def adopt(self, run_id: str, run_dir: Path) -> RunHandle | None:
        return await self.driver.adopt(run_id, run_dir)


class Owner(RecordingHost):
    """Owns the runs of one sequence; it outlives the workers, as Prefect does."""

    def __init__(self, sequence: Sequence) -> None:
        super().__init__()
        self.sequence = sequence

    def describe(self, run_id: str) -> RunRecord:
        record = super().describe(run_id)
        record.known = {"flow_name": "train", "features": {}}
        return record

    async def prepare(self, run: Launch) -> LaunchSpec:
        self.sequence.claimed.add(run.run_id)
        env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_GPU_")}
        env["FAULTS"] = json.dumps(self.sequence.told[run.run_id])
        return LaunchSpec(
            run.run_id,
            run.folder,
            (sys.executable, "-m", "tests.runtime.fault_training"),
            env,
            ROOT,
            stream_output=False,
        )

    async def finalise(self, run: Launch, report: ExitReport) -> tuple[Outcome | None, str]:
        self.sequence.over[run.run_id] = report.returncode
        return ("completed" if report.returncode == 0 else "crashed"), ""

    async def unlaunched(self, run: Launch) -> None:
        self.sequence.claimed.discard(run.run_id)

    def released(self, run: Launch) -> None:
        self.sequence.offer(run.run_id)


class Sequence:
    """A few runs on one device, and what happens to them."""

    def __init__(self, folder: Path, driver: ProcessDriver, seed: int) -> None:
        self.folder, self.driver, self.chance = folder, SharedDriver(driver), random.Random(seed)
        self.told: dict[str, dict[str, Any]] = {}
        self.claimed: set[str] = set()
        self.over: dict[str, int | None] = {}
        self.behind = 0
        self.did: list[str] = []
        self.notes = folder / "notes.jsonl"
        self.owner = Owner(self)
        self.cut = Cut(folder / "channels" / "pool.json")
        self.controller: Controller

    async def begin(self) -> None:
        """A worker begins, and adopts what is there."""
        self.controller = Controller(
            self.owner,
            nodes=(NODE,),
            driver=self.driver,
            state_dir=self.folder,
            pool="pool",
            profile="adaptive",
            logger=LOGGER,
        )
        carry_out = self.controller._carry_out

        def counted(instruction: Any, now: float) -> None:
            self.behind += isinstance(instruction, do.Launch) and instruction.behind is not None
            carry_out(instruction, now)

        self.controller._carry_out = counted  # type: ignore[method-assign]
        await self.controller.start()
        await self.cut.stand_before()
        self.cut.is_cut = False
        for run_id in self.told:
            self.offer(run_id)
            if run_id in self.controller.runs:
                self.controller.handle(ev.JobEstimated(run_id, ESTIMATE))

    async def kill(self) -> None:
        """The worker is gone: nobody reaches it, and it does nothing more."""
        self.cut.cut()
        controller = self.controller
        controller._closing = True
        if controller._timer is not None:
            controller._timer.cancel()
        await controller._tasks.close()
        await controller._channel.close()

    def offer(self, run_id: str) -> None:
        """The run waits, unless it has been claimed or is over."""
        if run_id not in self.over and run_id not in self.claimed and run_id not in self.controller.runs:
            request = self.owner.request
            self.controller.handle(ev.JobSubmitted(run_id, request, "q", 0.0, 0.0, run_id, ESTIMATE))

    def noted(self) -> list[list[Any]]:
        """(run, pid, what, attempt, time) of each note."""
        return [json.loads(line) for line in self.notes.read_text().splitlines()] if self.notes.exists() else []

    async def play(self) -> None:
        """Runs are submitted, and a few things go wrong."""
        await self.begin()
        chance = self.chance
        for number in range(4):
            run_id = f"run-{number}"
            self.told[run_id] = {
                "notes": str(self.notes),
                "steps": chance.choice([5, 15, 30]),
                "prepares_s": chance.choice([0.0, 0.05, 0.3]),
                "fails": chance.choice(["", "", "preparing", "training", "saving"]),
                "dies": chance.random() < 0.3,
            }
            self.offer(run_id)
        for _ in range(chance.randint(1, 4)):
            await asyncio.sleep(chance.choice([0.0, 0.05, 0.2, 0.5]))
            fault = chance.choice([self.cancel, self.kill_process, self.lose_channel, self.restart, self.restart_cut])
            self.did.append(fault.__name__)
            await fault()
        self.cut.is_cut = False
        await asyncio.wait_for(self._all_over(), PATIENCE_S)
        self.controller.scheduler.state.check_invariants()
        await self.kill()
        await self.cut.close()

    async def _all_over(self) -> None:
        while len(self.over) < len(self.told) or self.controller.runs:  # noqa: ASYNC110  # a new worker, a new event
            await asyncio.sleep(0.01)

    async def cancel(self) -> None:
        """A run is cancelled by its user."""
        run_id = self.chance.choice(list(self.told))
        if run_id in self.controller.runs:
            await self.controller.stop(run_id, 0.1)
        elif run_id not in self.claimed and run_id not in self.over:
            self.over[run_id] = None
            self.controller.handle(ev.JobWithdrawn(run_id, "cancelled"))

    async def kill_process(self) -> None:
        """The kernel kills a run."""
        alive = [(run_id, pid) for run_id, pid, what, *_ in self.noted() if what == "started"]
        alive = [(run_id, pid) for run_id, pid in alive if run_id in self.controller.runs]
        if alive:
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(alive)[1], signal.SIGKILL)

    async def lose_channel(self) -> None:
        """Nobody reaches anybody for a while, which may be longer than a run's patience."""
        self.cut.cut()
        await asyncio.sleep(self.chance.choice([0.05, 0.3, 1.2]))
        self.cut.is_cut = False

    async def restart(self) -> None:
        """A worker is killed, and the next begins."""
        await self.kill()
        await asyncio.sleep(self.chance.choice([0.0, 0.1, 1.0]))
        await self.begin()

    async def restart_cut(self) -> None:
        """A worker is killed, and the next cannot be reached for a while."""
        await self.kill()
        await self.begin()
        await self.lose_channel()

    def judge(self) -> None:
        """Nothing was lost, nothing ran twice, and nobody trained beside another."""
        assert set(self.over) == set(self.told)
        notes = self.noted()
        started = [run_id for run_id, _, what, *_ in notes if what == "started"]
        assert len(started) == len(set(started)), f"started twice: {started}"
        spans: dict[tuple[str, int], list[float]] = {}
        for run_id, _, what, attempt, at in notes:
            if what == "trains":
                spans.setdefault((run_id, attempt), []).append(at)
        for one, its in spans.items():
            for other, others in spans.items():
                if one[0] != other[0]:
                    assert its[-1] <= others[0] or others[-1] <= its[0], f"{one} and {other} trained at once"
        assert not list((self.folder / "runs").glob("*"))


async def play(folder: Path, seeds: list[int]) -> int:
    """Play sequences, a few at once; returns how many runs were launched behind others."""
    sys.path.insert(0, str(ROOT))
    driver = ProcessDriver(warm=True, preload=PRELOAD, logger=LOGGER)
    await driver.start()
    limit, behind = asyncio.Semaphore(4), 0

    async def one(seed: int) -> None:
        nonlocal behind
        async with limit:
            sequence = Sequence(folder / str(seed), driver, seed)
            try:
                await sequence.play()
                sequence.judge()
            except Exception as error:
                stages = {run.run_id: run.phase for run in sequence.controller.runs.values()}
                words = f"seed {seed}: {sequence.did}; runs {sequence.told}; {sequence.over}; {stages}"
                raise AssertionError(words) from error
            behind += sequence.behind

    try:
        await asyncio.gather(*(one(seed) for seed in seeds))
    finally:
        await driver.close()
    return behind


async def test_processes_that_suffer_every_fault_never_train_at_once(tmp_path: Path) -> None:
    assert await play(tmp_path, [1, 2, 3]) > 0


@pytest.mark.full
async def test_many_sequences_of_faults_do_no_harm_to_processes(tmp_path: Path) -> None:
    assert await play(tmp_path, list(range(100, 130))) > 10
