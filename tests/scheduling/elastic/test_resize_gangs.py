"""Elastic gangs get as many workers as it pays to give them, on one node or on several, and make room for others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import NOTHING_SPECIAL, Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement, Queue, Quotas
from prefect_gpu.scheduling.model.instructions import Instruction, Launch, Move, Preempt
from prefect_gpu.scheduling.model.jobs import Estimate, Request, Status
from prefect_gpu.scheduling.preemption.minimum_runtime import left_alone_until
from tests.scheduling.test_every_profile import NO_SHRINKING

GANG = Request(1, max_workers=8, preemptible=True)
LAUNCH_S = 10.0
ABLE = Abilities(Preemption.GRACEFUL, gates=True, cores=True, shares=True)


def scales(hours: float = 2.0, most: int = 8, part: float = 0.05) -> Estimate:
    """Nearly linear, by Amdahl's law with this part fixed; so many hours with one worker."""
    speeds = tuple(n / (1.0 + part * (n - 1)) for n in range(1, most + 1))
    return Estimate(service_s=hours * 3600.0, launching_s=LAUNCH_S, throughput=speeds)


class Cluster:
    """Nodes ``a``, ``b`` … of four devices, under ``adaptive``. Launching takes 10 seconds, and work is done in time.

    A gang's work is that of its estimate on its minimum; it goes on with the speed of the devices that it has.
    """

    def __init__(self, nodes: str = "ab", able: Abilities = ABLE, profile: str = "adaptive") -> None:
        self.scheduler = Scheduler(profile, able)
        self.state = self.scheduler.state
        self.now = 1000.0
        self.said: list[Instruction] = []
        self.left: dict[str, float] = {}  # seconds of training with the minimum
        self.pace: dict[str, tuple[float, float]] = {}  # since when, and how many times as fast as that
        self.send(
            ev.NodesChanged(tuple(Node(n, tuple(Device(f"{n}{d}", "x", 8) for d in range(4)), ()) for n in nodes))
        )

    def send(self, event: ev.Event) -> list[Instruction]:
        before = {job.id: job.placement for job in self.state.running.values()}
        protected = [job.id for job in self.state.running.values() if left_alone_until(job) > self.now]
        said = self.scheduler.handle(event, self.now)
        self.state.check_invariants()
        self.said += said
        for job in [one for one in self.pace if one not in self.state.jobs or self.status(one) is not Status.TRAINING]:
            since, faster = self.pace.pop(job)
            self.left[job] -= (self.now - since) * faster
        given_now = [device for one in said if isinstance(one, Launch | Move) for device in one.placement.all_devices]
        for one in said:
            if isinstance(one, Move):
                assert one.job not in protected, f"it was launched a moment ago: {one.reason}"
                self.check_gang(one.job, one.placement)
                own = before[one.job]
                job = self.state.jobs[one.job]
                if own and job.request.grows and len(one.placement.parts) < len(own.parts):
                    was, is_ = (job.estimate.throughput[len(place.all_devices) - 1] for place in (own, one.placement))
                    lost = set(own.all_devices) - set(one.placement.all_devices)
                    assert lost & set(given_now) or is_ > was, f"{one.job} shrinks for nobody"
            elif isinstance(one, Launch):
                self.check_gang(one.job, one.placement)
        return said

    def status(self, job: str) -> Status:
        return self.state.jobs[job].status

    def train(self, job: str) -> None:
        """It trains from now on, and it is told when it will end, as a live run is."""
        self.send(ev.PhaseEntered(job, Status.TRAINING))
        known = self.state.jobs[job]
        told = known.estimate
        if known.request.grows and told.service_s is not None and any(told.throughput) and job in self.left:
            count, least = len(known.placement.all_devices), known.request.total_gpus  # type: ignore[union-attr]
            faster = told.throughput[min(count, len(told.throughput)) - 1] / (told.throughput[least - 1] or 1.0) or 1.0
            self.pace[job] = self.now, faster
            self.send(ev.Progressed(((job, 0.0),)))
            self.send(ev.JobEstimated(job, replace(told, service_s=max(0.0, self.left[job]) / faster)))

    def check_gang(self, job: str, place: Placement) -> None:
        request = self.state.jobs[job].request
        if request.is_gang:
            assert {len(part.devices) for part in place.parts} == {request.gpus}, "each worker has its devices"
            assert request.workers <= len(place.parts) <= (request.max_workers or request.workers)

    def submit(self, job: str, request: Request = GANG, estimate: Estimate | None = None) -> list[Instruction]:
        told = scales() if estimate is None else estimate
        if told.service_s is not None:
            self.left[job] = told.service_s
        return self.send(ev.JobSubmitted(job, request, "q", self.now, self.now, job, told))

    def wait(self, seconds: float) -> list[Instruction]:
        """Time passes; what launches is training after 10 seconds, and what was told to stop has stopped."""
        end, first = self.now + seconds, len(self.said)
        while True:
            jobs = list(self.state.jobs.values())
            for job in jobs:
                if job.status is Status.STOPPING:
                    self.send(ev.JobStopped(job.id))
            starting = (Status.LAUNCHING, Status.PREPARING)
            launching = [job for job in self.state.running.values() if job.status in starting and job.behind is None]
            due = [(job.launched_at or self.now) + LAUNCH_S for job in launching]
            timer = self.scheduler.next_due()
            moment = min([*due, *([] if timer is None else [timer])], default=end)
            if moment >= end:
                break
            self.now = max(self.now + 1e-6, moment)
            ready = [job for job in launching if (job.launched_at or 0.0) + LAUNCH_S <= self.now]
            for job in ready:
                self.train(job.id)
            if not ready:
                self.send(ev.TimePassed())
        self.now = end
        return self.said[first:]

    def end(self, job: str) -> list[Instruction]:
        return self.send(ev.JobEnded(job, "completed"))

    @property
    def places(self) -> dict[str, str]:
        return {job.id: " ".join(job.placement.all_devices) for job in self.state.running.values() if job.placement}

    @property
    def workers(self) -> dict[str, int]:
        return {job.id: len(job.placement.parts) for job in self.state.running.values() if job.placement}


