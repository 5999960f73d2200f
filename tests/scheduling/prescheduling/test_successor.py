"""The next job is prepared behind one that is about to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_gpu.papers.baselines.orders import Priority
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.decision import Decision as Verbs
from prefect_gpu.scheduling.elastic.listing1 import PROTECTED_LAUNCHES
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.instructions import Instruction, Launch, OpenGate, Preempt
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request, Status
from prefect_gpu.scheduling.preemption.make_room import MakeRoom
from prefect_gpu.scheduling.preemption.minimum_runtime import left_alone_until
from prefect_gpu.scheduling.preemption.units import restart_s
from prefect_gpu.scheduling.prescheduling.successor import Margin, Prescheduling
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.scheduling.sharing.rules import DeclaredMemory
from tests.scheduling.world import GIB, asks, node
from tests.support import examples

GATES = Abilities(gates=True)
HUNDRED = Estimate(service_s=100.0, launching_s=20.0, saving_s=4.0)
MARGIN_S = 5.0
DUE = 100.0 - 20.0 - MARGIN_S


@dataclass
class Decision:
    """A scheduler with a successor policy, one node, and a clock."""

    scheduler: Scheduler
    now: float = 0.0

    def tell(self, event: ev.Event, at: float | None = None) -> list[Instruction]:
        self.now = self.now if at is None else at
        said = self.scheduler.handle(event, self.now)
        self.scheduler.state.check_invariants()
        return said

    def submit(self, job: str, request: Request | None = None, estimate: Estimate = HUNDRED) -> list[Instruction]:
        return self.tell(ev.JobSubmitted(job, request or Request(), "q", self.now, self.now, "", estimate))

    def phase(self, job: str, status: Status, at: float | None = None) -> list[Instruction]:
        return self.tell(ev.PhaseEntered(job, status), at)

    def wait_until(self, at: float) -> list[Instruction]:
        """Ring as often as the scheduler asks for it."""
        said = []
        while (due := self.scheduler.next_due()) is not None and self.now < due <= at:
            said += self.tell(ev.TimePassed(), due)
        return said + self.tell(ev.TimePassed(), at)

    @property
    def margin(self) -> Margin:
        (successor,) = self.scheduler.profile.reactions
        assert isinstance(successor, Prescheduling)
        return successor.margin


def decision(able: Abilities = GATES, devices: int = 1, **profile: Any) -> Decision:
    made = Decision(Scheduler(Profile("test", reactions=(Prescheduling(),), **profile), able))
    made.tell(ev.NodesChanged((node("n", *[8] * devices),)))
    return made


def training(**arguments: Any) -> Decision:
    """Job a trains since 0 on the only device, and b waits."""
    made = decision(**arguments)
    made.submit("a")
    made.submit("b")
    made.phase("a", Status.TRAINING)
    return made


def prepared() -> Decision:
    """Job b is launched behind a, at 75."""
    made = training()
    assert [one.job for one in made.wait_until(DUE) if isinstance(one, Launch)] == ["b"]
    return made


def test_it_is_launched_by_its_launching_time_and_a_margin_before_the_predicted_end() -> None:
    world = training()
    assert not world.wait_until(DUE - 1)
    (said,) = world.wait_until(DUE)
    assert isinstance(said, Launch) and (said.job, said.behind, said.placement.devices) == ("b", "a", ("n0",))
    assert said.reason == "it prepares behind a, which is expected to train for 25 s more"


def test_its_gate_opens_when_the_predecessor_saves_and_not_before() -> None:
    world = prepared()
    assert not world.phase("b", Status.PREPARING, 95.0)
    (said,) = world.phase("a", Status.SAVING, 100.0)
    assert isinstance(said, OpenGate) and said.job == "b"
    assert not world.phase("b", Status.TRAINING, 100.0)
    assert not world.tell(ev.JobEnded("a", "completed"), 104.0)
    assert set(world.scheduler.state.running) == {"b"}


@pytest.mark.parametrize("ends", ["crashed", "completed", "cancelled"])
def test_its_gate_opens_when_the_predecessor_is_gone_without_saving(ends: str) -> None:
    world = prepared()
    (said,) = world.tell(ev.JobEnded("a", ends), 80.0)
    assert isinstance(said, OpenGate) and said.job == "b"


def test_it_waits_for_a_predecessor_that_is_late() -> None:
    world = prepared()
    world.phase("b", Status.PREPARING, 95.0)
    assert not world.wait_until(500.0)
    assert world.scheduler.state.jobs["b"].behind == "a"
    assert [type(one) for one in world.phase("a", Status.SAVING, 501.0)] == [OpenGate]


def test_waiting_at_the_gate_is_no_part_of_what_a_launch_costs() -> None:
    world = prepared()
    world.phase("b", Status.PREPARING, 95.0)
    world.phase("a", Status.SAVING, 500.0)
    world.phase("b", Status.TRAINING, 501.0)
    job, took_s = world.scheduler.state.jobs["b"], 21.0  # a launch as expected, and one second from the gate on
    assert restart_s(job) == took_s
    assert left_alone_until(job) == 501.0 + PROTECTED_LAUNCHES * took_s


def test_a_slower_pace_than_expected_puts_it_off() -> None:
    world = training()
    world.tell(ev.Progressed((("a", 25.0),)), 50.0)  # half as fast: it will train until 200
    assert not world.wait_until(170.0)
    assert [type(one) for one in world.wait_until(176.0)] == [Launch]


def test_a_faster_pace_than_expected_brings_it_forward() -> None:
    world = training()
    (said,) = world.tell(ev.Progressed((("a", 60.0),)), 30.0)  # twice as fast: it will train until 50
    assert isinstance(said, Launch) and said.behind == "a"


def test_behind_a_training_that_is_shorter_than_preparing_it_is_launched_while_that_one_prepares() -> None:
    world = decision()
    world.submit("a", estimate=Estimate(service_s=10.0, launching_s=20.0))  # trains from 20 to 30
    world.submit("b")
    assert not world.phase("a", Status.PREPARING, 1.0)
    assert not world.wait_until(4.0)
    (said,) = world.wait_until(30.0 - 20.0 - MARGIN_S)
    assert isinstance(said, Launch) and (said.job, said.behind) == ("b", "a")
    assert not world.phase("b", Status.PREPARING, 25.0)
    assert not world.phase("a", Status.TRAINING, 26.0)
    assert [type(one) for one in world.phase("a", Status.SAVING, 36.0)] == [OpenGate]


def test_nobody_is_prepared_behind_one_that_waits_at_its_gate_itself() -> None:
    world = prepared()
    world.submit("c")
    world.phase("b", Status.PREPARING, 95.0)
    assert not [one for one in world.wait_until(400.0) if isinstance(one, Launch)]


def test_one_that_fails_to_launch_waits_again_and_is_not_lost() -> None:
    world = prepared()
    world.tell(ev.LaunchFailed("b", "no image", 78.0), 76.0)
    assert world.scheduler.state.successor("a") is None
    assert [one.job for one in world.wait_until(80.0) if isinstance(one, Launch)] == ["b"]


def test_one_that_is_cancelled_while_it_prepares_leaves_room_for_the_next() -> None:
    world = prepared()
    world.submit("c")
    (said,) = world.tell(ev.JobEnded("b", "cancelled"), 80.0)
    assert isinstance(said, Launch) and (said.job, said.behind) == ("c", "a")


def test_both_are_stopped_when_the_predecessor_has_to_make_room() -> None:
    stops = Request(preemptible=True)
    world = decision(Abilities(Preemption.GRACEFUL, gates=True), order=Priority(), allocation=(Backfill(MakeRoom()),))
    world.submit("a", stops)
    world.submit("b", stops)
    world.phase("a", Status.TRAINING)
    world.wait_until(DUE)
    running = world.scheduler.state.jobs["a"]
    assert world.scheduler.state.successor("a") is not None and running.behind is None
    made = world.scheduler
    verbs = Verbs(made.state, made.profile.policies, made.abilities, world.now)
    verbs.preempt(running, "others come first")
    made.state.check_invariants()
    assert [one.job for one in verbs.instructions if isinstance(one, Preempt)] == ["b", "a"]
    assert not made.state.running


def test_one_that_may_not_be_stopped_may_be_prepared_behind_one_that_may_which_then_stays() -> None:
    world = decision(Abilities(Preemption.GRACEFUL, gates=True), order=Priority(), allocation=(Backfill(MakeRoom()),))
    world.submit("a", Request(preemptible=True))
    world.submit("b", Request(preemptible=False))
    world.phase("a", Status.TRAINING)
    world.wait_until(DUE)
    made = world.scheduler
    running = made.state.jobs["a"]
    assert made.state.successor("a") is made.state.jobs["b"]
    assert not Verbs(made.state, made.profile.policies, made.abilities, world.now).may_give_way(running)


def test_one_behind_a_late_predecessor_moves_to_a_device_that_is_free() -> None:
    stops = Request(preemptible=True)
    world = decision(Abilities(Preemption.GRACEFUL, gates=True), devices=2)
    for job in ("a", "x", "b"):
        world.submit(job, stops, HUNDRED if job != "x" else Estimate(service_s=1e6))
    world.phase("a", Status.TRAINING)
    world.wait_until(DUE)
    world.phase("b", Status.PREPARING, 95.0)
    said = world.tell(ev.JobEnded("x", "completed"), 400.0)
    assert [type(one) for one in said] == [Preempt]
    (again,) = world.tell(ev.JobStopped("b"), 401.0)
    assert isinstance(again, Launch) and (again.job, again.behind) == ("b", None)


@pytest.mark.parametrize(
    "able, estimate",
    [
        (Abilities(), HUNDRED),
        (Abilities(Preemption.INSTANT, free_moves=True, gates=True), HUNDRED),
        (GATES, UNKNOWN),
        (GATES, Estimate(launching_s=20.0)),
    ],
    ids=["no gates", "moving is free", "nothing known", "service unknown"],
)
def test_nobody_is_prepared_without_gates_or_knowledge(able: Abilities, estimate: Estimate) -> None:
    world = decision(able)
    world.submit("a", estimate=estimate)
    world.submit("b", estimate=estimate)
    world.phase("a", Status.TRAINING)
    assert not world.wait_until(99.0)


def test_a_job_that_shares_its_device_is_followed_by_nobody() -> None:
    shares = Request(gpu_memory_bytes=4 * 2**30, exclusive=False)
    world = decision()
    for job in ("a", "a2", "b"):
        world.submit(job, shares)
    world.phase("a", Status.TRAINING)
    assert not world.wait_until(99.0)


def test_a_larger_job_is_not_prepared_and_a_smaller_one_is() -> None:
    world = decision(devices=2)
    world.submit("a", Request(gpus=2))
    world.submit("gang", Request(gpus=1, workers=2))
    world.submit("b", Request(gpus=1))
    world.phase("a", Status.TRAINING)
    (said,) = [one for one in world.wait_until(DUE) if isinstance(one, Launch)]
    assert (said.job, said.placement.all_devices) == ("b", ("n0",))


def test_a_gang_is_followed_by_a_gang_of_the_same_shape_on_the_same_devices() -> None:
    shape = Request(gpus=1, workers=2, servers=1)
    world = decision(devices=2)
    world.submit("a", shape)
    world.submit("b", shape)
    world.phase("a", Status.TRAINING)
    (said,) = [one for one in world.wait_until(DUE) if isinstance(one, Launch)]
    assert (said.behind, said.placement.all_devices, said.placement.servers) == ("a", ("n0", "n1"), 1)


def test_the_margin_grows_when_predecessors_end_early_and_shrinks_when_all_is_as_expected() -> None:
    margin = Margin()
    margin.learn(40.0)
    assert margin.seconds == 40.0
    for _ in range(64):
        margin.learn(0.0)
    assert margin.seconds == 0.0


def test_the_margin_learns_from_an_end_that_came_early() -> None:
    world = prepared()
    world.phase("a", Status.SAVING, 85.0)  # 15 s earlier than expected
    world.phase("b", Status.TRAINING, 97.0)  # launched in 22 s rather than 20
    assert world.margin.seconds == pytest.approx(17.0)


@pytest.mark.parametrize("longer_s", [0.0, 10.0, 30.0])
def test_the_margin_adapts_to_launching_with_a_low_priority(longer_s: float) -> None:
    """Prepared runs launch more slowly than others did before: those that come first are late, and the rest are not."""
    world = decision()
    late: list[bool] = []
    world.submit("0")
    world.phase("0", Status.TRAINING)
    for number in range(1, 41):
        ends = world.now + HUNDRED.service_s  # type: ignore[operator]
        job, before = str(number), str(number - 1)
        world.submit(job)
        (launch,) = world.wait_until(world.scheduler.next_due() or 0.0)
        assert isinstance(launch, Launch) and launch.behind == before
        ready = world.now + HUNDRED.launching_s + longer_s
        late.append(ready > ends)
        for at, who, status in sorted([(ready, job, Status.PREPARING), (ends, before, Status.SAVING)]):
            world.phase(who, status, at)
        world.phase(job, Status.TRAINING)
        world.tell(ev.JobEnded(before, "completed"))
    assert sum(late[10:]) == 0 and late[0] == (longer_s > MARGIN_S)
    assert world.margin.seconds == pytest.approx(longer_s, abs=1.0)


happenings = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit", "submit", "train", "train", "wait", "wait", "save", "end", "fail", "progress", "stop"]
        ),
        st.integers(0, 5),
        st.sampled_from([1.0, 10.0, 30.0, 60.0]),
    ),
    min_size=10,
    max_size=60,
)
CONCERNS = {  # what can happen to jobs of which status
    "train": (Status.LAUNCHING, Status.PREPARING),
    "save": (Status.TRAINING,),
    "end": (Status.LAUNCHING, Status.PREPARING, Status.TRAINING, Status.SAVING),
    "fail": (Status.LAUNCHING,),
    "progress": (Status.TRAINING,),
    "stop": (Status.STOPPING,),
}


def happen(world: Decision, what: str, number: int, value: float) -> list[Instruction]:
    """One thing happens, to one of the jobs that it can happen to."""
    jobs = world.scheduler.state.jobs
    if what == "wait":
        return world.wait_until(world.now + value)
    if what == "submit":
        request = Request(gpus=1 + number // 4, preemptible=number != 3, priority=number)
        return world.submit(f"job-{number}", request, Estimate(value, 10.0, 3.0))
    concerned = [job for job in jobs.values() if job.status in CONCERNS[what]]
    if not concerned:
        return []
    job = concerned[number % len(concerned)]
    match what:
        case "train":
            return world.phase(job.id, Status.PREPARING if job.behind else Status.TRAINING)
        case "save":
            return world.phase(job.id, Status.SAVING)
        case "end":
            return world.tell(ev.JobEnded(job.id, "ended"))
        case "fail":
            return world.tell(ev.LaunchFailed(job.id, "no", world.now + 1))
        case "progress":
            return world.tell(ev.Progressed(((job.id, value),)))
    return world.tell(ev.JobStopped(job.id))


@pytest.mark.parametrize("preemption", [Preemption.NONE, Preemption.GRACEFUL, Preemption.INSTANT])
def test_whatever_happens_the_books_balance_and_no_two_train_on_a_device(preemption: Preemption) -> None:
    seen: set[str] = set()

    @settings(max_examples=examples(0.8), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(happenings)
    def play(steps: list[tuple[str, int, float]]) -> None:
        world = decision(Abilities(preemption, gates=True), devices=2, allocation=(Backfill(MakeRoom()),))
        state = world.scheduler.state
        for what, number, value in steps:
            for one in happen(world, what, number, value):
                seen.add("behind" if isinstance(one, Launch) and one.behind else type(one).__name__)
            for device in ("n0", "n1"):
                trains = [o for o in state.occupants(device) if o.behind is None and o.status is not Status.SAVING]
                assert len(trains) <= 1
            for job in state.running.values():
                assert job.behind is None or job.behind in state.running, "it waits for somebody who is gone"

    play()
    assert {"behind", "OpenGate"} <= seen, "nobody was ever prepared: the test tests nothing"


def test_one_that_still_saves_there_does_not_keep_the_next_from_being_prepared() -> None:
    world = prepared()
    world.submit("c")
    world.phase("b", Status.PREPARING)
    world.phase("a", Status.SAVING, 100.0)
    world.phase("b", Status.TRAINING)
    assert [one.job for one in world.wait_until(100.0 + DUE + 1) if isinstance(one, Launch)] == ["c"]
    state = world.scheduler.state
    assert (state.jobs["a"].status, state.jobs["c"].behind) == (Status.SAVING, "b"), "a's upload takes its time"
    assert [one.job for one in world.phase("b", Status.SAVING) if isinstance(one, OpenGate)] == ["c"]


@pytest.mark.parametrize("status", [Status.PREPARING, Status.TRAINING])
def test_nobody_is_prepared_behind_one_of_two_that_need_the_device(status: Status) -> None:
    world = decision(sharing=DeclaredMemory())
    small = Estimate(service_s=100.0, launching_s=20.0, memory_bytes=GIB, utilisation=0.4)
    for name in ("a", "b"):
        world.submit(name, asks(1, 1, shares=True), small)
    world.phase("a", Status.TRAINING)
    world.phase("b", status)
    assert len(world.scheduler.state.occupants("n0")) == 2
    world.submit("c", Request(exclusive=True))
    assert not [one for one in world.wait_until(150.0) if isinstance(one, Launch)]
