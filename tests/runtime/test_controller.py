"""The controller between a scheduler, a driver and a host: what happens in which order, and what survives."""

from __future__ import annotations

import asyncio
import errno
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from prefect_gpu.estimation.runs import Known
from prefect_gpu.runtime.actions import launches
from prefect_gpu.runtime.clock import Clock
from prefect_gpu.runtime.controller import ABILITIES, Controller
from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.runtime.host import NotOursError
from prefect_gpu.runtime.launch.launch import Follower, Launch
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling import record as log
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model import instructions as do
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Job, Request, Status
from prefect_gpu.scheduling.order.orders import Fifo
from prefect_gpu.scheduling.placement.best_fit import BestFit
from prefect_gpu.scheduling.profiles import get_profile
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.training import protocol
from tests.runtime.stand_ins import MemoryDriver, MemoryHandle, RecordingHost, until

NODE = Node("here", (Device("GPU-1", "H200", 8 << 30), Device("virtual-0", "virtual", 8 << 30, virtual=True)), (0, 1))


class Bench:
    """A controller on stand-ins, with a time that the test lets pass.

    Attributes:
        now: Seconds since the machine started.
        shown: How much more than that the machine's clock shows.
    """

    def __init__(
        self,
        folder: Path,
        world: dict[Path, MemoryHandle] | None = None,
        node: Node = NODE,
        now: float = 1000.0,
        shown: float = 0.0,
    ) -> None:
        self.folder = folder
        self.now, self.shown = now, shown
        self.host, self.driver = RecordingHost(), MemoryDriver(world)
        self.controller = Controller(
            self.host,
            nodes=(node,),
            driver=self.driver,
            state_dir=folder,
            pool="pool",
            profile="fifo",
            clock=Clock(lambda: self.now + self.shown, lambda: self.now),
        )

    def submit(self, *jobs: str, due: float = 0.0) -> None:
        for job in jobs:
            self.controller.handle(ev.JobSubmitted(job, Request(), "q", 1.0, due, f"name of {job}"))

    async def launch(self, job: str = "a") -> MemoryHandle:
        self.submit(job)
        await until(lambda: f"launched {job}" in self.host.said)
        handle = self.controller.runs[job].handle
        assert isinstance(handle, MemoryHandle)
        return handle

    @property
    def folders(self) -> list[Path]:
        return sorted((self.folder / "runs").glob("*")) if (self.folder / "runs").exists() else []

    def record(self, job: str = "a") -> dict[str, Any]:
        return json.loads((self.controller.runs[job].folder / "record.json").read_text())  # type: ignore[no-any-return]

    @property
    def places(self) -> dict[str, tuple[str, ...]]:
        jobs = self.controller.scheduler.state.jobs.values()
        return {job.id: job.placement.devices for job in jobs if job.placement}


def read_json(path: str) -> Any:
    """What a JSON file says."""
    return json.loads(Path(path).read_text())


@asynccontextmanager
async def running(
    folder: Path, world: dict[Path, MemoryHandle] | None = None, node: Node = NODE, **clock: float
) -> AsyncIterator[Bench]:
    bench = Bench(folder, world, node, **clock)
    await bench.controller.start()
    try:
        yield bench
        bench.controller.scheduler.state.check_invariants()
    finally:
        await bench.controller.close()


