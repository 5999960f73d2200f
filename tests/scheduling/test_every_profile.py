"""Every profile, in every outside world, under random events: the books balance, and instructions make sense.

The model believes only what it sent and what it was told: who runs where, who was told to stop, who waits at a gate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling import Scheduler, record
from prefect_gpu.scheduling import events as ev
from prefect_gpu.scheduling.abilities import Abilities, Preemption
from prefect_gpu.scheduling.cluster import Device, Node, Placement
from prefect_gpu.scheduling.instructions import Hold, Instruction, Launch, Move, OpenGate, Preempt, SetCores, SetShare
from prefect_gpu.scheduling.jobs import Estimate, Request, Status
from prefect_gpu.scheduling.profiles import PROFILES

# A failure takes minutes to shrink; to have it small, take this away.
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
SIZES = {"a": (8, 8, 8, 8), "b": (4, 4, 4, 4), "c": (8, 4, 8, 2)}  # memory of each node's devices
JOBS = [f"job-{number}" for number in range(9)]

abilities = st.builds(
    Abilities,
    preemption=st.sampled_from(list(Preemption)),
    gates=st.booleans(),
    cores=st.booleans(),
    shares=st.booleans(),
).map(lambda one: Abilities(one.preemption, one.preemption is Preemption.INSTANT, one.gates, one.cores, one.shares))

requests = st.builds(
    Request,
    gpus=st.sampled_from([1, 1, 1, 2, 2, 4, 0]),
    gpu_memory_bytes=st.sampled_from([None, 2, 4, 8]),
    cpus=st.none() | st.integers(1, 4),
    exclusive=st.booleans(),
    category=st.sampled_from([None, "cv", "nlp"]),
    workers=st.sampled_from([1, 1, 1, 2, 3]),
    servers=st.sampled_from([0, 0, 1]),
    spans=st.sampled_from([False, False, True]),
    max_gpus=st.sampled_from([None, None, 4]),
    preemptible=st.sampled_from([True, True, False]),
    owner=st.sampled_from(["ada", "bob"]),
    priority=st.integers(0, 2),
    kind=st.sampled_from(["", "vgg16"]),
).filter(lambda one: (one.workers == 1 and one.servers == 0) or not (one.spans or one.max_gpus or one.gpus == 0))
estimates = st.builds(
    Estimate,
    service_s=st.none() | st.sampled_from([10.0, 30.0, 100.0, 1000.0]),
    launching_s=st.sampled_from([0.0, 5.0]),
    saving_s=st.sampled_from([0.0, 3.0]),
    utilisation=st.none() | st.floats(0, 1),
    memory_bytes=st.none() | st.integers(1, 8),
    throughput=st.sampled_from([(), (1.0, 1.8, 2.4, 2.8)]),
    stages_s=st.sampled_from([(), (0.1, 0.2, 0.1), (0.3, 0.1, 0.0)]),
    iteration_s=st.just(0.3),
    sent_bps=st.sampled_from([None, 0.0, 30.0]),
)
job_ids = st.sampled_from(JOBS)
steps = st.one_of(
    st.tuples(st.just("submit"), job_ids, requests, estimates),
    st.tuples(st.just("submit"), job_ids, requests, estimates),
    st.tuples(st.just("end"), st.integers(0, 8)),
    st.tuples(st.just("train"), st.integers(0, 8)),
    st.tuples(st.just("save"), st.integers(0, 8)),
    st.tuples(st.just("stopped"), st.integers(0, 8)),
    st.tuples(st.just("fail"), st.integers(0, 8)),
    st.tuples(st.just("progress"), st.integers(0, 8), st.sampled_from([1.0, 20.0, 900.0])),
    st.tuples(st.just("loss"), st.integers(0, 8), st.sampled_from([0.1, 0.100001, 0.5, 2.0])),
    st.tuples(st.just("use"), st.integers(0, 8), st.floats(0, 1)),
    st.tuples(st.just("slow"), st.integers(0, 8), st.floats(1, 3)),
    st.tuples(st.just("pressure"), st.sampled_from("ab"), st.floats(0, 1)),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 40.0, 100.0])),
    st.tuples(st.just("ring")),
    st.tuples(st.just("withdraw"), job_ids),
    st.tuples(st.just("nodes"), st.sampled_from(["ab", "abc", "a", "b"])),
)


def nodes(names: str) -> tuple[Node, ...]:
    """Nodes of four devices, each in a rack of its own; the third is in another domain."""
    return tuple(
        Node(
            name,
            tuple(Device(f"{name}{number}", "test", size) for number, size in enumerate(SIZES[name])),
            tuple(range(8)),
            rack=name,
            domain="far" if name == "c" else "near",
            network_bps=100.0,
            uplink_bps=10.0,
        )
        for name in names
    )


class Outside:
    """Carries out instructions on paper, and complains about those that make no sense."""

    def __init__(self, profile: str, able: Abilities) -> None:
        self.scheduler = Scheduler(profile, able)
        self.able = able
        self.now = 0.0
        self.requests: dict[str, Request] = {}
        self.running: dict[str, Placement] = {}
        self.stopping: set[str] = set()
        self.gated: set[str] = set()
        self.lines = [record.header(profile, able)]
        self.said: list[list[Instruction]] = []
        self.send(ev.NodesChanged(nodes("ab")))

    def send(self, event: ev.Event) -> None:
        """Send an event, check the books, and carry out what comes back."""
        self.lines.append(record.encode(event, self.now))
        said = self.scheduler.handle(event, self.now)
        self.said.append(said)
        self.scheduler.state.check_invariants()
        for one in said:
            assert one.job in self.requests, f"{one} is about nobody we know"
            if not isinstance(one, Hold | Launch):
                assert one.job in self.running, f"{one}, but it does not run"
            assert one.reason, "everything is explained"
            self.carry_out(one)
        waiting = set(self.requests) - set(self.running) - self.stopping
        state = self.scheduler.state
        assert {job.id for job in state.waiting()} == waiting, "nobody is lost, nobody is invented"
        assert {job.id: job.placement for job in state.running.values()} == self.running
        assert all(state.jobs[job].hold is not None for job in waiting), "everybody who waits has been told why"

    def carry_out(self, one: Instruction) -> None:
        """Do on paper what an instruction says."""
        match one:
            case Launch(job, placement, _, behind):
                assert job not in self.running and job not in self.stopping, "launched twice"
                self.check_gang(self.requests[job], placement)
                self.running[job] = placement
                if behind is not None:
                    assert self.able.gates and behind in self.running
                    self.gated.add(job)
            case Preempt(job):
                assert self.able.preemption is not Preemption.NONE and self.requests[job].preemptible
                del self.running[job]
                self.gated.discard(job)
                if self.able.preemption is Preemption.GRACEFUL:
                    self.stopping.add(job)
            case Move(job, placement):
                assert self.able.preemption is not Preemption.NONE and self.requests[job].preemptible
                self.running[job] = placement
            case OpenGate(job):
                assert job in self.gated
                self.gated.remove(job)
            case SetCores(job, cpus):
                assert self.able.cores and cpus
                place = self.running[job]
                self.running[job] = replace(place, cpus=cpus)
            case SetShare(_, weight):
                assert self.able.shares and weight > 0

    def check_gang(self, request: Request, placement: Placement) -> None:
        """A gang is whole: a part for each worker, and one without devices for each parameter server."""
        if not request.is_gang:
            assert placement.servers == 0
            return
        assert placement.servers == request.servers
        held = [len(part.devices) for part in placement.parts]
        assert held == [request.gpus] * request.workers + [0] * request.servers, "a worker or a server is missing"

    def some(self, number: int, jobs: Any) -> str | None:
        """One of the jobs, or None if there is none."""
        names = sorted(jobs)
        return names[number % len(names)] if names else None

    def step(self, what: tuple[Any, ...]) -> None:
        """One thing happens."""
        match what:
            case ("submit", job, request, estimate):
                if job not in self.running and job not in self.stopping:
                    self.requests[job] = request
                self.send(ev.JobSubmitted(job, request, "q", self.now, self.now, "", estimate))
            case ("withdraw", job):
                if job not in self.running and job not in self.stopping:
                    self.requests.pop(job, None)
                self.send(ev.JobWithdrawn(job, "no longer wanted"))
            case ("wait", seconds):
                self.now += seconds
            case ("ring",):
                due = self.scheduler.next_due()
                if due is not None and due < float("inf"):
                    self.now = max(self.now, due)
                    self.send(ev.TimePassed())
            case ("nodes", names):
                self.send(ev.NodesChanged(nodes(names)))
            case ("pressure", node, fraction):
                self.send(ev.PressureMeasured(node, fraction))
            case ("stopped", number):
                job = self.some(number, self.stopping)
                if job is not None:
                    self.stopping.remove(job)
                    self.send(ev.JobStopped(job))
            case (verb, number, *rest):
                job = self.some(number, self.running)
                if job is not None:
                    self.about_running(verb, job, *rest)

    def about_running(self, verb: str, job: str, value: float = 0.0) -> None:
        """Something happens to a running job."""
        match verb:
            case "end":
                del self.running[job], self.requests[job]
                self.send(ev.JobEnded(job, "completed"))
            case "train" if job not in self.gated:
                self.send(ev.PhaseEntered(job, Status.TRAINING))
            case "save" if job not in self.gated:
                self.send(ev.PhaseEntered(job, Status.SAVING))
            case "fail" if self.scheduler.state.jobs[job].status is Status.LAUNCHING:
                del self.running[job]
                self.gated.discard(job)
                self.send(ev.LaunchFailed(job, "no", self.now + 1.0))
            case "progress":
                self.send(ev.Progressed(((job, value),)))
            case "loss":
                self.send(ev.LossReported(job, value))
            case "use":
                self.send(ev.UtilisationMeasured(job, value))
            case "slow":
                self.send(ev.SlowdownMeasured(job, value))


QUICK = ("adaptive", "fifo", "srtf", "liquid-immediate")


@pytest.mark.parametrize(
    "profile", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in sorted(PROFILES)]
)
def test_whatever_happens_its_instructions_make_sense_and_its_log_replays(profile: str) -> None:
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), phases=NO_SHRINKING)
    @given(abilities, st.lists(steps, min_size=8, max_size=45))
    def play(able: Abilities, happenings: list[tuple[Any, ...]]) -> None:
        outside = Outside(profile, able)
        for what in happenings:
            outside.step(what)
        assert [said for _, _, said in record.replay(outside.lines)] == outside.said

    play()
