"""Time limits, deadlines and the time without use go on when a worker is started anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.runtime.launch.records import RunRecord
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.training import protocol
from tests.runtime.stand_ins import RecordingHost, until
from tests.runtime.test_controller import Bench, running

HALF_AN_HOUR = 1800.0  # as the rule says by default


class Knowing(RecordingHost):
    """As Prefect's worker, it knows more of a run when it is granted its devices."""

    def __init__(self, request: Request, **known: Any) -> None:
        super().__init__()
        self.request, self.known = request, known

    def describe(self, run_id: str) -> RunRecord:
        """See Host."""
        record = super().describe(run_id)
        record.known |= self.known
        return record


async def launch(bench: Bench, request: Request, **known: Any) -> None:
    """Launch ``a``, and let it train."""
    bench.host = bench.controller._host = bench.controller._launches.host = Knowing(request, **known)
    bench.controller.handle(ev.JobSubmitted("a", request, "q", 1.0, 0.0, "a"))
    await until(lambda: "launched a" in bench.host.said)
    await bench.controller._on_run_event("a", protocol.PHASE, bench.now, {"phase": protocol.TRAINING})


async def test_a_time_limit_counts_on_in_an_adopted_run(tmp_path: Path) -> None:
    request = Request(time_limit_s=100.0, preemptible=True)
    async with running(tmp_path) as bench:
        await launch(bench, request, held_s=25.0)
    async with running(tmp_path, bench.driver.world, now=1070.0) as second:
        job = second.controller.scheduler.state.running["a"]
        assert job.attained(1070.0) == 95.0 and not job.expired
        second.now = 1076.0
        second.controller.handle(ev.TimePassed())
        assert job.expired and second.controller.runs["a"].eviction is not None


async def test_what_a_run_waited_at_its_gate_is_no_time_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        await launch(bench, Request(time_limit_s=100.0))
        run = bench.controller.runs["a"]
        run.record.gated, run.record.behind = True, "another"
        assert run.held_s(1060.0) == 0.0
        bench.now = 1040.0
        bench.controller._adjuster._pass_gate(run)
        assert run.held_s(1060.0) == 20.0


@pytest.mark.parametrize(
    ("known", "promise", "promised", "in_book"),
    [
        ({"promised": 0.8}, True, 0.8, True),
        ({"in_time": True}, False, None, True),
        ({}, False, None, False),  # its deadline was not possible: it is a run like any other
    ],
)
async def test_an_adopted_run_keeps_its_deadline_and_what_was_promised(
    tmp_path: Path, known: dict[str, Any], promise: bool, promised: float | None, in_book: bool
) -> None:
    request = Request(deadline_at=5000.0, promise=promise)
    async with running(tmp_path) as bench:
        bench.host = bench.controller._host = bench.controller._launches.host = Knowing(request, **known)
        bench.controller.handle(ev.JobSubmitted("a", request, "q", 1.0, 0.0, "a", promised=0.9))
        await until(lambda: "launched a" in bench.host.said)
    async with running(tmp_path, bench.driver.world) as second:
        job = second.controller.scheduler.state.running["a"]
        assert job.request.deadline_at == 5000.0 and job.promised == promised
        assert second.controller.scheduler.state.promises.protects(job) is in_book


async def test_minutes_without_use_go_on_and_nothing_is_said_twice(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        await launch(bench, Request())
        await bench.controller._on_run_event("a", protocol.PROGRESS, bench.now, {"step": 1})
        bench.now += HALF_AN_HOUR / 2
        bench.controller.waste.look()
    async with running(tmp_path, bench.driver.world, now=1000.0 + HALF_AN_HOUR - 10.0) as second:
        second.controller.waste.look()
        assert not second.controller.runs["a"].wasting
        second.now += 20.0
        second.controller.waste.look()
        assert second.controller.runs["a"].wasting
    async with running(tmp_path, bench.driver.world, now=1000.0 + 2 * HALF_AN_HOUR) as third:
        run, said = third.controller.runs["a"], list[ev.Event]()
        assert "60 min" in run.wasting
        third.controller.waste._tell = said.append
        third.controller.waste.look()
        assert said == [] and run.wasting, "it has been told"
        await third.controller._on_run_event("a", protocol.PROGRESS, third.now, {"step": 2})
        third.controller.waste.look()
        assert said == [ev.WasteEnded("a")] and not run.wasting and "idle_since" not in third.record()["times"]


async def test_a_run_that_uses_its_devices_is_not_written_down_at_each_look(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        await launch(bench, Request())
        written: list[object] = []
        bench.controller.waste._save = written.append
        for step in range(50):
            bench.now += 5.0
            await bench.controller._on_run_event("a", protocol.PROGRESS, bench.now, {"step": step + 1})
            bench.controller.waste.look()
        assert written == []