async def test_a_run_is_launched_watched_settled_and_remembered(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        handle = await bench.launch()
        bench.now = 1060.0
        handle.end(0, max_rss_bytes=123, cpu_seconds=90.0)
        await bench.controller.wait_idle()
        assert bench.host.said == ["prepare a", "launched a", "finalise a"]
        [row] = bench.host.rows
        assert bench.folders == [] and bench.places == {}
        assert row.outcome == "completed" and row.message == "fine" and row.exit_code == 0
        assert row.run_id == "a" and row.devices == ("GPU-1",) and row.node == "here"
        assert row.submitted_at == 1.0 and row.granted_at == 1000.0 and row.ended_at == 1060.0
        assert row.cpu_mean == 1.5 and row.rss_peak_bytes == 123 and row.warm_start is True


async def test_runs_that_share_a_device_are_each_others_neighbours(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        share = Request(gpu_memory_bytes=1 << 30, exclusive=False)
        for job in ("a", "b", "alone"):
            asked = Request() if job == "alone" else share
            bench.controller.handle(ev.JobSubmitted(job, asked, "q", 1.0, 0.0, f"name of {job}"))
            await until(lambda: f"launched {job}" in bench.host.said)  # noqa: B023  # called at once
        for job in ("a", "b", "alone"):
            handle = bench.controller.runs[job].handle
            assert isinstance(handle, MemoryHandle)
            handle.end(0)
        await bench.controller.wait_idle()
        rows = {row.run_id: row for row in bench.host.rows}
        assert rows["a"].devices == rows["b"].devices != rows["alone"].devices
        assert {job: row.neighbours for job, row in rows.items()} == {"a": ("train",), "b": ("train",), "alone": ()}


class Stumbles(BestFit):
    """A placement policy with a bug: parameter servers are too much for it."""

    def place(self, job: Job, *arguments: Any) -> Any:
        """See the class."""
        if job.request.servers:
            raise MemoryError("so many servers")
        return super().place(job, *arguments)


async def test_a_run_that_the_scheduler_cannot_deal_with_harms_no_other(tmp_path: Path, caplog: Any) -> None:
    async with running(tmp_path) as bench:
        profile = replace(get_profile("fifo"), placement=Stumbles())
        bench.controller.scheduler = Scheduler(profile, ABILITIES)
        bench.controller.handle(ev.NodesChanged((NODE,)))
        bench.submit("first", "second")
        bench.controller.handle(ev.JobSubmitted("bad", Request(servers=1), "q", 0.0, 0.0, "name of bad"))
        bench.submit("third")
        await until(lambda: len(bench.host.said) == 4)
        for job in ("first", "second"):
            bench.controller.runs[job].handle.end(0)  # type: ignore[union-attr]
        await until(lambda: "launched third" in bench.host.said)
        assert "finalise first" in bench.host.said and "finalise second" in bench.host.said
        assert [hold.code for hold in bench.host.holds if hold.job == "bad"][-1] == "due"
        assert any("so many servers" in hold.reason for hold in bench.host.holds if hold.job == "bad")
        assert bench.controller.scheduler.state.jobs["bad"].status is Status.WAITING
        failures = caplog.text.count("The scheduler failed at")
        bench.controller.handle(ev.TimePassed())
        assert caplog.text.count("The scheduler failed at") == failures, "it is set aside for a while"
        bench.now += 61.0
        bench.controller.handle(ev.TimePassed())  # it is tried again, in vain
        assert caplog.text.count("The scheduler failed at") > failures
    lines = (tmp_path / "events" / "pool.jsonl").read_text().splitlines()
    assert sum("PlacingFailed" in line for line in lines) >= 1


class Picky(Fifo):
    """An order that has no key for a run, or one that cannot be compared with those of others."""

    refuses: Request | None = None
    says: str | None = None

    def key(self, job: Job, *arguments: Any) -> Any:
        """See the class."""
        if job.request == self.refuses:
            if self.says is not None:
                raise KeyError(self.says)
            return (None, job.id)
        return super().key(job, *arguments)


@pytest.mark.parametrize("says", ["no such column", None])
async def test_a_run_that_the_order_cannot_sort_is_told_and_lost_to_nobody(tmp_path: Path, says: str | None) -> None:
    order = Picky()
    order.says, order.refuses = says, Request(cpus=1)
    async with running(tmp_path) as bench:
        bench.controller.scheduler = Scheduler(replace(get_profile("fifo"), order=order), ABILITIES)
        bench.controller.handle(ev.NodesChanged((NODE,)))
        await bench.launch("first")
        await bench.launch("second")
        bench.submit("third", due=bench.now)
        bench.controller.handle(ev.JobSubmitted("bad", order.refuses, "q", 1.0, bench.now + 5.0, "name of bad"))
        bench.now += 6.0
        bench.controller.handle(ev.TimePassed())
        reason = says or "not supported between instances of"
        await until(lambda: any(reason in hold.reason for hold in bench.host.holds if hold.job == "bad"))
        bench.controller.runs["first"].handle.end(0)  # type: ignore[union-attr]
        await until(lambda: "launched third" in bench.host.said)
        order.refuses = None
        bench.now += 61.0
        bench.controller.handle(ev.TimePassed())
        bench.controller.runs["second"].handle.end(0)  # type: ignore[union-attr]
        await until(lambda: "launched bad" in bench.host.said)


class Breaks(Backfill):
    """An allocation that breaks."""

    broken = False

    def act(self, decision: Decision) -> bool:
        """See the class."""
        if self.broken:
            raise ZeroDivisionError("no devices")
        return super().act(decision)


async def test_a_decision_that_fails_is_made_again_after_a_while_and_not_at_once(tmp_path: Path) -> None:
    action = Breaks()
    async with running(tmp_path) as bench:
        bench.controller.scheduler = Scheduler(replace(get_profile("fifo"), allocation=(action,)), ABILITIES)
        bench.controller.handle(ev.NodesChanged((NODE,)))
        bench.submit("first", "second")
        bench.submit("later", due=bench.now + 5.0)
        action.broken = True
        bench.now += 6.0
        bench.controller.handle(ev.TimePassed())
        timer = bench.controller._timer
        assert timer is not None and timer.when() > asyncio.get_running_loop().time() + 30.0
        said = "ZeroDivisionError: no devices"
        assert said in bench.host.holds[-1].reason, "whoever waits is told"
        assert said in bench.controller.trouble, "and whoever looks at the pool"
        action.broken = False
        bench.controller.handle(ev.TimePassed())
        assert bench.host.holds[-1].job == "later" and bench.host.holds[-1].code == "devices", "no longer"
        bench.now += 121.0
        assert not bench.controller.trouble


class Raises(Reaction):
    """A reaction with a bug."""

    def react(self, *_: Any) -> bool:
        """See the class."""
        raise KeyError("no such run")


async def test_a_reaction_that_fails_is_told_and_keeps_no_run_from_starting(tmp_path: Path, caplog: Any) -> None:
    async with running(tmp_path) as bench:
        bench.controller.scheduler = Scheduler(replace(get_profile("fifo"), reactions=(Raises(),)), ABILITIES)
        bench.controller.handle(ev.NodesChanged((NODE,)))
        bench.submit("first", "second", "third")
        assert list(bench.places) == ["first", "second"]
        assert [hold.code for hold in bench.host.holds] == ["devices"], "nobody waits because of it"
        assert "KeyError: 'no such run'" in bench.controller.trouble
        assert caplog.text.count("The scheduler failed at") == 1, "the same is logged once a minute"


async def test_a_machine_that_is_still_there_after_its_announced_end_is_out_of_service(tmp_path: Path) -> None:
    """Whoever waits is told what is so, and no run is refused for want of devices as the notice is taken back."""
    async with running(tmp_path) as bench:
        controller, devices = bench.controller, ["GPU-1", "virtual-0"]
        controller.fleet.leaving[""] = (1060.0, "announced in /run/spot-notice")
        controller.cordons.look()
        assert controller.away == {}
        bench.submit("long")
        bench.now = 1060.0
        controller.cordons.look()
        assert list(controller.away) == devices and not bench.places
        said = controller.fleet.why_out("GPU-1")
        assert said == "its end has passed (announced in /run/spot-notice)" and {*controller.away.values()} == {said}
        story = controller.scheduler.state.story("long")
        assert "leave service before" in story[-2][1] and "no device" in story[-1][1]
        del controller.fleet.leaving[""]
        assert not controller.fleet.is_out("GPU-1") and list(controller.away) == devices, (
            "the scheduler has not heard yet"
        )
        controller.cordons.look()
        assert controller.away == {} and list(bench.places) == ["long"]


async def test_the_record_is_written_before_anything_is_claimed(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        await bench.launch()
        assert bench.host.records_at_prepare == [True]
        [folder] = bench.folders
        assert stat.S_IMODE((folder / "record.json").stat().st_mode) == 0o600, "it holds the token"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_a_run_gets_its_devices_its_channel_and_what_the_host_wants(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        await bench.launch("a")
        await bench.launch("b")
        first, second = (spec.env for spec in bench.driver.specs)
        assert first["MINE"] == "1" and first[protocol.ENV_RUN_ID] == "a"
        assert first["CUDA_VISIBLE_DEVICES"] == "GPU-1"
        assert second["CUDA_VISIBLE_DEVICES"] == "", "a run on a virtual device sees no GPU"
        assert [spec.gpus for spec in bench.driver.specs] == [("GPU-1",), ()]
        assert json.loads(second[protocol.ENV_DEVICES])[0]["id"] == "virtual-0"
        assert first[protocol.ENV_TOKEN] != second[protocol.ENV_TOKEN]
        channel_file = read_json(first[protocol.ENV_CHANNEL_FILE])
        assert channel_file == {"url": first[protocol.ENV_CHANNEL]}
        assert bench.driver.specs[0].cpus == (0,) and first[protocol.ENV_CPUS] == "0"


async def test_devices_are_free_as_soon_as_the_process_is_gone(tmp_path: Path) -> None:
    """The next run starts while the end of the one before is still being finalised."""
    async with running(tmp_path) as bench:
        handle = await bench.launch("a")
        await bench.launch("b")
        bench.host.finalising = asyncio.Event()
        bench.submit("c")
        handle.end()
        await until(lambda: "launched c" in bench.host.said)
        assert bench.places["c"] == ("GPU-1",) and bench.host.rows == []
        assert len(bench.folders) == 3, "what is not finalised stays on record"
        bench.host.finalising.set()
        await until(lambda: bench.host.rows)


async def test_a_node_is_not_kept_for_a_run_whose_end_is_still_being_finalised(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        handle = await bench.launch("a")
        assert bench.driver.demand().busy == {"here"}
        bench.host.finalising = asyncio.Event()
        handle.end()
        await until(lambda: "finalise a" in bench.host.said)
        assert bench.controller.runs and not bench.driver.demand().busy
        bench.host.finalising.set()
        await until(lambda: bench.host.rows)


async def test_a_run_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.host.prepare_errors = [NotOursError("another worker has it")]
        bench.submit("a")
        await bench.controller.wait_idle()
        assert bench.driver.specs == [] and bench.folders == [] and bench.host.rows == []
        assert bench.controller.scheduler.state.jobs == {}


async def test_a_launch_that_cannot_be_now_is_tried_again(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.host.prepare_errors = [LaunchError("no API")]
        bench.submit("a")
        await until(lambda: bench.host.holds)
        assert bench.folders == [] and bench.places == {} and bench.host.holds[0].code == "due"
        bench.now += 2.0
        bench.controller.handle(ev.TimePassed())
        await until(lambda: "launched a" in bench.host.said)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("FileNotFoundError: no such program", 127),
        ("OSError: its working directory cannot be entered: [Errno 2] No such file or directory: '/data'", 126),
    ],
)
async def test_a_process_that_cannot_be_made_is_settled_with_the_reason(
    tmp_path: Path, said: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as bench:
        bench.driver.refuse = LaunchError(said)
        bench.submit("a")
        await until(lambda: bench.host.rows and not bench.folders)
        assert bench.host.reports[0].returncode == code
        assert bench.host.reports[0].tail == (f"name of a could not be started: {said}",)
        assert bench.places == {} and f"Run name of a could not be started: {said}" in caplog.messages


async def test_a_node_that_cannot_be_reached_is_no_fault_of_the_run(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.driver.refuse = LaunchError("node n2 takes no work now")
        bench.driver.refuse.away = True
        bench.submit("a")
        await until(lambda: bench.host.rows and not bench.folders)
        assert bench.host.reports[0].returncode is None
        assert bench.host.reports[0].cause == "name of a could not be started: node n2 takes no work now"


async def test_an_error_nobody_thought_of_does_not_keep_the_device(tmp_path: Path) -> None:
    """An unclosed quotation mark in a user's command, say."""
    async with running(tmp_path) as bench:
        bench.host.prepare_errors = [ValueError("No closing quotation")]
        bench.submit("a")
        await until(lambda: bench.host.rows and not bench.folders)
        assert bench.host.reports[0].tail == ("ValueError: No closing quotation",)
        assert bench.places == {} and bench.driver.specs == []


async def test_an_error_that_no_driver_should_raise_does_not_keep_the_device(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.driver.refuse = PermissionError(errno.EACCES, "Permission denied")
        bench.submit("a")
        await until(lambda: bench.host.rows and not bench.folders)
        assert bench.host.reports[0].tail == ("PermissionError: [Errno 13] Permission denied",)
        assert bench.places == {} and not bench.controller.runs


@pytest.mark.parametrize("where", ["a follower", "the host"])
async def test_an_error_as_a_start_is_told_does_not_keep_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    class Clumsy(Follower):
        def started(self, launch: Launch) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

    async with running(tmp_path) as bench:
        if where == "the host":
            monkeypatch.setattr(bench.host, "launched", fail)
        else:
            bench.controller.listeners = (Clumsy(),)
        bench.submit("a")
        await until(lambda: bench.driver.world)
        next(iter(bench.driver.world.values())).end(0)
        await until(lambda: not bench.places)
        await bench.controller.wait_idle()
        assert bench.host.said[-1] == "finalise a"


async def test_a_run_whose_start_cannot_be_written_down_waits_for_room(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.host = bench.controller._host = bench.controller._launches.host = Patient()
    await bench.controller.start()
    try:
        bench.driver.refuse = OSError(errno.EDQUOT, "Disk quota exceeded")
        bench.submit("a")
        await until(lambda: bench.driver.specs and not bench.controller.runs)
        assert bench.places == {} and "finalise a" not in bench.host.said
        bench.driver.refuse = None
        bench.now += 30.0
        bench.controller.handle(ev.TimePassed())
        await until(lambda: "launched a" in bench.host.said)
    finally:
        await bench.controller.close()


async def test_a_run_that_cannot_be_recorded_waits_and_is_tried_again(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        (tmp_path / "runs").write_text("a file where the folder should be: what a broken disk looks like")
        bench.submit("a")
        await until(lambda: bench.host.holds)
        assert bench.host.said == [] and bench.places == {}
        reason = bench.host.holds[-1].reason
        assert reason.startswith("it could not be recorded: ") and not reason.endswith(".")
        (tmp_path / "runs").unlink()
        bench.now += 2.0
        bench.controller.handle(ev.TimePassed())
        await until(lambda: "launched a" in bench.host.said)


async def test_a_run_that_cannot_be_described_takes_nothing_down(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.submit("undescribable", "a")
        await until(lambda: "launched a" in bench.host.said)
        await until(lambda: "undescribable" not in bench.places)


async def test_a_history_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as bench:
        monkeypatch.setattr(bench.host, "record_history", lambda row: 1 / 0)
        (await bench.launch()).end()
        await bench.controller.wait_idle()
        assert bench.folders == []


async def test_a_run_that_never_began_is_not_remembered(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.host.outcome = (None, "waits again")
        (await bench.launch()).end()
        await bench.controller.wait_idle()
        assert bench.host.rows == [] and bench.folders == []


# -- cancelling ---------------------------------------------------------------------------------------------------


async def test_a_run_cancelled_while_it_is_prepared_starts_no_process(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.host.preparing = asyncio.Event()
        bench.submit("a")
        await until(lambda: bench.host.said)
        assert await bench.controller.stop("a", 5.0)
        assert bench.record()["cancelled"] is True, "a new worker must know it too"
        bench.host.preparing.set()
        await bench.controller.wait_idle()
        assert bench.driver.specs == [] and bench.host.said == ["prepare a", "finalise a"] and bench.places == {}
        assert bench.host.rows[0].warm_start is False


async def test_a_run_cancelled_while_its_process_is_made_is_stopped_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.driver.slow = asyncio.Event()
        bench.submit("a")
        await bench.driver.launching.wait()
        assert await bench.controller.stop("a", 5.0)
        bench.driver.slow.set()
        await bench.controller.wait_idle()
        [handle] = bench.driver.world.values()
        assert handle.stopped_with == 0 and bench.host.reports[0].returncode == -15


async def test_a_run_whose_cores_change_while_its_process_is_made_does_not_keep_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image may be pulled for minutes, and the container be made for the cores that there were before."""
    bound: list[tuple[int, ...]] = []
    monkeypatch.setattr(MemoryHandle, "bind", lambda self, cpus: bound.append(cpus))
    async with running(tmp_path) as bench:
        bench.driver.slow = asyncio.Event()
        bench.submit("a")
        await bench.driver.launching.wait()
        assert bench.driver.specs[0].cpus == (0,)
        bench.controller._carry_out(do.SetCores("a", (1,), "another run needs the first one"), bench.now)
        bench.driver.slow.set()
        await until(lambda: "launched a" in bench.host.said)
        assert bound == [(1,)]
        await bench.launch("b")
        assert bound == [(1,)], "nothing has changed of its cores"


async def test_a_run_cancelled_while_it_runs_is_stopped_with_grace(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        handle = await bench.launch()
        assert await bench.controller.stop("a", 5.0)
        await bench.controller.wait_idle()
        assert handle.stopped_with == 5.0 and bench.places == {}


async def test_a_run_that_is_not_launched_cannot_be_stopped(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.submit("a", due=5000.0)
        assert not await bench.controller.stop("a", 5.0)


# -- one worker after another -------------------------------------------------------------------------------------


async def test_processes_go_on_when_the_worker_ends_and_the_next_adopts_them(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        handle = await bench.launch("a")
        token = bench.record()["token"]
    assert handle.running and bench.driver.closed and len(bench.folders) == 1
    async with running(tmp_path, bench.driver.world) as second:
        assert second.places == {"a": ("GPU-1",)} and second.record()["token"] == token
        second.submit("a")
        second.submit("b")
        await until(lambda: "launched b" in second.host.said)
        assert second.places["b"] == ("virtual-0",) and [spec.run_id for spec in second.driver.specs] == ["b"]
        handle.end()
        await until(lambda: second.host.rows)
        assert second.host.rows[0].run_id == "a" and second.host.rows[0].granted_at == 1000.0


@pytest.mark.parametrize(
    "there", [(), (Device("virtual-0", "virtual L4", 8 << 30, virtual=True),)], ids=["gone", "other"]
)
async def test_the_history_says_what_a_run_had_although_the_next_worker_has_it_no_more(
    there: tuple[Device, ...], tmp_path: Path
) -> None:
    had = Device("virtual-0", "virtual A100", 8 << 30, virtual=True)
    async with running(tmp_path, node=replace(NODE, devices=(had,))) as bench:
        handle = await bench.launch()
    async with running(tmp_path, bench.driver.world, replace(NODE, devices=there)) as second:
        handle.end(0)
        await until(lambda: second.host.rows)
        [row] = second.host.rows
        assert (row.devices, row.device_kind, row.virtual) == (("virtual-0",), "virtual A100", True)


async def test_runs_that_shared_a_device_before_a_restart_are_neighbours_after_it(tmp_path: Path) -> None:
    share = Request(gpu_memory_bytes=1 << 30, exclusive=False)
    async with running(tmp_path) as bench:
        handles = []
        for job in ("a", "b"):
            bench.controller.handle(ev.JobSubmitted(job, share, "q", 1.0, 0.0, f"name of {job}"))
            await until(lambda: f"launched {job}" in bench.host.said)  # noqa: B023  # called at once
            handles.append(bench.controller.runs[job].handle)
    async with running(tmp_path, bench.driver.world) as second:
        for handle in handles:
            assert isinstance(handle, MemoryHandle)
            handle.end(0)
        await until(lambda: len(second.host.rows) == 2)
        assert [row.neighbours for row in second.host.rows] == [("train",), ("train",)]


async def test_a_cancellation_that_an_earlier_worker_had_begun_is_carried_on(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        handle = await bench.launch("a")
        path = bench.folders[0] / "record.json"
        path.write_text(json.dumps(read_json(path) | {"cancelled": True}))
    async with running(tmp_path, bench.driver.world) as second:
        await second.controller.wait_idle()
        assert not handle.running and second.host.said == ["finalise a"]


async def test_a_run_that_an_earlier_worker_was_about_to_stop_for_others_is_stopped(tmp_path: Path) -> None:
    """The signal had not reached it: its node was out of reach."""
    async with running(tmp_path) as bench:
        handle = await bench.launch()
        run = bench.controller.runs["a"]
        run.record.leaving = "another comes first"
        bench.controller._saver.save(run)
    second = Bench(tmp_path, bench.driver.world)
    second.host = second.controller._host = second.controller._launches.host = Patient()
    await second.controller.start()
    try:
        await until(lambda: "launched a" in second.host.said)
        assert handle.stopped_with == 0 and "finalise a" not in second.host.said
    finally:
        await second.controller.close()


@pytest.mark.parametrize("expires", [False, True])
async def test_a_run_that_is_to_stop_before_it_can_be_looked_for_is_stopped_once_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expires: bool
) -> None:
    """Its user suspends it, or its time is over, while its node is out of reach."""
    monkeypatch.setattr(launches, "_RETRY_S", 0.01)
    async with running(tmp_path) as bench:
        handle = await bench.launch()
    second = Bench(tmp_path, bench.driver.world)
    adopt, away = second.driver.adopt, True

    async def adopting(run_id: str, run_dir: Path) -> MemoryHandle | None:
        if away:
            raise LaunchError("its node is out of reach")
        return await adopt(run_id, run_dir)

    monkeypatch.setattr(second.driver, "adopt", adopting)
    await second.controller.start()
    try:
        assert second.controller.runs["a"].handle is None
        if expires:
            second.controller._carry_out(do.Expire("a", "its time is over"), second.now)
        else:
            second.controller.suspend("a", "its user has suspended it")
        away = False
        await until(lambda: not handle.running)
        await second.controller.wait_idle()
    finally:
        await second.controller.close()


async def test_a_run_that_ended_between_two_workers_is_settled_by_the_next(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        handle = await bench.launch("a")
    handle.end(3)
    async with running(tmp_path, bench.driver.world) as second:
        await second.controller.wait_idle()
        assert second.host.said == ["finalise a"] and second.host.reports[0].returncode == 3
        assert second.folders == [] and second.places == {}


async def test_a_run_whose_worker_died_before_it_knew_of_the_process_is_remembered(tmp_path: Path) -> None:
    """The process exists, and nothing of that has been written to the record yet."""
    async with running(tmp_path) as bench:
        bench.driver.slow_answer = asyncio.Event()
        bench.submit("a")
        await until(lambda: bench.driver.world)
    async with running(tmp_path, bench.driver.world) as second:
        next(iter(second.driver.world.values())).end()
        await second.controller.wait_idle()
        [row] = second.host.rows
        assert row.outcome == "completed" and row.warm_start is True and row.started_at == 1000.0


async def test_what_was_found_out_while_preparing_outlives_the_worker(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.driver.slow_answer = asyncio.Event()
        bench.host.found_out = {"flow_name": "train the model"}
        bench.submit("a")
        await until(lambda: bench.driver.world)
    async with running(tmp_path, bench.driver.world) as second:
        next(iter(second.driver.world.values())).end()
        await second.controller.wait_idle()
        assert second.host.rows[0].flow_name == "train the model"


async def test_a_launch_that_never_came_to_be_is_given_back(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.host.preparing = asyncio.Event()
        bench.submit("a")
        await until(lambda: bench.host.said)
    assert len(bench.folders) == 1
    async with running(tmp_path) as second:
        await second.controller.wait_idle()
        assert second.host.said == ["unlaunched a"] and second.folders == [] and second.places == {}


async def test_a_launch_that_cannot_be_given_back_is_left_to_the_next_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody waits for it meanwhile."""
    async with running(tmp_path) as bench:
        bench.host.preparing = asyncio.Event()
        bench.submit("a")
        await until(lambda: bench.host.said)
    second = Bench(tmp_path)
    monkeypatch.setattr(second.host, "unlaunched", fail)
    await second.controller.start()
    try:
        await second.controller.wait_idle()
        assert not second.controller.runs and len(second.folders) == 1
    finally:
        await second.controller.close()


async def test_a_launch_of_which_nothing_is_left_has_its_row(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        await bench.launch("a")
        granted = bench.controller.runs["a"].record.times["granted"]
    async with running(tmp_path) as second:  # whose driver finds no process
        second.host.had_begun = ("completed", "All is well", granted + 7.0)
        await second.controller.wait_idle()
        [row] = second.host.rows
        assert (row.run_id, row.outcome, row.message, row.exit_code) == ("a", "completed", "All is well", None)
        assert row.granted_at is not None and row.ended_at == pytest.approx(row.granted_at + 7.0)
        assert second.folders == [] and second.places == {}


async def test_a_cancellation_outlives_the_worker(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        await bench.launch("a")
        run = bench.controller.runs["a"]
        run.record.cancelled = True
        bench.controller._saver.save(run)
    async with running(tmp_path, bench.driver.world) as second:
        assert second.controller.runs["a"].cancelling


async def test_after_its_end_a_controller_starts_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        pass
    bench.submit("a")
    assert bench.places == {} and bench.folders == []


# -- time and the log ---------------------------------------------------------------------------------------------


async def test_a_run_starts_by_itself_when_it_is_due(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.submit("a", due=bench.now + 0.01)
        assert bench.places == {}
        bench.now += 0.01
        await until(lambda: "launched a" in bench.host.said)


async def test_the_log_of_events_can_be_replayed(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        handle = await bench.launch("a")
        await bench.launch("b")
        bench.submit("c")
        handle.end()
        await until(lambda: "launched c" in bench.host.said)
        said = [said for _, _, said in log.replay((tmp_path / "events" / "pool.jsonl").read_text().splitlines())]
        assert [[type(one).__name__ for one in instructions] for instructions in said] == [
            [],
            ["Launch"],
            ["Launch"],
            ["Hold"],
            ["Launch"],
        ]
    async with running(tmp_path, bench.driver.world):
        assert (tmp_path / "events" / "pool.previous.jsonl").read_text().count("JobSubmitted") == 3


async def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("a file where the folder should be")
    async with running(tmp_path) as bench:
        (await bench.launch("a")).end()
        await until(lambda: bench.host.rows)


# -- what runs report ---------------------------------------------------------------------------------------------


async def report(bench: Bench, *events: tuple[str, float, dict[str, Any]], job: str = "a") -> None:
    """Send events over the run's channel, as its process would, and wait until they have been handled."""
    env = next(spec.env for spec in bench.driver.specs if spec.run_id == job)
    async with connect(env[protocol.ENV_CHANNEL], proxy=None) as client:
        hello = {"type": "hello", "protocol": protocol.PROTOCOL_VERSION, "run": job, "session": "process"}
        await client.send(json.dumps({**hello, "token": env[protocol.ENV_TOKEN]}))
        acked = json.loads(await client.recv())["acked"]
        for number, (kind, at, data) in enumerate(events, start=acked + 1):
            bench.now = max(bench.now, at)
            await client.send(json.dumps({"type": "event", "seq": number, "at": at, "kind": kind, "data": data}))
            assert json.loads(await client.recv()) == {"type": "ack", "seq": number}


async def test_phases_progress_and_usage_reach_the_history(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        handle = await bench.launch()
        await report(
            bench,
            (protocol.PHASE, 1010.0, {"phase": "preparing"}),
            (protocol.PHASE, 1020.0, {"phase": "training", "steps": 4, "batch_size": 32}),
            (protocol.PROGRESS, 1025.0, {"step": 2, "steps": 4, "losses": [[1, 0.9], [2, 0.5]]}),
            (protocol.USAGE, 1026.0, {"cpu_fraction": 0.5, "device_util": 0.2, "device_memory_bytes": 100}),
            (protocol.USAGE, 1027.0, {"cpu_fraction": 1.5, "device_util": 0.6, "device_memory_bytes": 300}),
            (protocol.PROGRESS, 1028.0, {"step": 4, "steps": 4, "losses": [[3, 0.4], [4, 0.6]]}),
        )
        assert bench.controller.scheduler.state.jobs["a"].status is Status.TRAINING
        assert bench.record()["times"]["training"] == 1020.0 and bench.record()["session"] == "process"
        await report(
            bench,
            (protocol.PHASE, 1050.0, {"phase": "saving"}),
            (protocol.PHASE, 1055.0, {"phase": "finished"}),
        )
        bench.now = 1060.0
        handle.end(0, cpu_seconds=1000.0)
        await bench.controller.wait_idle()
        [row] = bench.host.rows
        assert (row.prepared_s, row.trained_s, row.saved_s) == (20.0, 30.0, 5.0)
        assert (row.steps_done, row.final_loss, row.best_loss) == (4, 0.6, 0.4)
        assert (row.cpu_mean, row.device_util_mean, row.device_util_peak) == (1.0, pytest.approx(0.4), 0.6)
        assert row.device_memory_peak_bytes == 300
        assert row.features == {"tags": ["x"], "steps": 4, "batch_size": 32}
        assert bench.host.said.count("progress a") == 2 and bench.host.said.count("phase a") == 4


async def test_odd_reports_harm_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        handle = await bench.launch()
        await report(
            bench,
            (protocol.PHASE, 1010.0, {"phase": "dancing"}),
            (protocol.PHASE, 1010.0, {}),
            (protocol.PROGRESS, 1010.0, {"losses": "none"}),
            (protocol.PROGRESS, 1010.0, {"step": "many", "losses": [[1]]}),
            (protocol.USAGE, 1010.0, {"cpu_fraction": "much", "rss_bytes": None, "device_util": True}),
            ("unheard of", 1010.0, {}),
            (protocol.PHASE, 1011.0, {"phase": "training"}),
        )
        assert bench.controller.runs["a"].phase == "training"
        handle.end()
        await until(lambda: bench.host.rows)
        assert bench.host.rows[0].outcome == "completed"


async def test_what_goes_wrong_at_a_runs_end_keeps_no_device(tmp_path: Path, caplog: Any) -> None:
    class Broken(Follower):
        """Has a bug in each method."""

        def ended(self, launch: Launch, at: float) -> None:
            raise OverflowError("cannot convert float infinity to integer")

        def over(self, launch: Launch, at: float, outcome: str | None, message: str) -> None:
            raise OverflowError

        def released(self, launch: Launch, at: float, carries_on: bool) -> None:
            raise OverflowError

    async with running(tmp_path) as bench:
        handle = await bench.launch()
        bench.controller.runs["a"].followers.insert(0, Broken())
        settle, bench.host.finalise = bench.host.finalise, fail  # type: ignore[method-assign]
        handle.end(0)
        await bench.controller.wait_idle()
        assert bench.places == {} and len(bench.folders) == 1
        assert "float infinity" in caplog.text and "could not be settled" in caplog.text
        bench.host.finalise = settle  # type: ignore[method-assign]
        (await bench.launch("b")).end(0)
        await until(lambda: "finalise b" in bench.host.said)
        await bench.controller.wait_idle()
    async with running(tmp_path, bench.driver.world) as second:
        await until(lambda: "finalise a" in second.host.said)
        await second.controller.wait_idle()
        assert second.folders == []


async def fail(*_: object) -> Any:
    """A host with a bug."""
    raise RuntimeError("a bug in the host")


async def test_an_adopted_run_goes_on_reporting_from_where_it_was(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        await bench.launch()
        await report(
            bench, (protocol.PHASE, 1010.0, {"phase": "preparing"}), (protocol.PHASE, 1020.0, {"phase": "training"})
        )
        env = bench.driver.specs[0].env
    async with running(tmp_path, bench.driver.world) as second:
        assert second.controller.runs["a"].phase == "training"
        assert second.controller.scheduler.state.jobs["a"].status is Status.TRAINING
        url = read_json(env[protocol.ENV_CHANNEL_FILE])["url"]
        second.driver.specs = [bench.driver.specs[0]]
        second.driver.specs[0].env[protocol.ENV_CHANNEL] = url
        await report(second, (protocol.PHASE, 1050.0, {"phase": "saving"}))
        second.now = 1060.0
        next(iter(second.driver.world.values())).end()
        await second.controller.wait_idle()
        [row] = second.host.rows
        assert (row.prepared_s, row.trained_s, row.saved_s) == (20.0, 30.0, 10.0)


ELASTIC = Request(max_gpus=2, preemptible=True)


async def test_what_an_elastic_run_has_measured_outlives_a_launch_that_failed_and_the_worker(tmp_path: Path) -> None:
    before, world = {"1": [100.0, 10.0]}, dict[Path, MemoryHandle]()
    async with running(tmp_path, world) as bench:
        bench.host.request = ELASTIC
        told = bench.controller.estimates.submitted("a", Known("train"), 2, speeds=before)
        bench.host.prepare_errors.append(LaunchError("Prefect is away"))
        bench.controller.handle(ev.JobSubmitted("a", ELASTIC, "q", 1.0, 0.0, "a", told))
        await until(lambda: "prepare a" in bench.host.said and "a" not in bench.controller.runs)
        bench.now += 3600.0
        bench.controller.handle(ev.TimePassed())
        await until(lambda: "launched a" in bench.host.said)
        assert bench.record()["speeds"] == before
    async with running(tmp_path, world) as bench:
        speeds, own = bench.controller.estimates.throughput("a")
        assert own == {1: 10.0} and speeds[0] == 10.0 and speeds[1] > 10.0
        assert bench.controller.scheduler.state.jobs["a"].estimate.throughput == speeds


class Patient(RecordingHost):
    """Runs that left their place wait again."""

    async def give_way(self, run: Any, reason: str) -> bool:
        """See Host."""
        return True


def cascade(bench: Bench) -> None:
    """A run leaves; the next two are granted its device and made to leave before they could begin; a third may stay."""
    placement = bench.controller.runs["a"].record.placement
    for job, follower in (("a", "b"), ("b", "c"), ("c", "d")):
        bench.controller._carry_out(do.Preempt(job, "another comes first"), bench.now)
        bench.controller._carry_out(do.Launch(follower, placement, "it comes first"), bench.now)


@pytest.mark.parametrize("errors", [0, 1, 2])
async def test_whoever_is_made_to_leave_while_it_waits_for_its_device_does_not_keep_it_from_the_next(
    tmp_path: Path, errors: int
) -> None:
    bench = Bench(tmp_path)
    bench.host = bench.controller._host = bench.controller._launches.host = Patient()
    await bench.controller.start()
    try:
        await bench.launch()
        await bench.controller._on_run_event("a", protocol.PHASE, bench.now, {"phase": protocol.TRAINING})
        bench.host.prepare_errors = [LaunchError("not now")] * errors
        cascade(bench)
        await asyncio.sleep(0)
        assert "prepare b" not in bench.host.said, "the device is not free yet"
        await bench.controller._on_run_event("a", protocol.CHECKPOINT, bench.now, {"step": 1})
        await until(lambda: "launched d" in bench.host.said)
        assert not {"launched b", "launched c"}.intersection(bench.host.said)
        assert not {"b", "c"}.intersection(bench.controller.runs)
    finally:
        await bench.controller.close()


async def test_a_run_that_comes_to_its_end_while_it_is_being_stopped_carries_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.host = bench.controller._host = bench.controller._launches.host = Patient()
    await bench.controller.start()
    try:
        await bench.launch()
        await bench.controller._on_run_event("a", protocol.PHASE, bench.now, {"phase": protocol.TRAINING})
        bench.controller._carry_out(do.Preempt("a", "another comes first"), bench.now)
        await bench.controller._on_run_event("a", protocol.CHECKPOINT, bench.now, {"step": 1})
        # The signal is on its way; that was the last step.
        await bench.controller._on_run_event("a", protocol.PHASE, bench.now, {"phase": protocol.SAVING})
        await until(lambda: bench.host.said.count("launched a") == 2)
        assert "finalise a" not in bench.host.said
    finally:
        await bench.controller.close()
