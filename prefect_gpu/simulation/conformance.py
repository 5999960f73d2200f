"""Suites that every policy passes by being listed: what the scheduler relies on, whatever the policy decides.

A package with policies of its own runs the same suites (they need pytest and Hypothesis)::

    @pytest.mark.parametrize("make", [LongestWaiting])
    class TestOrders(OrderConformance): ...
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.allocation.base import Action
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model import instructions as to
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Estimate, Job, Request, Status
from prefect_gpu.scheduling.order.orders import Order
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.scheduling.sharing.rules import DeclaredMemory, Sharing
from prefect_gpu.scheduling.state.state import State

NOW = 1000.0
NODES = tuple(
    Node(
        name,
        tuple(Device(f"{name}{at}", "test", size) for at, size in enumerate(sizes)),
        tuple(range(8)),
        rack=name,
        domain=domain,
        network_bps=100.0,
    )
    for name, sizes, domain in (("a", (8, 8, 8, 8), "near"), ("b", (4, 4, 8, 8), "near"), ("c", (8, 8), "far"))
)
requests = st.builds(
    Request,
    gpus=st.sampled_from([1, 1, 1, 2, 2, 4, 0]),
    gpu_memory_bytes=st.sampled_from([None, 2, 4, 8]),
    cpus=st.none() | st.integers(1, 4),
    exclusive=st.booleans(),
    category=st.sampled_from([None, "cv", "nlp"]),
    workers=st.sampled_from([1, 1, 1, 2, 3]),
    servers=st.sampled_from([0, 0, 1]),
    preemptible=st.sampled_from([True, True, False]),
    owner=st.sampled_from(["ada", "bob"]),
    priority=st.integers(0, 2),
    kind=st.sampled_from(["", "vgg16", "bert"]),
    converged=st.sampled_from(["", "yield", "stop"]),
).filter(lambda one: one.gpus > 0 or not one.is_gang)
estimates = st.builds(
    Estimate,
    service_s=st.none() | st.sampled_from([10.0, 100.0, 1000.0]),
    launching_s=st.sampled_from([0.0, 5.0]),
    saving_s=st.sampled_from([0.0, 3.0]),
    utilisation=st.none() | st.floats(0, 1),
    memory_bytes=st.none() | st.integers(1, 8),
)
asked = st.tuples(requests, estimates)
_NEWS = ("train", "train", "save", "end", "end", "stop", "loss", "loss", "use", "pace", "slow", "pressure", "wait")
_SOME = settings(max_examples=max(10, settings().max_examples // 2), deadline=None)
_FEW = settings(max_examples=max(5, settings().max_examples // 10), deadline=None)  # whole worlds are played
news = st.tuples(st.sampled_from(_NEWS), st.integers(0, 8), st.floats(0.05, 1.0))


def some_state(jobs: Sequence[tuple[Request, Estimate]]) -> State:
    """The state of a cluster on which as many of these jobs run as find room."""
    scheduler = Scheduler(Profile("conformance"))
    scheduler.handle(ev.NodesChanged(NODES), 0.0)
    for number, (request, estimate) in enumerate(jobs):
        scheduler.handle(ev.JobSubmitted(f"job-{number}", request, "q", 0.0, 0.0, "", estimate), float(number))
    return scheduler.state


def waiting(request: Request, estimate: Estimate, name: str = "new", due: float = 0.0) -> Job:
    """A job that waits; the state has not seen it."""
    job = Job(name, request, "q", due, due, estimate=estimate)
    job.room_bytes = min(8, estimate.memory_bytes or 0)
    return job


class OrderConformance:
    """What an order must be: total, the same every time, and as steady as it says."""

    @_SOME
    @given(st.lists(st.tuples(requests, estimates, st.floats(0, NOW)), min_size=2, max_size=8))
    def test_jobs_can_be_sorted_and_no_two_are_equal(
        self, make: Callable[[], Order], jobs: list[tuple[Request, Estimate, float]]
    ) -> None:
        order, state = make(), some_state([])
        known = [waiting(request, estimate, f"job-{at}", due) for at, (request, estimate, due) in enumerate(jobs)]
        keys = [order.key(job, state, NOW) for job in known]
        assert [key[-1] for key in keys] == [job.id for job in known], "a key ends with whose it is"
        assert len(set(keys)) == len(keys) and sorted(keys)  # type: ignore[type-var]
        assert keys == [order.key(job, state, NOW) for job in known], "the same job has the same key"

    @_SOME
    @given(asked, st.floats(0, NOW))
    def test_a_steady_key_stays_what_it_is_while_the_job_waits(
        self, make: Callable[[], Order], job: tuple[Request, Estimate], later: float
    ) -> None:
        order, state, one = make(), some_state([]), waiting(*job)
        assert not order.steady or order.key(one, state, NOW) == order.key(one, state, NOW + later)

    @_SOME
    @given(st.lists(st.tuples(estimates, st.floats(0, NOW), st.floats(0, 500)), min_size=2, max_size=6))
    def test_running_jobs_of_one_size_are_ranked_as_they_are_sorted(
        self, make: Callable[[], Order], jobs: list[tuple[Estimate, float, float]]
    ) -> None:
        order, state = make(), some_state([])
        for known in (True, False):
            ranked = []
            for number, (estimate, granted_at, attained_s) in enumerate(jobs):
                job = waiting(Request(preemptible=True), estimate, f"job-{number}")
                job.status, job.granted_at, job.attained_s = Status.TRAINING, granted_at, attained_s
                job.done_at = granted_at
                anchor = order.anchor(job)
                if (estimate.service_s is not None) is known and anchor is not None:
                    ranked.append((anchor, order.key(job, state, NOW)[0]))
            for (less, first), (more, then) in itertools.combinations(sorted(ranked), 2):  # type: ignore[type-var]
                assert less == more or first <= then, "a larger anchor comes later"  # type: ignore[operator]


class PlacementConformance:
    """What a placement must be: possible, whole, within one domain, and the same every time."""

    @_SOME
    @given(st.lists(asked, max_size=6), asked, st.sets(st.sampled_from([d.id for node in NODES for d in node.devices])))
    def test_a_place_can_hold_the_job_and_nothing_changes(
        self,
        make: Callable[[], PlacementPolicy],
        jobs: list[tuple[Request, Estimate]],
        job: tuple[Request, Estimate],
        kept: set[str],
    ) -> None:
        state, sharing, one = some_state(jobs), DeclaredMemory(), waiting(*job)
        before = {device.id: state.occupants(device.id) for node in NODES for device in node.devices}
        place = make().place(one, state, sharing, kept)
        assert {device: state.occupants(device) for device in before} == before, "it only answers"
        state.check_invariants()
        if place is None:
            return
        devices = place.all_devices
        assert len(devices) == len(set(devices)) == one.request.total_gpus and not kept & set(devices)
        assert all(sharing.fits(one, state.device(device), state) for device in devices), "there is room on each"
        held = [len(part.devices) for part in place.parts]
        workers, servers = one.request.workers, one.request.servers
        assert held == [one.request.gpus] * workers + [0] * servers, "a part for each instance"
        assert place.servers == servers
        assert len({state.nodes[name].domain for name in place.nodes}) == 1

    @_SOME
    @given(st.lists(asked, max_size=6), asked)
    def test_the_same_question_has_the_same_answer(
        self, make: Callable[[], PlacementPolicy], jobs: list[tuple[Request, Estimate]], job: tuple[Request, Estimate]
    ) -> None:
        first, second = (make().place(waiting(*job), some_state(jobs), DeclaredMemory()) for _ in range(2))
        assert first == second

    @_SOME
    @given(st.integers(0, 4))
    def test_an_empty_cluster_has_a_place(self, make: Callable[[], PlacementPolicy], gpus: int) -> None:
        assert make().place(waiting(Request(gpus), Estimate()), some_state([]), DeclaredMemory()) is not None


class SharingConformance:
    """What a sharing rule must keep: memory, and every run's wish to be alone."""

    @_SOME
    @given(st.lists(asked, max_size=6), asked)
    def test_nobody_is_granted_more_than_there_is_or_disturbed_against_its_wish(
        self, make: Callable[[], Sharing], jobs: list[tuple[Request, Estimate]], job: tuple[Request, Estimate]
    ) -> None:
        state, sharing, one = some_state(jobs), make(), waiting(*job)
        for node in NODES:
            for device in node.devices:
                company = state.occupants(device.id)
                if not company and one.fits_on(device):
                    assert sharing.fits(one, device, state), "an empty device that is large enough will do"
                if not sharing.fits(one, device, state):
                    continue
                granted = sharing.granted_bytes(one, [device])
                assert one.fits_on(device) and granted + state.granted_bytes(device.id) <= device.memory_bytes
                assert not company or all(other.request.shareable for other in (one, *company))


