"""Elastic runs get as many devices as it pays to give them, and room is made for others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.elastic.resize import Protection, Resize
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import EVERYTHING, NOTHING_SPECIAL, Abilities
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement
from prefect_gpu.scheduling.model.instructions import Instruction, Launch, Move
from prefect_gpu.scheduling.model.jobs import Estimate, Request, Status
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.scheduling.sharing.rules import NoSharing

ELASTIC = Request(1, max_gpus=4, preemptible=True)
SCALES = Estimate(throughput=(2.0, 3.6, 4.8, 5.6))
SATURATES = Estimate(throughput=(2.0, 3.0, 3.0, 2.5))


class Machine:
    """Nodes ``a``, ``b`` … of four devices. Launching takes 10 seconds."""

    def __init__(self, elastic: Resize | None = None, nodes: str = "a", able: Abilities = EVERYTHING) -> None:
        allocation = (elastic or Resize(), Backfill())
        profile = Profile("test", sharing=NoSharing(), allocation=allocation, reactions=(Protection(),))
        self.scheduler = Scheduler(profile, able)
        self.now = 0.0
        self.send(
            ev.NodesChanged(tuple(Node(n, tuple(Device(f"{n}{d}", "x", 8) for d in range(4)), ()) for n in nodes))
        )

    def send(self, event: ev.Event) -> list[Instruction]:
        said = self.scheduler.handle(event, self.now)
        self.scheduler.state.check_invariants()
        return said

    def submit(self, job: str, request: Request = ELASTIC, estimate: Estimate = SCALES) -> list[Instruction]:
        return self.send(ev.JobSubmitted(job, request, "q", self.now, self.now, estimate=estimate))

    def wait(self, seconds: float) -> None:
        """Time passes; what launches is training after 10 seconds."""
        end = self.now + seconds
        while True:
            launching = [job for job in self.scheduler.state.running.values() if job.status is Status.LAUNCHING]
            done = {job.id: (job.launched_at or 0.0) + 10.0 for job in launching}
            due = min([*done.values(), self.scheduler.next_due() or end], default=end)
            if due >= end:
                break
            self.now = max(self.now, due)
            ready = [job for job, at in done.items() if at <= self.now]
            for job in ready:
                self.send(ev.PhaseEntered(job, Status.TRAINING))
            if not ready:
                self.send(ev.TimePassed())
        self.now = end

    @property
    def places(self) -> dict[str, str]:
        return {
            job.id: " ".join(job.placement.devices) for job in self.scheduler.state.running.values() if job.placement
        }


def test_a_lonely_run_gets_all_devices_that_make_it_faster() -> None:
    machine = Machine(nodes="ab")
    machine.submit("scales")
    machine.submit("saturates", estimate=SATURATES)
    assert machine.places == {"scales": "a0 a1 a2 a3", "saturates": "b0 b1"}


def test_room_is_made_for_the_next_run_when_protection_ends() -> None:
    machine = Machine()
    machine.submit("first")
    machine.wait(20.0)
    machine.submit("second")
    assert machine.places == {"first": "a0 a1 a2 a3"}  # it trains since 10 s and is protected until 40 s
    machine.wait(19.0)
    assert machine.places == {"first": "a0 a1 a2 a3"}
    machine.wait(2.0)
    assert machine.places == {"first": "a0 a1", "second": "a2 a3"}


def test_a_run_does_not_grow_where_that_is_not_worth_a_restart() -> None:
    machine = Machine()
    machine.submit("rigid", Request(1))
    machine.submit("elastic")
    machine.wait(100.0)
    assert machine.places["elastic"] == "a1 a2 a3"
    assert machine.send(ev.JobEnded("rigid", "completed")) == []  # it would gain 0.8 steps per second


def test_a_run_grows_where_that_is_worth_a_restart() -> None:
    machine = Machine()
    machine.submit("rigid", Request(3))
    machine.submit("elastic")
    machine.wait(100.0)
    (said,) = machine.send(ev.JobEnded("rigid", "completed"))
    assert isinstance(said, Move)
    assert said.placement.devices == ("a0", "a1", "a2", "a3")
    assert said.reason == "4 devices make it faster than 1"


def test_elastic_runs_make_room_for_one_that_is_not() -> None:
    machine = Machine()
    machine.submit("elastic")
    machine.wait(100.0)
    said = machine.submit("rigid", Request(3))
    assert [type(one) for one in said] == [Move, Launch]
    assert machine.places == {"elastic": "a0", "rigid": "a1 a2 a3"}


@pytest.mark.parametrize(
    ("why", "request_", "able"),
    [
        ("it does not allow to be stopped", replace(ELASTIC, preemptible=False), EVERYTHING),
        ("nobody can be stopped", ELASTIC, NOTHING_SPECIAL),
    ],
)
def test_who_cannot_be_stopped_keeps_its_devices(why: str, request_: Request, able: Abilities) -> None:
    machine = Machine(able=able)
    machine.submit("first", request_)
    machine.wait(100.0)
    machine.submit("second", request_)
    assert machine.places == {"first": "a0 a1 a2 a3"}, why


def test_a_run_is_spared_its_restart_if_the_others_can_do_nearly_as_well() -> None:
    machine = Machine()
    for job, devices in (("few", ("a0",)), ("many", ("a1", "a2", "a3"))):
        placement = Placement("a", devices, ())
        machine.send(ev.JobAdopted(job, ELASTIC, "q", 0.0, placement, Status.TRAINING))
    machine.send(ev.Together((ev.JobEstimated("few", SCALES), ev.JobEstimated("many", SCALES))))
    said = machine.submit("third")
    # Listing 1 alone would give the first of equals, `few`, a second device: both would restart.
    assert [one.job for one in said if isinstance(one, Move)] == ["many"]
    assert [one.job for one in said if isinstance(one, Launch)] == ["third"]


def test_devices_that_two_runs_were_found_on_are_handed_out_once() -> None:
    machine = Machine()
    for job, devices in (("one", ("a0", "a1", "a2", "a3")), ("other", ("a1", "a2", "a3"))):
        machine.send(ev.JobAdopted(job, ELASTIC, "q", 0.0, Placement("a", devices, ()), Status.TRAINING))
        machine.send(ev.JobEstimated(job, SCALES))
    assert all(one.placement.devices for one in machine.submit("third") if isinstance(one, Launch))


def test_without_a_throughput_it_is_a_run_like_any_other() -> None:
    machine = Machine()
    machine.submit("unknown", estimate=Estimate())
    assert machine.places == {"unknown": "a0"}
