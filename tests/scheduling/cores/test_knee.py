"""The search for the knee of a run's step rate, alone and bound to the scheduler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.cores.search import MOST_MEASUREMENTS, KneeTuner
from prefect_gpu.scheduling.cores.tuning import REPORTS
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities
from prefect_gpu.scheduling.model.instructions import Instruction, SetCores
from prefect_gpu.scheduling.model.jobs import Request, Status
from tests.scheduling.world import node

LIVE = Abilities(gates=True, cores=True, shares=True, finishes=True)


@pytest.mark.parametrize("knee", range(1, 13))
@pytest.mark.parametrize("start", [1, 2, 3, 5, 8, 16])
def test_the_knee_is_found_within_one_core_if_the_start_is_not_far_away(start: int, knee: int) -> None:
    tuner = KneeTuner(start, 16)
    while tuner.asked is not None:
        tuner.observe(tuner.asked, 7.0 * min(tuner.asked, knee) - 0.01 * tuner.asked)
    assert tuner.measurements <= MOST_MEASUREMENTS
    if start <= 3 * knee and knee <= 2 * start:
        assert abs(tuner.best - knee) <= 1


def test_a_rate_that_no_count_changes_ends_at_few_cores() -> None:
    tuner = KneeTuner(5, 16)
    assert [tuner.observe(cores, 3.0) for cores in (5, 2, 1)] == [2, 1, None]
    assert tuner.best == 1


def test_more_cores_than_there_are_now_are_not_asked_for() -> None:
    tuner = KneeTuner(2, 16)
    tuner.observe(2, 2.0)
    assert tuner.observe(1, 1.0, most=2) is None
    assert tuner.best == 2


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="value is"):
        KneeTuner(1, 2).observe(1, rate)


class Pool:
    """The live abilities on one node with one device; a run's step rate follows its cores."""

    def __init__(self, cpus: int, profile: str = "adaptive") -> None:
        self.scheduler = Scheduler(profile, LIVE)
        self.now = 0.0
        self.tell(ev.NodesChanged((node("n", 11, cpus=cpus),)))

    def tell(self, event: ev.Event, after_s: float = 0.0) -> list[Instruction]:
        self.now += after_s
        said = self.scheduler.handle(event, self.now)
        self.scheduler.state.check_invariants()
        return said

    def start(self, job: str, request: Request) -> None:
        self.tell(ev.JobSubmitted(job, request, "q", self.now, self.now))
        self.tell(ev.PhaseEntered(job, Status.TRAINING))

    def cores(self, job: str) -> int:
        placement = self.scheduler.state.jobs[job].placement
        assert placement is not None
        return len(placement.cpus)

    def train(self, job: str, rate: Callable[[int], float], reports: int = 60) -> list[int]:
        """Report so often; the counts of cores that it was given."""
        given = []
        for _ in range(reports):
            said = self.tell(ev.SpeedMeasured(job, rate(self.cores(job))), 1.0)
            given += [len(one.cpus) for one in said if isinstance(one, SetCores) and one.job == job]
        return given


def test_a_run_gets_the_cores_with_which_it_trains_fastest() -> None:
    pool = Pool(cpus=16)
    pool.start("a", Request(category="cv"))
    given = pool.train("a", lambda cores: 10.0 * min(cores, 5))
    assert pool.cores("a") == 5
    assert len(given) <= 1 + MOST_MEASUREMENTS  # to N_start first


def test_a_count_is_measured_by_some_reports_after_the_one_that_began_before() -> None:
    pool = Pool(cpus=2)
    pool.start("a", Request(category="cv"))
    assert pool.train("a", lambda cores: float(cores), REPORTS) == []
    assert pool.train("a", lambda cores: float(cores), 1) == [1]


def test_slower_with_fewer_cores_means_back_to_what_it_had() -> None:
    pool = Pool(cpus=2)
    pool.start("a", Request())
    assert pool.train("a", lambda cores: float(cores)) == [1, 2]


def test_the_next_run_of_the_category_begins_with_what_this_one_needed() -> None:
    pool = Pool(cpus=16)
    pool.start("a", Request(category="cv"))
    pool.train("a", lambda cores: 10.0 * min(cores, 7))
    found = pool.cores("a")
    pool.tell(ev.JobEnded("a", "done"))
    pool.start("b", Request(category="cv"))
    assert pool.train("b", lambda cores: 10.0 * min(cores, 7), 1) == [found]


def test_a_number_of_cores_that_was_asked_for_is_kept_to() -> None:
    pool = Pool(cpus=4)
    pool.start("a", Request(cpus=3))
    assert pool.train("a", lambda cores: 1.0) == []


def test_beside_others_on_its_device_a_run_is_not_measured() -> None:
    pool = Pool(cpus=4)
    for job in ("a", "b"):
        pool.start(job, Request(exclusive=False, gpu_memory_bytes=1 << 30))
    before = pool.cores("a")
    assert all(count != before // 2 for count in pool.train("a", lambda cores: 1.0))


def test_the_use_of_the_device_counts_where_it_is_measured() -> None:
    pool = Pool(cpus=4)
    pool.start("a", Request())
    pool.tell(ev.UtilisationMeasured("a", 0.5), 1.0)
    assert pool.train("a", lambda cores: 1.0) == []


def test_a_gpu_that_is_hardly_used_does_not_tell_what_cores_bring() -> None:
    """NVML measures in steps of 1 %: seen on an H200, where a run that its input holds up uses 2 % of the GPU, or 1."""
    pool = Pool(cpus=16)
    pool.start("a", Request(category="cv"))
    for _ in range(200):
        cores = pool.cores("a")
        pool.tell(ev.UtilisationMeasured("a", round(0.004 * min(cores, 5), 2)), 2.0)
        pool.tell(ev.SpeedMeasured("a", 10.0 * min(cores, 5)), 0.5)
    assert pool.cores("a") == 5


def test_on_a_node_that_hands_out_no_cores_any_more_nothing_is_tuned() -> None:
    pool = Pool(cpus=4)
    pool.start("a", Request())
    pool.tell(ev.NodesChanged((node("n", 11, cpus=0),)))
    assert pool.train("a", lambda cores: 1.0) == []
    pool.tell(ev.NodesChanged(()))
    assert pool.train("a", lambda cores: 1.0) == []
