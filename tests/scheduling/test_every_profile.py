"""Every profile, in every outside world, under random events: the books balance, and instructions make sense.

The model believes only what it sent and what it was told: who runs where, who was told to stop, who waits at a gate,
who pauses and beside whom.

One profile of each composition is tried (see :mod:`tests.scheduling.kinds`), all of them with the same events: to think
of those takes longer than to play them. Whoever has the same composition with other numbers only shows that it works.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from prefect_gpu.papers.coda.profiles import of_owners
from prefect_gpu.papers.free_moves import with_free_moves
from prefect_gpu.scheduling import Scheduler, record
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement
from prefect_gpu.scheduling.model.instructions import (
    Hold,
    Instruction,
    Launch,
    Move,
    OpenGate,
    Preempt,
    SetCores,
    SetShare,
)
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request, Status
from prefect_gpu.scheduling.profiles import Profile, all_profiles, get_profile
from tests.scheduling.kinds import KINDS, composition
from tests.support import examples

# A failure takes minutes to shrink; to have it small, take this away.
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
SIZES = {"a": (8, 8, 8, 8), "b": (4, 4, 4, 4), "c": (8, 4, 8, 2), "d": (8,)}  # memory of each node's devices
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
    max_workers=st.sampled_from([None, None, None, 4]),
    preemptible=st.sampled_from([True, True, False]),
    owner=st.sampled_from(["ada", "bob"]),
    priority=st.integers(0, 2),
    kind=st.sampled_from(["", "vgg16", "bert"]),
    converged=st.sampled_from(["", "", "yield", "stop"]),
).filter(lambda one: not one.is_gang or not (one.spans or one.max_gpus or one.gpus == 0))
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
    st.tuples(st.just("beside"), st.sampled_from([1.1, 4.0])),
    st.tuples(st.just("pressure"), st.sampled_from("ab"), st.floats(0, 1)),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 40.0, 100.0])),
    st.tuples(st.just("ring")),
    st.tuples(st.just("withdraw"), job_ids),
    st.tuples(st.just("nodes"), st.sampled_from(["ab", "abc", "a", "b"])),
    st.tuples(st.just("ends"), st.sampled_from(["ab", "abc", "a"]), st.sampled_from([0.0, 30.0, 500.0, 50_000.0])),
)


def nodes(names: str) -> tuple[Node, ...]:
    """Nodes of four devices, or one, each in a rack of its own; the third is in another domain."""
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
    """Carries out instructions on paper, and complains about those that make no sense.

    Args:
        make: Makes the profile; None: as it is by name, or, where moving is free, as the worlds of papers have it.

    Attributes:
        replays: Whether the profile is the one that its log names.
    """

    def __init__(self, profile: str, able: Abilities, make: Callable[[str], Profile] | None = None) -> None:
        made = make(profile) if make is not None else get_profile(profile)
        self.replays = make in (None, get_profile) and not able.free_moves
        self.scheduler = Scheduler(with_free_moves(made) if make is None and able.free_moves else made, able)
        self.able = able
        self.now = 0.0
        self.requests: dict[str, Request] = {}
        self.running: dict[str, Placement] = {}
        self.stopping: set[str] = set()
        self.gated: set[str] = set()
        self.training: set[str] = set()
        self.shares: dict[str, float] = {}
        self.apart: set[frozenset[str]] = set()  # programs that slow each other down too much
        self.lines = [record.header(profile, able)]
        self.said: list[list[Instruction]] = []
        self.send(ev.NodesChanged(nodes("ab")))

    def send(self, event: ev.Event) -> None:
        """Send an event, check the books, and carry out what comes back."""
        self.lines.append(record.encode(event, self.now))
        pausing = self.pausing()
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
        self.check_pauses(pausing)

    def carry_out(self, one: Instruction) -> None:
        """Do on paper what an instruction says."""
        match one:
            case Launch(job, placement, _, behind):
                assert job not in self.running and job not in self.stopping, "launched twice"
                self.check_gang(self.requests[job], placement)
                self.check_memory(job, placement)
                self.check_ends(placement)
                self.running[job] = placement
                if behind is not None:
                    assert self.able.gates and behind in self.running
                    self.gated.add(job)
            case Preempt(job):
                assert self.able.preemption is not Preemption.NONE and self.requests[job].preemptible
                self.leave(job)
                if self.able.preemption is Preemption.GRACEFUL:
                    self.stopping.add(job)
            case Move(job, placement):
                assert self.able.preemption is not Preemption.NONE and self.requests[job].preemptible
                self.check_gang(self.requests[job], placement)
                self.check_memory(job, placement)
                self.running[job] = placement
                if not self.able.free_moves:
                    self.training.discard(job)
            case OpenGate(job):
                assert job in self.gated
                self.gated.remove(job)
            case SetCores(job, cpus):
                assert self.able.cores and cpus
                place = self.running[job]
                self.running[job] = replace(place, cpus=cpus)
            case SetShare(job, weight):
                assert self.able.shares and 0 <= weight <= 1 and weight != self.shares.get(job, 1.0)
                self.shares[job] = weight

    def leave(self, job: str) -> None:
        """It runs no more."""
        del self.running[job]
        self.gated.discard(job)
        self.training.discard(job)

    def check_ends(self, placement: Placement) -> None:
        """Nobody starts on devices that have left service."""
        there = self.scheduler.state.nodes
        for part in placement.parts:
            end = there[part.node].ends_at if part.node in there and part.devices else None
            assert end is None or end > self.now, f"{part} has left service"

    def check_memory(self, job: str, placement: Placement) -> None:
        """Each device is as large as the job declares, and as it is expected to need where it can have such devices."""
        state = self.scheduler.state
        least = state.jobs[job].least_bytes
        assert all(state.device(device).memory_bytes >= least for device in placement.all_devices), "too small a device"

    def check_pauses(self, before: Set[str]) -> None:
        """Whoever pauses does so for one who trains beside it, and for as long as that one does."""
        after = self.pausing()
        on = self.scheduler.state.has_node
        for job in before - after:
            for other in self.training - after - {job} if job in self.training else ():
                both = frozenset((self.requests[job].kind, self.requests[other].kind))
                beside = set(filter(on, self.running[job].all_devices)) & set(self.running[other].all_devices)
                assert both not in self.apart or not beside, f"{job} trains on although {other} does, beside it"
        for job in after & self.training:
            own = set(self.running[job].all_devices)
            others = [other for other in self.training - {job} if own & set(self.running[other].all_devices)]
            assert others, f"{job} pauses for nobody"

    def pausing(self) -> set[str]:
        """The running jobs that were told to pause."""
        return {job for job in self.running if self.shares.get(job) == 0.0}

    def check_gang(self, request: Request, placement: Placement) -> None:
        """A gang is whole: a part for each worker, and one without devices for each parameter server."""
        if not request.is_gang:
            assert placement.servers == 0
            return
        assert placement.servers == request.servers
        held = [len(part.devices) for part in placement.parts]
        workers = len(held) - request.servers
        assert held == [request.gpus] * workers + [0] * request.servers, "a worker or a server is missing"
        most = (request.max_workers or 0) if request.grows else request.workers
        assert request.workers <= workers <= max(request.workers, most), "more or fewer workers than it can have"

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
                    self.shares.pop(job, None)
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
            case ("ends", names, in_s):  # the first node leaves service
                first, *others = nodes(names)
                self.send(ev.NodesChanged((replace(first, ends_at=self.now + in_s), *others)))
            case ("looks", number, part, times):  # at a loss that falls to this part of itself each time
                job = self.some(number, self.training)
                for at in range(times if job else 0):
                    self.now += 30.0
                    self.send(ev.LossReported(job, part**at))
            case ("beside", slowdown):
                if slowdown > 2.0:
                    self.apart.add(frozenset(("vgg16", "bert")))
                pairs = (("vgg16", "bert", slowdown), ("bert", "vgg16", slowdown))
                self.send(ev.CompanyLearned(pairs))
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
                self.leave(job)
                del self.requests[job]
                self.shares.pop(job, None)
                self.send(ev.JobEnded(job, "completed"))
            case "train" if job not in self.gated:
                self.training.add(job)
                self.send(ev.PhaseEntered(job, Status.TRAINING))
            case "save" if job not in self.gated:
                self.training.discard(job)
                self.send(ev.PhaseEntered(job, Status.SAVING))
            case "fail" if self.scheduler.state.jobs[job].status is Status.LAUNCHING:
                self.leave(job)
                self.send(ev.LaunchFailed(job, "no", self.now + 1.0))
            case "progress":
                self.send(ev.Progressed(((job, value),)))
            case "loss":
                self.send(ev.LossReported(job, value))
            case "use":
                self.send(ev.UtilisationMeasured(job, value))
            case "slow":
                self.send(ev.SlowdownMeasured(job, value))


def under_each_kind(happenings: list[tuple[Any, ...]], able: Abilities) -> Iterator[Outside]:
    """The world under one profile of each composition, when all of this has happened."""
    for profile, make in [*((name, None) for name in KINDS), ("adaptive", of_owners)]:
        note(f"profile {profile}")  # the last of them is the one that fails
        outside = Outside(profile, able, make)
        for what in happenings:
            outside.step(what)
        yield outside


@settings(max_examples=examples(0.4), suppress_health_check=list(HealthCheck), phases=NO_SHRINKING)
@given(abilities, st.lists(steps, min_size=8, max_size=45))
def test_whatever_happens_its_instructions_make_sense_and_its_log_replays(
    able: Abilities, happenings: list[tuple[Any, ...]]
) -> None:
    for outside in under_each_kind(happenings, able):
        if outside.replays:
            assert [said for _, _, said in record.replay(outside.lines)] == outside.said


# Large and small devices: what is expected to need more than 4 bytes has to wait for those of node a.
choosy = st.builds(
    lambda request, estimate, need: (request, replace(estimate, memory_bytes=need)),
    requests.filter(lambda one: not one.spans)
    | st.builds(Request, gpus=st.integers(1, 2), max_gpus=st.just(4), preemptible=st.booleans()),
    estimates.map(lambda one: replace(one, throughput=one.throughput or (1.0, 1.9, 2.7, 3.4))),
    st.sampled_from([None, 3, 5, 7, 8]),
)
rush = st.one_of(
    st.builds(lambda job, what: ("submit", job, *what), job_ids, choosy),
    st.builds(lambda job, what: ("submit", job, *what), job_ids, choosy),
    st.tuples(st.just("train"), st.integers(0, 8)),
    st.tuples(st.just("end"), st.integers(0, 8)),
    st.tuples(st.just("wait"), st.sampled_from([40.0, 100.0])),
    st.tuples(st.just("ring")),
    st.tuples(st.just("nodes"), st.sampled_from(["ab", "ba"])),
)


@settings(max_examples=examples(0.4), phases=NO_SHRINKING)
@given(abilities, st.sampled_from(["ab", "ba"]), st.lists(rush, min_size=3, max_size=16))
def test_nobody_is_given_smaller_devices_than_it_is_expected_to_need(
    able: Abilities, names: str, happenings: list[tuple[Any, ...]]
) -> None:
    for outside in under_each_kind([("nodes", names), *happenings], able):
        for job, placement in outside.running.items():
            need = outside.scheduler.state.jobs[job].estimate.memory_bytes or 0
            if need > 4 and outside.requests[job].total_gpus <= 4:
                assert {part.node for part in placement.parts if part.devices} <= {"a"}, f"{job} needs {need}"


# Two programs that are found to be better apart when they train on one device, and losses that say little or much.
together = st.builds(
    Request,
    gpu_memory_bytes=st.integers(1, 2),
    exclusive=st.just(False),
    preemptible=st.booleans(),
    kind=st.sampled_from(["vgg16", "bert"]),
    converged=st.sampled_from(["", "", "yield", "stop"]),
)
light = st.builds(Estimate, utilisation=st.sampled_from([None, 0.2]), memory_bytes=st.sampled_from([None, 2]))
looks = st.tuples(st.just("looks"), st.integers(0, 3), st.sampled_from([0.1, 0.1, 1.0]), st.integers(3, 6))
company = st.one_of(
    st.tuples(st.just("submit"), job_ids, together, light),
    st.tuples(st.just("train"), st.integers(0, 8)),
    st.tuples(st.just("train"), st.integers(0, 8)),
    looks,
    looks,
    looks,
    st.tuples(st.just("beside"), st.just(4.0)),
    st.tuples(st.just("save"), st.integers(0, 8)),
    st.tuples(st.just("stopped"), st.integers(0, 8)),
    st.tuples(st.just("end"), st.integers(0, 8)),
    st.tuples(st.just("submit"), job_ids, requests, estimates),
)


@settings(max_examples=examples(0.4), phases=NO_SHRINKING)
@given(
    st.lists(st.tuples(together, light, st.integers(3, 6)), min_size=2, max_size=4),
    st.lists(company, min_size=4, max_size=20),
)
def test_a_run_that_pauses_goes_on_when_the_other_one_is_done_and_not_before(
    first: list[tuple[Request, Estimate, int]], happenings: list[tuple[Any, ...]]
) -> None:
    able = Abilities(Preemption.GRACEFUL, cores=True, shares=True, finishes=True)
    submitted = [("submit", job, *what) for job, (*what, _) in zip(JOBS, first, strict=False)]
    trained = [("train", number) for number in range(len(first))]
    learned = [("looks", number, 0.1, times) for number, (_, _, times) in enumerate(first)]
    for _ in under_each_kind([("nodes", "d"), *submitted, *trained, ("beside", 4.0), *learned, *happenings], able):
        pass  # the world itself complains


@pytest.mark.parametrize("profile", sorted(set(all_profiles()) - set(KINDS)))
def test_a_profile_that_only_has_other_numbers_works_too(profile: str) -> None:
    outside = Outside(profile, Abilities(Preemption.GRACEFUL, gates=True, cores=True, shares=True))
    for job in JOBS:
        outside.step(("submit", job, Request(gpus=2, workers=2, preemptible=True, kind="vgg16"), UNKNOWN))
    while outside.running:
        outside.step(("train", 0))
        outside.step(("wait", 40.0))
        outside.step(("slow", 0, 3.0))
        outside.step(("stopped", 0))
        outside.step(("end", 0))
    assert not outside.requests, "all of them have run, and ended"


def test_kinds_are_those_of_the_policies_and_not_of_their_numbers() -> None:
    alike = {name for names in KINDS.values() for name in names}
    assert alike | set(KINDS) == set(all_profiles())
    assert {"deepshare-base-a", "deepshare-hybrid-a"} <= alike, "networks that differ in weights"
    assert {"fifo", "sjf", "specon", "specon-printed", "coda", "coda-without-eliminator"} <= set(KINDS)
    assert composition(Profile("one", patience_s=1.0)) == composition(Profile("other", patience_s=2.0))
    assert composition(Profile("one")) != composition(Profile("one", patience_s=math.inf))
