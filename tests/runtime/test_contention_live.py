"""From the steps that gangs report to the one that is stopped, and to what is kept: the controller on stand-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect_gpu.runtime.clock import Clock
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.scheduling.interference.sensitivity import Key
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.storage.finished import measured_pairs
from prefect_gpu.storage.history import History
from prefect_gpu.storage.row import ContentionRow
from prefect_gpu.training import protocol
from tests.runtime.stand_ins import MemoryDriver, RecordingHost, until

LOUD, OTHER = Key("loud", 6, 3), Key("other", 6, 3)


class KeepingHost(RecordingHost):
    """Owns runs that may be stopped, of several programs, and has a history."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self.history = history
        self.controller: Controller

    def describe(self, run_id: str) -> Any:
        """See Host."""
        self.request = self.controller.scheduler.state.jobs[run_id].request
        return super().describe(run_id)

    async def give_way(self, run: Launch, reason: str) -> bool:
        """See Host."""
        self.said.remove(f"launched {run.run_id}")
        return True

    def record_contention(self, row: ContentionRow) -> None:
        """See Host."""
        self.history.record_contention(row)


class Bench:
    """A controller with the profile deepshare on six nodes of four devices."""

    def __init__(self, folder: Path, history: History) -> None:
        self.now = 1000.0
        self.host = KeepingHost(history)
        nodes = [Node(n, tuple(Device(f"{n}{g}", "H200", 8 << 30) for g in range(4)), (0, 1)) for n in "abcdef"]
        self.controller = self.host.controller = Controller(
            self.host,
            nodes=nodes,
            driver=MemoryDriver(),
            state_dir=folder,
            pool="pool",
            profile="deepshare",
            clock=Clock(lambda: self.now, lambda: self.now),
        )

    async def launch(self, job: str, program: str, gpus: int = 2, workers: int = 3) -> None:
        request = Request(gpus=gpus, workers=workers, kind=program, preemptible=True)
        self.controller.handle(ev.JobSubmitted(job, request, "q", 1.0, 0.0, job))
        await until(lambda: f"launched {job}" in self.host.said)
        await self.controller._on_run_event(job, protocol.PHASE, self.now, {"phase": protocol.TRAINING})

    async def train(self, seconds: int, **speeds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for job, speed in speeds.items():
                run = self.controller.runs[job]
                step = run.record.progress.get("step", 0) + speed
                await self.controller._on_run_event(job, protocol.PROGRESS, self.now, {"step": step})

    def nodes(self, job: str) -> set[str]:
        return set(self.controller.runs[job].record.placement.nodes)


async def test_a_gang_is_stopped_for_its_neighbour_goes_elsewhere_and_the_next_worker_knows(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path / 'history.db'}") as history:
        bench = Bench(tmp_path / "first", history)
        await bench.controller.start()
        try:
            for number in range(3):
                await bench.launch(f"filler {number}", "", gpus=3, workers=1)
            await bench.launch("one", "loud")
            await bench.train(15, one=8)
            await bench.launch("two", "other")
            assert bench.nodes("one") == bench.nodes("two")
            before = bench.controller.runs["one"]
            await bench.train(5, one=4, two=4)
            assert before.eviction is None
            await bench.train(8, one=4, two=4)
            assert before.eviction is not None and "slow it down by a factor of 2.00" in before.eviction.reason
            await until(history.contention)
            [kept] = history.contention()
            assert (kept.run_id, kept.slowdown) == ("one", 2.0)

            await bench.controller._on_run_event("one", protocol.CHECKPOINT, bench.now, {"step": 1})
            await until(lambda: "one" not in bench.controller.runs)
            job = bench.controller.scheduler.state.jobs["one"]
            await until(lambda: job.hold == "contention")
            for number in range(3):
                handle: Any = bench.controller.runs[f"filler {number}"].handle
                handle.end(0)
            await until(lambda: "one" in bench.controller.runs)
            assert bench.nodes("one").isdisjoint(bench.nodes("two"))
        finally:
            await bench.controller.close()

        later = Bench(tmp_path / "second", history)
        await later.controller.start()
        try:
            pairs = measured_pairs(history.contention())
            assert pairs == ((LOUD, OTHER, 2.0),)
            later.controller.handle(ev.ContentionLearned(pairs))
            for number in range(3):
                await later.launch(f"filler {number}", "", gpus=3, workers=1)
            await later.launch("two", "other")
            request = Request(gpus=2, workers=3, kind="loud", preemptible=True)
            later.controller.handle(ev.JobSubmitted("one", request, "q", 1.0, 0.0, "one"))
            story = [said for _, said in later.controller.scheduler.state.jobs["one"].story]
            assert any("it is expected to keep 50% of its speed" in said for said in story), (
                "devices are idle otherwise"
            )
        finally:
            await later.controller.close()


async def test_a_history_that_cannot_be_written_keeps_nobody_from_being_stopped(tmp_path: Path) -> None:
    history = History("sqlite://")
    bench = Bench(tmp_path, history)

    refused = []

    def refuse(row: dict[str, Any]) -> None:
        refused.append(row)
        raise OSError("the disk is full")

    bench.host.record_contention = refuse  # type: ignore[method-assign]
    await bench.controller.start()
    try:
        for number in range(3):
            await bench.launch(f"filler {number}", "", gpus=3, workers=1)
        await bench.launch("one", "loud")
        await bench.train(15, one=8)
        await bench.launch("two", "other")
        await bench.train(13, one=4, two=4)
        assert bench.controller.runs["one"].eviction is not None
        await until(lambda: refused)
    finally:
        await bench.controller.close()
        history.close()
