"""CODA bound to the scheduler: events in, instructions out."""

from __future__ import annotations

import math

from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.cores.tuning import CoreTuning
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import EVERYTHING, Abilities
from prefect_gpu.scheduling.model.instructions import Hold, Instruction, Launch, Move, Preempt, SetCores
from prefect_gpu.scheduling.model.jobs import Request, Status
from prefect_gpu.scheduling.profiles import Profile
from tests.scheduling.world import node


class Cluster:
    """A scheduler under a profile, with its books checked after each event."""

    def __init__(self, profile: Profile | str, *nodes: tuple[str, int, int], abilities: Abilities = EVERYTHING) -> None:
        self.scheduler = Scheduler(profile, abilities)
        self.now = 0.0
        self.tell(ev.NodesChanged(tuple(node(name, *[11] * gpus, cpus=cores) for name, gpus, cores in nodes)))

    def tell(self, event: ev.Event, after_s: float = 0.0) -> list[Instruction]:
        self.now += after_s
        said = self.scheduler.handle(event, self.now)
        self.scheduler.state.check_invariants()
        return said

    def submit(
        self, job: str, gpus: int, cpus: int | None = None, owner: str = "ada", *, stops: bool = True
    ) -> list[Instruction]:
        request = Request(gpus, cpus=cpus, category="cv", owner=owner, preemptible=stops)
        return self.tell(ev.JobSubmitted(job, request, "q", self.now, self.now))

    def trains(self, job: str) -> None:
        self.tell(ev.PhaseEntered(job, Status.TRAINING))

    def measured(self, job: str, utilisation: float, after_s: float = 90.0) -> list[Instruction]:
        return self.tell(ev.UtilisationMeasured(job, utilisation), after_s)

    def cores(self, job: str) -> int:
        placement = self.scheduler.state.jobs[job].placement
        return sum(len(part.cpus) for part in placement.parts) if placement else 0

    def node_of(self, job: str) -> str | None:
        placement = self.scheduler.state.jobs[job].placement
        return placement.node if placement else None


def test_a_gpu_job_gets_the_cores_of_its_category_whatever_it_asks_for() -> None:
    cluster = Cluster("coda", ("n", 4, 28))
    cluster.submit("a", 2, cpus=20)
    assert cluster.cores("a") == 6


def test_a_gpu_job_starts_with_the_cores_there_are_if_they_are_too_few() -> None:
    cluster = Cluster("coda", ("n", 4, 8))
    cluster.submit("c", 0, cpus=7, stops=False)
    cluster.submit("a", 1)
    assert cluster.cores("a") == 1


def test_a_cpu_job_waits_for_free_cores_and_is_told_so() -> None:
    cluster = Cluster("coda", ("n", 1, 8))
    cluster.submit("c", 0, cpus=6)
    (hold,) = cluster.submit("d", 0, cpus=4)
    assert isinstance(hold, Hold) and hold.code == "cores" and "4 cores" in hold.reason


def test_a_cpu_job_gives_borrowed_cores_back_and_is_the_first_to_start_again() -> None:
    cluster = Cluster("coda", ("n", 2, 8))
    cluster.submit("c", 0, cpus=8)
    assert cluster.cores("c") == 8, "idle cores are lent"
    said = cluster.submit("a", 2)
    assert [type(one) for one in said[:2]] == [Preempt, Launch] and said[0].job == "c"
    cluster.submit("d", 0, cpus=8, owner="bob")
    assert [one.job for one in cluster.tell(ev.JobEnded("a", "completed")) if isinstance(one, Launch)] == ["c"]


def test_a_cpu_job_that_cannot_be_stopped_keeps_its_cores() -> None:
    cluster = Cluster("coda", ("n", 2, 8))
    cluster.submit("c", 0, cpus=8, stops=False)
    assert not any(isinstance(one, Preempt | Launch) for one in cluster.submit("a", 2))


