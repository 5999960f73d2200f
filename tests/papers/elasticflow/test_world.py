"""The world of ElasticFlow's simulator: its rules, on numbers that fit on a page, and the ceilings of its traces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from prefect_gpu.papers.elasticflow.earliest import EarliestDeadline
from prefect_gpu.papers.elasticflow.promising import Promising
from prefect_gpu.papers.elasticflow.simulation import check, simulate_elasticflow
from prefect_gpu.papers.elasticflow.speeds import most_gpus, read_speeds, rising
from prefect_gpu.papers.elasticflow.world import Decided, ElasticFlowWorld, Job, Policy, change_s
from prefect_gpu.papers.unsuitable import Unsuitable
from prefect_gpu.simulation.traces import TraceJob, read_trace
from tests.papers.elasticflow.small import write_deadlines, write_speeds

SPEEDS = {("tiny", 8): {1: 1.0, 2: 1.8, 4: 3.0}}


def job(name: str, at: float, work: int, deadline: float) -> TraceJob:
    return TraceJob(name, at, float(work), 1, model="tiny", batch_size=8, iterations=work, deadline_s=deadline)


class Scripted:
    """Gives out what was written down, decision by decision, and then the last of it; wishes come with it."""

    def __init__(self, *decisions: Mapping[str, int], refused: Sequence[str] = (), wish_s: float = math.inf) -> None:
        self.decisions, self.refused, self.wish_s, self.at = list(decisions), refused, wish_s, list[float]()

    def decide(self, now: float, jobs: Sequence[Job], gpus: int) -> Decided:
        self.at.append(now)
        found = self.decisions.pop(0) if len(self.decisions) > 1 else self.decisions[0]
        names = {one.name for one in jobs}
        return Decided(
            {name: size for name, size in found.items() if name in names},
            [name for name in self.refused if name in names],
            self.wish_s if self.wish_s > now else math.inf,
        )


def ran(policy: Policy, *jobs: TraceJob, gpus: int = 4, charging: str = "change") -> ElasticFlowWorld:
    world = ElasticFlowWorld(jobs, SPEEDS, policy, gpus=gpus, charging=charging)
    world.run()
    return world


def ends(world: ElasticFlowWorld) -> dict[str, float | None]:
    return {one.name: one.outcome.end_s for one in world.jobs}


def test_a_start_costs_nine_seconds_on_one_gpu_and_two_more_per_doubling() -> None:
    assert [change_s(gpus) for gpus in (1, 2, 4, 64)] == [9, 11, 13, 21]
    assert ends(ran(Scripted({"a": 1}), job("a", 100, 300, 1000))) == {"a": 100 + 9 + 300}
    assert ends(ran(Scripted({"a": 4}), job("a", 100, 300, 1000))) == {"a": 100 + 13 + 100}


def test_a_decision_comes_no_sooner_than_a_minute_after_the_one_before() -> None:
    policy = Scripted({"a": 1, "b": 1})
    world = ran(policy, job("a", 0, 300, 1000), job("b", 10, 300, 1000))
    assert policy.at[:2] == [0, 60]
    assert ends(world)["b"] == 60 + 9 + 300


def test_a_resize_costs_again_and_a_stop_nothing() -> None:
    """109 s on one GPU are 100 iterations; then 13 s are lost, and the other 300 take 100 s."""
    assert ends(ran(Scripted({"a": 1}, {"a": 4}, wish_s=109), job("a", 0, 400, 1000))) == {"a": 109 + 13 + 100}


def test_by_the_authors_charging_each_decision_costs_all_that_run() -> None:
    quiet, busy = (
        ends(ran(Scripted({"a": 1}, wish_s=200), job("a", 0, 300, 1000), charging=how)) for how in ("change", "event")
    )
    assert quiet == {"a": 309}
    assert busy == {"a": 309 + 2 * 7}


def test_a_refused_job_never_runs_and_counts_among_all() -> None:
    world = ran(Scripted({"a": 1}, refused=["b"]), job("a", 0, 300, 1000), job("b", 0, 10, 1000), job("c", 0, 10, 1000))
    assert (world.refused, world.in_time(), world.broken()) == ({"b"}, {"a"}, {"c"})
    assert world.satisfied == pytest.approx(1 / 3)
    assert world.results.unfinished == ["c"]


def test_more_gpus_than_there_are_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="hands out GPUs that there are not"):
        ran(Scripted({"a": 4}), job("a", 0, 300, 1000), gpus=2)


def test_only_sizes_that_are_faster_and_no_more_than_the_authors_allow(tmp_path: Path) -> None:
    assert rising({1: 1.0, 2: 0.9, 4: 2.0, 8: 3.0}, most=4) == {1: 1.0, 4: 2.0}
    assert read_speeds(write_speeds(tmp_path / "speeds")) == SPEEDS
    sizes = [("bert", 64), ("bert", 128), ("gpt2", 256), ("deepspeech2", 32), ("vgg16", 64), ("resnet50", 256)]
    assert [most_gpus(*one) for one in sizes] == [8, 16, 32, 32, 32, 64]


def test_attainable_is_what_a_job_alone_would_reach() -> None:
    """300 iterations take 113 s on four GPUs."""
    jobs = [job("a", 0, 300, 113), job("b", 0, 300, 112)]
    found = [ElasticFlowWorld(jobs, SPEEDS, EarliestDeadline(), gpus=gpus).attainable() for gpus in (4, 2)]
    assert found == [{"a"}, set()]


def test_edf_gives_the_earliest_its_best_size() -> None:
    world = ran(EarliestDeadline(), job("late", 0, 300, 2000), job("soon", 0, 300, 200))
    assert ends(world) == {"soon": 113, "late": 226}


def test_edf_gives_the_next_the_largest_size_that_is_free() -> None:
    """Of six GPUs, two are left: 11 s are lost, and from 113 s on, with four, 13 s more."""
    world = ran(EarliestDeadline(), job("soon", 0, 300, 200), job("late", 0, 300, 2000), gpus=6)
    assert ends(world) == {"soon": 113, "late": pytest.approx(113 + 13 + (300 - (113 - 11) * 1.8) / 3)}


def test_edf_that_gives_up_stops_whose_deadline_has_passed() -> None:
    jobs = [job("late", 0, 600, 150), job("next", 100, 300, 300)]
    assert ends(ran(EarliestDeadline(), *jobs)) == {"late": 213, "next": 326}
    world = ran(EarliestDeadline(gives_up=True), *jobs, job("other", 160, 3, 500))
    assert world.refused == {"late"}
    assert world.in_time() == {"next", "other"}


def test_ours_keeps_two_promises_where_edf_keeps_one() -> None:
    """Each has time enough on two GPUs; one after the other on four, the second is late."""
    jobs = [job("a", 0, 324, 212), job("b", 0, 324, 212)]
    assert len(ran(EarliestDeadline(), *jobs).in_time()) == 1
    world = ran(Promising(), *jobs)
    assert (world.in_time(), world.refused) == ({"a", "b"}, set())


def test_ours_knows_what_decisions_cost() -> None:
    """It takes 213 s, and 21 s more for three decisions: too long for 230 s."""
    told, untold = (
        ran(policy, job("a", 0, 600, 230), *(job(f"b{n}", 70 * n, 3, 900) for n in (1, 2)), charging="event")
        for policy in (Promising(decision_s=7.0), Promising())
    )
    assert ("a" in told.refused, "a" in untold.broken()) == (True, True)


def test_ours_refuses_what_cannot_be_and_keeps_the_rest() -> None:
    world = ran(Promising(), *(job(f"j{n}", 0, 324, 212) for n in range(5)))
    assert len(world.in_time()) == 2 and len(world.refused) == 3 and not world.broken()


def test_a_second_time_all_ends_alike() -> None:
    jobs = [job(str(n), 37 * n, 200 + 61 * (n % 7), 37 * n + 300 + 97 * (n % 11)) for n in range(60)]
    first, second = (ran(Promising(), *jobs, gpus=8) for _ in range(2))
    assert ends(first) == ends(second)
    assert first.satisfied > ran(EarliestDeadline(), *jobs, gpus=8).satisfied


def test_what_a_trace_lacks_is_named(tmp_path: Path) -> None:
    tables = write_speeds(tmp_path / "speeds")
    jobs = list(read_trace(write_deadlines(tmp_path / "trace.csv", ("a", 0, 300, 1000))))
    with pytest.raises(Unsuitable, match="profile='srtf' is not known in world='elasticflow': choose one of adaptive"):
        simulate_elasticflow(jobs, "srtf", tables, gpus=4)
    with pytest.raises(Unsuitable, match="job x has no deadline or no iterations"):
        simulate_elasticflow([TraceJob("x", 0, 1, 1)], "edf", tables, gpus=4)
    with pytest.raises(Unsuitable, match="trains 'huge' with batch size 8, which the tables lack"):
        huge = TraceJob("x", 0, 1, 1, model="huge", batch_size=8, iterations=1, deadline_s=9)
        simulate_elasticflow([huge], "edf", tables, gpus=4)
    with pytest.raises(Unsuitable, match="job a was measured on 2 GPUs and more: name a larger cluster"):
        check(jobs, {("tiny", 8): {2: 1.0}}, 1)
    with pytest.raises(FileNotFoundError, match=r"holds no <model>.csv"):
        read_speeds(tmp_path / "nowhere")