def test_a_lonely_gang_spreads_over_all_nodes() -> None:
    cluster = Cluster()
    [said] = cluster.submit("gang")
    assert isinstance(said, Launch) and cluster.workers == {"gang": 8}
    assert said.reason == "with 8 of at most 8 workers it makes the most of a0, a1, a2, a3, b0, b1, b2, b3"


def test_a_gang_that_nobody_knows_begins_with_its_minimum_and_grows_once_it_was_measured() -> None:
    cluster = Cluster()
    cluster.submit("gang", estimate=Estimate())
    assert cluster.workers == {"gang": 1}
    cluster.wait(100.0)
    [said] = cluster.send(ev.JobEstimated("gang", scales()))
    assert isinstance(said, Move) and cluster.workers == {"gang": 8}
    assert said.reason == "8 workers make it faster than 1"


def test_it_makes_room_for_one_that_comes_and_grows_again_when_that_has_ended() -> None:
    cluster = Cluster()
    cluster.submit("gang")
    cluster.wait(100.0)
    said = cluster.submit("rigid", Request(4), Estimate(service_s=3600.0))
    assert [type(one) for one in said] == [Move, Launch]
    assert cluster.workers == {"gang": 4, "rigid": 1}
    assert len({device[0] for device in cluster.places["gang"].split()}) == 1, "a whole node was cleared"
    assert said[0].reason == "it keeps 4 of its 8 workers, as rigid gains more"
    cluster.wait(100.0)
    [grown] = cluster.end("rigid")
    assert isinstance(grown, Move) and cluster.workers == {"gang": 8}


