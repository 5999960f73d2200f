"""Pre-scheduling under every fault, in any order: nothing is lost, nothing runs twice, nobody trains beside another.

Real controllers, one after another, on a simulated machine (:mod:`tests.runtime.fault_world`).
"""

# mypy: disable-error-code="func-returns-value"

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.training import protocol
from tests.runtime.fault_world import Process, World

ESTIMATE = Estimate(service_s=20.0, launching_s=6.0, saving_s=2.0)
REQUESTS = (
    Request(),
    Request(preemptible=True),
    Request(preemptible=True),
    Request(gpu_memory_bytes=3 << 30, exclusive=False),
    Request(gpus=0),
    Request(preemptible=True, time_limit_s=30.0),
    Request(preemptible=True, time_limit_s=60.0, deadline_at=1_000_150.0, promise=True),
)
MANY = 400


class Faults(RuleBasedStateMachine):
    """What may happen to runs, to their channel and to their worker."""

    launched_behind = left = moved = 0

    @initialize(devices=st.integers(1, 2), far=st.integers(0, 3), preemptible=st.booleans())
    def begin(self, devices: int, far: int, preemptible: bool) -> None:
        """Some begin where a run is prepared behind each that trains: most of what may go wrong goes wrong there."""
        self.folder = tempfile.TemporaryDirectory(
            prefix="faults-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
        )
        self.world = World(Path(self.folder.name), devices)
        self.world.set_quota(None)
        for _ in range(devices if preemptible else 2 * devices):  # whom another is prepared behind is not to leave
            self.world.submit(Request(preemptible=preemptible), "q", ESTIMATE)
        for happens in (self.every_flow_goes_on, self.every_flow_goes_on, lambda: self.time_passes(13.0))[:far]:
            happens()

    def one(self, number: int, *stages: str) -> Process | None:
        """One of the processes in these stages; None if there are none."""
        found = [p for p in self.world.processes.values() if p.stage in stages or (not stages and p.stage != "gone")]
        return found[number % len(found)] if found else None

    # -- what usually happens ---------------------------------------------------------------------------------------

    @rule(request=st.sampled_from(REQUESTS), queue=st.sampled_from(["q", "q", "urgent"]), waits=st.booleans())
    def submit(self, request: Request, queue: str, waits: bool) -> None:
        if len(self.world.submitted) < 8:
            service = ESTIMATE if waits else Estimate(service_s=20.0, launching_s=6.0, waits=False)
            self.world.submit(request, queue, service)

    @rule(number=st.integers(0, 7))
    def a_flow_goes_on(self, number: int) -> None:
        process = self.one(number)
        if process is not None:
            process.go()
            self.world.do(lambda: None)

    @rule()
    def every_flow_goes_on(self) -> None:
        for process in list(self.world.processes.values()):
            process.go()
            self.world.do(lambda: None)

    @rule(seconds=st.sampled_from([0.01, 2.0, 13.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(number=st.integers(0, 7), step=st.integers(1, 99))
    def a_run_reports(self, number: int, step: int) -> None:
        process = self.one(number, "training")
        if process is not None:
            process.post(protocol.PROGRESS, {"step": step, "steps": 100, "loss": 1.0 / step, "steps_per_s": 5.0})
            self.world.do(lambda: None)

    @rule(number=st.integers(0, 7), service=st.sampled_from([None, 1.0, 15.0, 200.0]))
    def an_estimate_changes(self, number: int, service: float | None) -> None:
        run_id = f"run-{number % len(self.world.submitted)}"
        event = ev.JobEstimated(run_id, Estimate(service_s=service, launching_s=6.0))
        self.world.do(lambda: self.world.worker.controller.handle(event))

    @rule(limit=st.sampled_from([None, 1, 2]))
    def the_limit_changes(self, limit: int | None) -> None:
        self.world.set_quota(limit)

    # -- faults of runs ---------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 7), code=st.sampled_from([0, 1, -9, None]))
    def a_process_ends(self, number: int, code: int | None) -> None:
        process = self.one(number)
        if process is not None:
            process.end(code)
            self.world.do(lambda: None)

    @rule(number=st.integers(0, 7))
    def a_run_tries_again(self, number: int) -> None:
        process = self.one(number, "preparing", "training", "saving", "finished")
        if process is not None:
            process.prepare()
            self.world.do(lambda: None)

    @rule(number=st.integers(0, 7), again=st.booleans())
    def a_run_is_out_of_memory(self, number: int, again: bool) -> None:
        process = self.one(number, "preparing", "training")
        if process is not None:
            process.post(protocol.OUT_OF_MEMORY, {})
            process.prepare() if again else process.end(1)
            self.world.do(lambda: None)

    @rule(how=st.sampled_from(["wait", "move"]))
    def all_runs_are_to_leave(self, how: str) -> None:
        for process in list(self.world.processes.values()):
            if process.stage != "gone":
                self.world.order(process.run_id, how)

    @rule(number=st.integers(0, 7), how=st.sampled_from(["wait", "move"]))
    def a_run_is_to_leave(self, number: int, how: str) -> None:
        process = self.one(number)
        if process is not None:
            self.world.order(process.run_id, how)

    @rule(in_s=st.sampled_from([None, 5.0, 80.0, 200.0]))
    def the_machine_is_to_leave(self, in_s: float | None) -> None:
        self.world.notice(in_s)

    @rule(number=st.integers(0, 7))
    def a_run_is_suspended(self, number: int) -> None:
        process = self.one(number, "preparing", "gate", "lock", "training", "saving")
        if process is not None and self.world.submitted[process.run_id][0].preemptible:
            self.world.suspend(process.run_id)

    @precondition(lambda self: self.world.suspended)
    @rule(number=st.integers(0, 7))
    def a_run_is_resumed(self, number: int) -> None:
        self.world.resume(sorted(self.world.suspended)[number % len(self.world.suspended)])

    @rule(number=st.integers(0, 7))
    def a_device_is_taken_out_of_service(self, number: int) -> None:
        self.world.cordon(number)

    @precondition(lambda self: self.world.cordons.read())
    @rule()
    def the_devices_are_put_back(self) -> None:
        self.world.uncordon()

    @rule(number=st.integers(0, 7))
    def a_run_is_cancelled(self, number: int) -> None:
        self.world.cancel(f"run-{number % len(self.world.submitted)}")

    # -- faults of launches -----------------------------------------------------------------------------------------

    @rule(what=st.sampled_from(["launch", "prepare", "claim", "room", "work folder", "sync", "write", "adopt"]))
    def a_launch_will_fail(self, what: str) -> None:
        self.world.refusals[what] = True

    @rule(what=st.sampled_from(["prepare", "launch", "answer", "finalise"]))
    def something_takes_long(self, what: str) -> None:
        self.world.set_slow(what)

    @precondition(lambda self: self.world.slow)
    @rule()
    def what_took_long_is_done(self) -> None:
        self.world.hurry()

    # -- faults of the channel and of the worker --------------------------------------------------------------------

    @rule(number=st.integers(0, 7))
    def a_channel_is_cut(self, number: int) -> None:
        process = self.one(number)
        if process is not None and not process.cut:
            process.cut = True
            process.broken_since = self.world.now if process.broken_since is None else process.broken_since

    @rule()
    def all_channels_are_cut_for_long(self) -> None:
        for process in self.world.processes.values():
            process.cut = True
        self.world.pass_time(70.0)

    @rule(number=st.integers(0, 7))
    def a_channel_is_back(self, number: int) -> None:
        cut = [process for process in self.world.processes.values() if process.cut]
        if cut:
            cut[number % len(cut)].cut = False
            self.world.do(lambda: None)

    @rule()
    def the_worker_is_killed(self) -> None:
        self.world.kill_worker()

    @rule(after=st.integers(0, 12))
    def the_worker_will_be_killed_in_the_middle(self, after: int) -> None:
        self.world.fuse = after

    # -- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.world.recover()
                type(self).launched_behind += self.world.behind
                type(self).left += len(self.world.left)
                type(self).moved += self.world.moved
            finally:
                self.folder.cleanup()


# -- each event at each phase, one by one -----------------------------------------------------------------------------


class Pair:
    """Run 1 is prepared behind run 0 on the only device, and run 2 waits."""

    def __init__(self, folder: Path, far: str, request: Request = REQUESTS[0]) -> None:
        self.world = world = World(folder)
        world.set_quota(None)
        for _ in range(3):
            world.submit(request, "q", ESTIMATE)
        self.first.go()
        world.pass_time(0.0)
        self.first.go()
        world.pass_time(0.0)
        assert self.first.stage == "training"
        if far in ("prepare", "launch", "answer"):
            world.set_slow(far)
        world.pass_time(13.0)
        assert world.behind == 1
        if far == "answer":
            world.hurry()
        for _ in range({"preparing": 1, "gate": 2}.get(far, 0)):
            self.second.go()
            world.pass_time(0.0)
        assert far in ("prepare", "launch") or self.second.stage == ("starting" if far == "answer" else far)

    @property
    def first(self) -> Process:
        return self.process("run-0")

    @property
    def second(self) -> Process:
        return self.process("run-1")

    def process(self, run_id: str) -> Process:
        return next(process for process in self.world.processes.values() if process.run_id == run_id)

    def go(self, *processes: Process) -> None:
        for process in processes:
            process.go()
        self.world.pass_time(0.0)

    def retry(self) -> None:
        self.first.prepare()
        self.world.pass_time(0.0)

    def cut(self, *processes: Process) -> None:
        for process in processes:
            process.cut, process.broken_since = True, self.world.now

    def launched(self) -> list[Process]:
        return [process for process in self.world.processes.values() if process.run_id != "run-0"]

    def urgent(self) -> None:
        self.world.submit(Request(priority=9), "urgent", ESTIMATE)
        self.go(self.first)


EVENTS: dict[str, Callable[[Pair], object]] = {
    "the predecessor is late": lambda pair: pair.world.pass_time(500.0),
    "the predecessor saves early": lambda pair: pair.go(pair.first),
    "the predecessor crashes": lambda pair: pair.first.end(-9),
    "the predecessor vanishes": lambda pair: pair.first.end(None),
    "the predecessor is cancelled": lambda pair: pair.world.cancel("run-0"),
    "the predecessor tries again": lambda pair: pair.retry(),
    "the predecessor tries again after saving": lambda pair: (pair.go(pair.first), pair.retry(), pair.go(pair.first)),
    "the successor is cancelled": lambda pair: pair.world.cancel("run-1"),
    "the successor crashes": lambda pair: [process.end(1) for process in pair.launched()],
    "the successor cannot be launched": lambda pair: (pair.world.refusals.update(launch=True), pair.world.hurry()),
    "Prefect is out of reach": lambda pair: (pair.world.refusals.update(prepare=True), pair.world.hurry()),
    "another worker takes the successor": lambda pair: (pair.world.refusals.update(claim=True), pair.world.hurry()),
    "a more urgent run comes": lambda pair: pair.urgent(),
    "nothing more is known of the predecessor": lambda pair: pair.world.do(
        lambda: pair.world.worker.controller.handle(ev.JobEstimated("run-0", Estimate()))
    ),
    "the predecessor's channel is cut": lambda pair: (pair.cut(pair.first), pair.go(pair.first)),
    "the successor's channel is cut": lambda pair: (pair.cut(*pair.launched()), pair.go(pair.first)),
    "all channels are cut for long": lambda pair: (
        pair.cut(pair.first, *pair.launched()),
        pair.go(pair.first),
        pair.world.pass_time(70.0),
    ),
    "the worker is killed": lambda pair: pair.world.kill_worker(),
    "the worker is killed and the predecessor saves": lambda pair: (pair.go(pair.first), pair.world.kill_worker()),
    "the worker is killed while nobody can reach it": lambda pair: (
        pair.cut(pair.first, *pair.launched()),
        pair.world.kill_worker(),
        pair.go(pair.first),
        pair.world.pass_time(70.0),
    ),
}


@pytest.mark.parametrize("far", ["prepare", "launch", "answer", "preparing", "gate"])
@pytest.mark.parametrize("event", EVENTS)
def test_whatever_happens_while_a_run_is_prepared_all_come_to_their_end(tmp_path: Path, event: str, far: str) -> None:
    pair = Pair(tmp_path, far)
    EVENTS[event](pair)
    pair.world.pass_time(0.0)
    pair.world.check()
    pair.world.pass_time(5.0)
    pair.world.check()
    for process in pair.launched():
        process.cut = False  # the successor's reports arrive before those of its predecessor
    pair.world.pass_time(5.0)
    pair.world.check()
    pair.world.recover()


@pytest.mark.parametrize("fuse", range(16))
@pytest.mark.parametrize("far", ["prepare", "answer", "preparing", "gate"])
def test_the_worker_may_be_killed_at_any_border_while_a_gate_opens(tmp_path: Path, far: str, fuse: int) -> None:
    pair = Pair(tmp_path, far)
    pair.world.fuse = fuse
    pair.world.hurry()
    pair.go(pair.first)
    pair.world.check()
    pair.world.recover()


# -- all of it, in any order ------------------------------------------------------------------------------------------


def explore(sequences: int, steps: int, *, same_each_time: bool = False) -> None:
    """Look for a sequence of events that does harm."""
    Faults.launched_behind = Faults.left = Faults.moved = 0
    run_state_machine_as_test(
        Faults,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            deadline=None,
            derandomize=same_each_time,
            suppress_health_check=list(HealthCheck),
            print_blob=not same_each_time,
        ),
    )
    if sequences >= 100:  # how many of a few are about hand-overs is chance
        assert min(Faults.launched_behind, Faults.left) > sequences / 20, "else this would be about something else"


def test_a_run_that_tries_again_while_it_is_to_move_waits_when_it_cannot_be_launched(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    world.set_quota(None)
    for _ in range(2):
        world.submit(Request(preemptible=True), "q", ESTIMATE)
    for _ in range(2):
        for process in list(world.processes.values()):
            process.go()
            world.pass_time(0.0)
    first, second = world.processes.values()
    first.end(0)
    world.pass_time(0.0)
    world.refusals["prepare"] = True
    world.order(second.run_id, "move")
    second.prepare()  # the process that is to leave, on the device that it is to leave
    world.pass_time(0.0)
    assert second.stage == "gone", "it has nothing to save, and is stopped at once"
    world.check()
    world.recover()


def test_a_run_that_saved_and_tries_again_leaves_all_the_same(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.set_quota(None)
    run = world.submit(Request(preemptible=True), "q", ESTIMATE)
    [process] = world.processes.values()
    for _ in range(3):
        process.go()
        world.pass_time(0.0)
    assert process.stage == "saving"
    world.order(run, "wait")
    process.prepare()
    world.pass_time(0.0)
    assert process.stage == "gone"
    world.check()
    world.recover()


def test_a_run_that_cannot_be_looked_for_leaves_once_it_is_found(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.set_quota(None)
    run = world.submit(Request(preemptible=True), "q", ESTIMATE)
    [process] = world.processes.values()
    for _ in range(2):
        process.go()
        world.pass_time(0.0)
    world.refusals["adopt"] = True
    world.kill_worker()
    world.check()
    world.order(run, "wait")
    world.pass_time(3.0)
    assert process.stage == "training" and process.save_asked
    process.go()
    world.pass_time(0.0)
    assert process.stage == "gone" and run not in world.over
    world.recover()


def test_nobody_is_stopped_for_a_device_that_two_runs_were_found_on(tmp_path: Path) -> None:
    """A worker died before it had told Prefect of a cancelled run's end; its device was another's by then."""
    world = World(tmp_path, 1)
    world.set_quota(None)
    cancelled = world.submit(Request(preemptible=True), "q", ESTIMATE)
    alone = world.submit(Request(), "q", ESTIMATE)
    world.set_slow("finalise")
    world.cancel(cancelled)
    world.submit(Request(), "q", ESTIMATE)
    world.kill_worker()
    found = world.worker.controller.scheduler.state
    assert {cancelled, alone} >= found.running.keys() >= {alone}
    world.check()
    world.recover()


def test_a_run_is_not_stopped_while_the_one_before_it_saves_on_its_device(tmp_path: Path) -> None:
    """It would make no room: a third run was granted no device at all."""
    pair = Pair(tmp_path, "preparing", Request(preemptible=True))
    pair.world.kill_worker()  # whoever takes over does not know that it has launched it just now
    pair.go(pair.first)
    assert [pair.first.stage, pair.second.stage] == ["saving", "preparing"]
    pair.world.submit(Request(), "urgent", ESTIMATE)
    pair.world.check()
    pair.world.recover()


def test_a_record_that_found_no_room_is_written_once_there_is_some(tmp_path: Path) -> None:
    """Else a worker that is killed would be followed by one that knows nothing of what came after the disk was full."""
    pair = Pair(tmp_path, "preparing")
    pair.world.refusals["write"] = True
    pair.go(pair.second)
    assert pair.world.unwritten == {"run-1"}, "it waits for its device, and its record does not say so"
    pair.world.pass_time(11.0)
    pair.world.kill_worker()
    assert not pair.world.forgotten
    assert pair.world.worker.controller.runs["run-1"].waiting
    pair.world.recover()


def test_no_fault_does_harm() -> None:
    explore(15, 15, same_each_time=True)


@pytest.mark.full
def test_no_fault_does_harm_in_many_sequences() -> None:
    explore(MANY, 25)