_ABLE = Abilities(Preemption.GRACEFUL, gates=True, cores=True, shares=True, finishes=True)
_NEEDED: dict[type, Callable[[Abilities], bool]] = {
    to.Preempt: lambda able: able.preemption is not Preemption.NONE,
    to.Move: lambda able: able.preemption is not Preemption.NONE,
    to.OpenGate: lambda able: able.gates,
    to.SetCores: lambda able: able.cores,
    to.SetShare: lambda able: able.shares,
    to.Finish: lambda able: able.finishes,
}


class _World:
    """Random news for a scheduler, whose books are checked after each."""

    def __init__(self, profile: Profile, able: Abilities) -> None:
        self.scheduler, self.able, self.now = Scheduler(profile, able), able, 0.0
        self.said: list[to.Instruction] = []
        self.send(ev.NodesChanged(NODES))

    def send(self, event: ev.Event) -> None:
        said = self.scheduler.handle(event, self.now)
        self.scheduler.state.check_invariants()
        for one in said:
            assert one.reason, f"{one} is not explained"
            assert _NEEDED.get(type(one), lambda _: True)(self.able), f"nobody can carry out {one}"
        self.said += said

    def play(self, jobs: Iterable[tuple[Request, Estimate]], happenings: Iterable[tuple[str, int, float]]) -> None:
        for number, (request, estimate) in enumerate(jobs):
            self.send(ev.JobSubmitted(f"job-{number}", request, "q", self.now, self.now, "", estimate))
        for verb, number, value in happenings:
            self.now += 30.0
            running = sorted(self.scheduler.state.running.values(), key=lambda job: job.id)
            stopping = [job for job in self.scheduler.state.jobs.values() if job.status is Status.STOPPING]
            chosen = stopping if verb == "stop" else running
            self.tell(verb, chosen[number % len(chosen)] if chosen else None, value)

    def tell(self, verb: str, job: Job | None, value: float) -> None:
        if verb == "wait":
            self.send(ev.TimePassed())
        elif verb == "pressure":
            self.send(ev.PressureMeasured("a", value))
        elif job is None or (job.behind is not None and verb in ("train", "save")):
            return
        elif verb in ("train", "save"):
            self.send(ev.PhaseEntered(job.id, Status.TRAINING if verb == "train" else Status.SAVING))
        else:
            about: dict[str, ev.Event] = {
                "end": ev.JobEnded(job.id, "completed"),
                "stop": ev.JobStopped(job.id),
                "loss": ev.LossReported(job.id, value),
                "use": ev.UtilisationMeasured(job.id, value),
                "pace": ev.SpeedMeasured(job.id, value),
                "slow": ev.SlowdownMeasured(job.id, 1.0 / value),
            }
            self.send(about[verb])