def test_two_gangs_share_what_there_is() -> None:
    cluster = Cluster()
    cluster.submit("first")
    cluster.wait(100.0)
    cluster.submit("second")
    assert sum(cluster.workers.values()) == 8 and min(cluster.workers.values()) >= 2
    assert all(len({device[0] for device in places.split()}) == 1 for places in cluster.places.values())


def test_whoever_was_just_launched_is_left_alone() -> None:
    cluster = Cluster()
    cluster.submit("gang")
    cluster.wait(20.0)
    cluster.submit("rigid", Request(4), Estimate(service_s=3600.0))
    assert cluster.workers == {"gang": 8}
    cluster.wait(30.0)  # it trains since 10 s after its launch, and is protected for 30 s more
    assert cluster.workers == {"gang": 4, "rigid": 1}


def test_it_does_not_grow_where_that_is_not_worth_a_restart() -> None:
    cluster = Cluster()
    cluster.submit("rigid", Request(4), Estimate(service_s=3600.0))
    cluster.submit("gang", estimate=scales(hours=0.1))
    cluster.wait(80.0)
    assert cluster.workers == {"rigid": 1, "gang": 4}  # half a minute is left, and five restarts are more
    assert cluster.end("rigid") == []


def test_it_does_not_grow_where_more_workers_make_it_no_faster() -> None:
    cluster = Cluster()
    flat = replace(scales(), throughput=(1.0, 1.9, 1.95, 1.96))
    cluster.submit("gang", estimate=flat)
    assert cluster.workers == {"gang": 4}, "devices that nobody else wants are free to take"
    other = Cluster()
    other.submit("rigid", Request(2), Estimate(service_s=3600.0))
    other.submit("wide", Request(4), Estimate(service_s=3600.0))
    other.submit("gang", estimate=flat)
    other.wait(100.0)
    assert other.workers["gang"] == 2
    assert other.end("rigid") == [], "3 % faster may be an error of the measurement"


@pytest.mark.parametrize(
    ("why", "request_", "able"),
    [
        ("it does not allow to be stopped", replace(GANG, preemptible=False), ABLE),
        ("nobody can be stopped", GANG, NOTHING_SPECIAL),
    ],
)
def test_who_cannot_be_stopped_keeps_its_workers(why: str, request_: Request, able: Abilities) -> None:
    cluster = Cluster(able=able)
    cluster.submit("first", request_)
    cluster.wait(100.0)
    cluster.submit("second", request_)
    assert cluster.workers == {"first": 8}, why


def test_a_gang_grows_over_several_nodes_only_if_it_is_faster_there() -> None:
    slow = replace(scales(), apart=(1.0, 1.2, 1.6, 1.8, 1.9, 2.0, 2.0, 2.0))
    cluster = Cluster()
    cluster.submit("long", Request(2), Estimate(service_s=1e6))
    cluster.submit("short", Request(4), Estimate(service_s=1e6))
    cluster.submit("gang", estimate=slow)
    cluster.wait(100.0)
    assert cluster.workers["gang"] == 2 and cluster.places["long"][0] == cluster.places["gang"][0]
    cluster.end("short")  # six devices would be as fast as two of one node, and four of one node are twice as fast
    assert cluster.workers["gang"] == 4 and len({one[0] for one in cluster.places["gang"].split()}) == 1
    other = Cluster()
    other.submit("long", Request(2), Estimate(service_s=1e6))
    other.submit("short", Request(4), Estimate(service_s=1e6))
    other.submit("gang", estimate=scales())
    other.wait(100.0)
    other.end("short")
    assert other.workers["gang"] == 6, "where the network costs nothing, all are taken"


def test_each_worker_has_as_many_devices_as_it_asks_for() -> None:
    cluster = Cluster("abc")
    cluster.submit("odd", Request(3), Estimate(service_s=36000.0))
    cluster.submit("gang", Request(2, max_workers=8, preemptible=True), scales(most=16))
    assert cluster.workers["gang"] == 4, "on each of two nodes two; a single device is of no use to it"