def test_small_jobs_leave_the_4_gpu_array_for_a_job_that_needs_it() -> None:
    cluster = Cluster("coda", ("n", 4, 28), ("m", 4, 28))
    cluster.submit("w", 4)
    for job in "abcd":
        cluster.submit(job, 1)
    cluster.tell(ev.JobEnded("w", "completed"))
    cluster.submit("e", 1)  # the other array is full
    cluster.tell(ev.JobEnded("a", "completed"))
    wide = cluster.node_of("e")
    said = cluster.submit("x", 4)
    assert [one.job for one in said if isinstance(one, Move)] == ["e"]
    assert cluster.node_of("x") == wide != cluster.node_of("e")


def test_the_owner_with_fewer_gpus_comes_first() -> None:
    cluster = Cluster("coda", ("n", 2, 28))
    cluster.submit("a", 1, owner="ada")
    cluster.submit("b", 1, owner="ada")
    cluster.submit("c", 1, owner="ada")
    cluster.submit("d", 1, owner="bob")
    assert [one.job for one in cluster.tell(ev.JobEnded("a", "completed")) if isinstance(one, Launch)] == ["d"]


def test_cores_are_tuned_to_where_the_gpu_is_busiest_and_the_next_job_starts_there() -> None:
    cluster = Cluster("coda", ("n", 2, 28))
    cluster.submit("a", 1)
    cluster.trains("a")
    seen = []
    for _ in range(8):
        seen.append(cluster.cores("a"))
        cluster.measured("a", min(1.0, cluster.cores("a") / 5) * 0.6)
    assert seen == [3, 3, 2, 4, 5, 6, 5, 5]
    cluster.tell(ev.JobEnded("a", "completed"))
    cluster.submit("b", 1)
    assert cluster.cores("b") == 5


def test_tuning_takes_cores_from_a_job_that_asked_for_too_many_under_any_profile() -> None:
    cluster = Cluster(Profile("any", reactions=(CoreTuning(),), patience_s=math.inf), ("n", 2, 28))
    cluster.submit("a", 1, cpus=20)
    cluster.trains("a")
    (said,) = cluster.measured("a", 0.6)
    assert isinstance(said, SetCores) and len(said.cpus) == 3 and "did best with so many" in said.reason


def test_nothing_is_tuned_where_cores_cannot_be_changed() -> None:
    cluster = Cluster("coda", ("n", 2, 28), abilities=Abilities())
    cluster.submit("a", 1)
    cluster.trains("a")
    assert not [one for _ in range(4) for one in cluster.measured("a", 0.5)]


def _contended() -> Cluster:
    cluster = Cluster("coda", ("n", 1, 28))
    cluster.submit("a", 1)
    cluster.submit("c", 0, cpus=16)
    for job in "ac":
        cluster.trains(job)
    cluster.tell(ev.PressureMeasured("n", 0.3, (("c", 0.2), ("a", 0.1))))
    for _ in range(7):  # until the tuning has found its cores
        cluster.measured("a", 0.6)
    return cluster


def test_a_hungry_cpu_job_gets_half_of_its_cores_and_has_them_back_afterwards() -> None:
    cluster = _contended()
    cluster.measured("a", 0.4)
    (said,) = cluster.tell(ev.PressureMeasured("n", 0.9, (("c", 0.8), ("a", 0.1))))
    assert isinstance(said, SetCores) and said.job == "c" and len(said.cpus) == 8
    (said,) = cluster.tell(ev.PressureMeasured("n", 0.2, (("c", 0.1), ("a", 0.1))))
    assert isinstance(said, SetCores) and said.job == "c" and len(said.cpus) == 16


def test_bandwidth_is_left_alone_while_training_is_as_fast_as_ever() -> None:
    cluster = _contended()
    assert cluster.tell(ev.PressureMeasured("n", 0.9, (("c", 0.8), ("a", 0.1)))) == []


def test_a_cpu_run_that_makes_room_is_told_why_it_waits_again() -> None:
    cluster = Cluster("coda", ("a", 4, 8))
    cluster.submit("cpu", 0, cpus=6)
    said = cluster.submit("gpu", 2)
    assert [(type(one), one.job) for one in said] == [(Preempt, "cpu"), (Launch, "gpu"), (Hold, "cpu")]