def _twice(
    profile: Callable[[], Profile],
    jobs: list[tuple[Request, Estimate]],
    happenings: list[tuple[str, int, float]],
    everything: bool,
) -> Iterator[_World]:
    """Two worlds in which the same happens, one after the other; what is said in both must be the same."""
    played = []
    for _ in range(2):
        world = _World(profile(), _ABLE if everything else Abilities())
        world.play(jobs, happenings)
        yield world
        played.append(world.said)
    assert played[0] == played[1], "the same events have the same answers"


class ReactionConformance:
    """What a reaction must be: within the books and the world's abilities, explained, and the same every time."""

    @_FEW
    @given(st.lists(asked, min_size=1, max_size=6), st.lists(news, max_size=20), st.booleans())
    def test_whatever_happens_the_books_balance_and_the_world_can_do_it(
        self,
        make: Callable[[], Reaction],
        jobs: list[tuple[Request, Estimate]],
        happenings: list[tuple[str, int, float]],
        everything: bool,
    ) -> None:
        for _ in _twice(lambda: Profile("conformance", reactions=(make(),)), jobs, happenings, everything):
            pass


class AllocationConformance:
    """What the actions of an allocation must be together: as a reaction, and in the end everybody has run."""

    @_FEW
    @given(st.lists(asked, min_size=1, max_size=8), st.lists(news, max_size=16), st.booleans())
    def test_whatever_happens_the_books_balance_and_everybody_runs_in_the_end(
        self,
        make: Callable[[], tuple[Action, ...]],
        jobs: list[tuple[Request, Estimate]],
        happenings: list[tuple[str, int, float]],
        everything: bool,
    ) -> None:
        def profile() -> Profile:
            return Profile("conformance", allocation=make(), patience_s=60.0)

        for world in _twice(profile, jobs, happenings, everything):
            for _ in range(400):
                said = len(world.said)
                left = [job for job in world.scheduler.state.jobs.values() if job.status is not Status.WAITING]
                for job in left[:1]:
                    world.tell("stop" if job.status is Status.STOPPING else "end", job, 1.0)
                world.now += 1000.0
                world.tell("wait", None, 1.0)
                if not left and not any(isinstance(one, to.Launch) for one in world.said[said:]):
                    break
            possible = world.scheduler.state.capability.possible
            stuck = [job for job in world.scheduler.state.jobs.values() if possible(job.request)]
            assert not stuck, f"{[job.label for job in stuck]} never ran, though there was room in the end"