def test_no_gang_straddles_domains() -> None:
    cluster = Cluster("")
    cluster.send(
        ev.NodesChanged(tuple(Node(n, tuple(Device(f"{n}{d}", "x", 8) for d in range(2)), (), domain=n) for n in "ab"))
    )
    cluster.submit("gang")
    assert cluster.workers == {"gang": 2}


def test_devices_that_are_kept_for_a_late_job_are_not_grown_into() -> None:
    cluster = Cluster("a")
    cluster.submit("stays", Request(2), Estimate(service_s=1e6))
    cluster.submit("gang", estimate=scales(hours=100.0))
    cluster.wait(100.0)
    assert cluster.workers["gang"] == 2
    cluster.submit("wide", Request(3), Estimate(service_s=60.0))
    cluster.state.jobs["wide"].late = True
    cluster.send(ev.JobEstimated("gang", scales(hours=90.0)))
    assert cluster.workers.get("gang", 0) <= 2


def test_a_job_of_a_better_queue_comes_before_any_growth() -> None:
    cluster = Cluster("a")
    cluster.send(ev.QuotasChanged(Quotas((Queue("q", priority=2), Queue("best", priority=1)))))
    cluster.submit("gang", estimate=scales(hours=0.2))
    cluster.wait(100.0)
    long = Estimate(service_s=1e7)
    cluster.send(ev.JobSubmitted("urgent", Request(3), "best", cluster.now, cluster.now, "urgent", long))
    assert cluster.workers == {"gang": 1, "urgent": 1}


def test_it_is_adopted_with_the_workers_that_it_has() -> None:
    cluster = Cluster()
    parts = tuple(Placement("a", (f"a{number}",), ()) for number in range(3))
    place = replace(parts[0], others=parts[1:])
    cluster.send(ev.JobAdopted("gang", GANG, "q", 0.0, place, Status.TRAINING))
    [said] = cluster.send(ev.JobEstimated("gang", scales()))
    assert isinstance(said, Move) and cluster.workers == {"gang": 8}


def about_to_end(cluster: Cluster, job: str) -> list[Instruction]:
    """It is told that the job trains for as long as a launch takes yet."""
    return cluster.send(ev.JobEstimated(job, replace(cluster.state.jobs[job].estimate, service_s=LAUNCH_S)))


@pytest.mark.parametrize(
    ("request_", "devices"), [(Request(3), 3), (Request(1), 1), (replace(GANG, max_workers=3), 3), (GANG, 4)]
)
def test_the_next_job_is_prepared_behind_a_gang_on_as_many_of_its_devices_as_it_can_use(
    request_: Request, devices: int
) -> None:
    cluster = Cluster("a")
    cluster.submit("gang")
    cluster.wait(11.0)  # it is protected, so that nobody may have its devices yet
    assert cluster.workers == {"gang": 4}
    cluster.send(ev.Progressed((("gang", 0.0),)))
    cluster.submit("next", request_, replace(scales(0.5), throughput=scales().throughput if request_.grows else ()))
    said = [*about_to_end(cluster, "gang"), *cluster.send(ev.TimePassed())]
    [launch] = [one for one in said if isinstance(one, Launch)]
    assert launch.behind == "gang" and len(launch.placement.all_devices) == devices
    assert len(launch.placement.parts) == (devices if request_.grows else 1)
    cluster.end("gang")
    cluster.wait(5.0)
    assert cluster.places["next"] == " ".join(launch.placement.all_devices)


# -- whatever happens -----------------------------------------------------------------------------------------------

requests = st.one_of(
    st.builds(
        lambda gpus, least, more: Request(gpus, workers=least, max_workers=least + more, preemptible=True),
        st.sampled_from([1, 1, 2]),
        st.integers(1, 2),
        st.integers(1, 6),
    ),
    st.builds(Request, gpus=st.integers(1, 4), preemptible=st.booleans()),
    st.builds(Request, gpus=st.just(1), workers=st.integers(2, 6), preemptible=st.booleans()),
    st.builds(Request, gpus=st.just(1), max_gpus=st.just(4), preemptible=st.just(True)),
)
curves = st.sampled_from([(), scales().throughput, scales(part=0.5).throughput, (1.0, 1.9, 1.5, 3.0, 0.0, 4.0)])
estimates = st.builds(
    Estimate,
    service_s=st.none() | st.sampled_from([30.0, 600.0, 7200.0, 1e6]),
    launching_s=st.sampled_from([0.0, 10.0, 60.0]),
    throughput=curves,
)
names = st.sampled_from([f"job-{number}" for number in range(7)])
happenings = st.one_of(
    st.tuples(st.just("submit"), names, requests, estimates),
    st.tuples(st.just("submit"), names, requests, estimates),
    st.tuples(st.just("learn"), st.integers(0, 6), estimates),
    st.tuples(st.just("end"), st.integers(0, 6)),
    st.tuples(st.just("wait"), st.sampled_from([5.0, 60.0, 500.0])),
    st.tuples(st.just("nodes"), st.sampled_from(["ab", "abc", "b"])),
)


def played(what: list[tuple[Any, ...]]) -> Iterator[Cluster]:
    """The cluster after each of the events; it complains itself if a gang is not whole, or shrinks for nobody."""
    cluster = Cluster()
    for one in what:
        match one:
            case ("submit", job, request, estimate) if job not in cluster.state.jobs:
                cluster.submit(job, request, estimate)
            case ("learn", number, estimate) if cluster.state.running:
                job = sorted(cluster.state.running)[number % len(cluster.state.running)]
                cluster.send(ev.JobEstimated(job, estimate))
            case ("end", number) if cluster.state.running:
                cluster.end(sorted(cluster.state.running)[number % len(cluster.state.running)])
            case ("wait", seconds):
                cluster.wait(seconds)
            case ("nodes", names):
                four = [(n, tuple(Device(f"{n}{d}", "x", 8) for d in range(4))) for n in names]
                cluster.send(ev.NodesChanged(tuple(Node(n, devices, ()) for n, devices in four)))
        yield cluster


@settings(max_examples=60, phases=NO_SHRINKING)
@given(st.lists(happenings, min_size=3, max_size=25))
def test_at_every_size_a_gang_is_whole_and_no_move_is_for_nothing(what: list[tuple[Any, ...]]) -> None:
    said = [list(cluster.said) for cluster in played(what)][-1]
    assert [list(cluster.said) for cluster in played(what)][-1] == said, "the same events, the same instructions"


gangs = st.builds(
    lambda gpus, least, more, curve, hours: (
        Request(gpus, workers=least, max_workers=least + more, preemptible=True),
        Estimate(service_s=hours * 3600.0, launching_s=LAUNCH_S, throughput=curve),
    ),
    st.sampled_from([1, 1, 2]),
    st.integers(1, 2),
    st.integers(1, 6),
    curves,
    st.sampled_from([50.0, 100.0, 1000.0]),
)


@settings(max_examples=40, phases=NO_SHRINKING)
@given(st.lists(gangs, min_size=1, max_size=4))
def test_where_nobody_comes_or_ends_the_sizes_settle(jobs: list[tuple[Request, Estimate]]) -> None:
    cluster = Cluster()
    for number, (request, estimate) in enumerate(jobs):
        cluster.submit(f"job-{number}", request, estimate)
    cluster.wait(5_000.0)
    said = cluster.wait(50_000.0)
    resized = [one for one in said if isinstance(one, Move) and "worker" in one.reason]
    late = [one for one in said if isinstance(one, Preempt)]
    assert not resized or late, [one.reason for one in resized]
