"""The world of Pollux' simulator: its rules, on tables that fit on a page, and what its authors published."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from prefect_gpu.papers.pollux.goodput import Goodput
from prefect_gpu.papers.pollux.optimus import Optimus
from prefect_gpu.papers.pollux.speeds import LearnedSpeeds, TrueSpeeds
from prefect_gpu.papers.pollux.tables import Application, Batch, Placement, packed, read_tables
from prefect_gpu.papers.pollux.tiresias import Tiresias
from prefect_gpu.papers.pollux.workloads import read_workload
from prefect_gpu.papers.pollux.world import Job, Nodes, Policy, PolluxWorld, batch_as_asked
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.traces import TraceJob
from tests.components import traces_folder
from tests.papers.pollux.small import step_s, write_tables

POLICIES: dict[str, Callable[[], Policy]] = {
    "tiresias": Tiresias,
    "optimus": Optimus,
    "true": lambda: Goodput(TrueSpeeds()),
    "learned": lambda: Goodput(LearnedSpeeds()),
}


@pytest.fixture
def long(tmp_path: Path) -> dict[str, Application]:
    """Jobs of half an hour."""
    return read_tables(write_tables(tmp_path / "long", steps=3000))


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Application]:
    return read_tables(write_tables(tmp_path))


def job(name: str, at: float, gpus: int = 1, batch: int = 10) -> TraceJob:
    return TraceJob(name, at, 0.0, gpus, model="tiny", batch_size=batch)


class Scripted:
    """Gives out what was written down, decision by decision, and then the last of it."""

    def __init__(self, *decisions: Mapping[str, Nodes]) -> None:
        self.decisions = list(decisions)

    def decide(self, jobs: Sequence[Job], nodes: int, gpus_per_node: int) -> Mapping[str, Nodes]:
        found = self.decisions.pop(0) if len(self.decisions) > 1 else self.decisions[0]
        return {name: where for name, where in found.items() if name in {one.name for one in jobs}}

    def batch(self, job: Job, placement: Placement) -> Batch:
        return batch_as_asked(job, placement)

    def trained(self, job: Job) -> None: ...


def ran(tables: dict[str, Application], policy: Policy, *jobs: TraceJob, nodes: int = 4) -> Results:
    return PolluxWorld(jobs, tables, policy, nodes=nodes).run()


def jct_s(results: Results) -> dict[str, float]:
    return {outcome.job: outcome.jct_s for outcome in results.outcomes}


def test_a_job_waits_for_the_next_minute_restarts_and_ends_to_the_second(tables: dict[str, Application]) -> None:
    """300 steps of 0.2 s, after 30 s of restart that began at 60 s; it was submitted at 10 s."""
    assert jct_s(ran(tables, Scripted({"a": (0,)}), job("a", 10))) == {"a": 60 + 30 + 300 * step_s(1, 10) - 10}


def test_a_larger_batch_brings_more_and_is_split_among_the_gpus(tables: dict[str, Application]) -> None:
    """20 samples on 2 GPUs bring 1.5 of the initial steps each; each epoch's end is rounded to the second."""
    epoch_s = round(100 / 1.5 * step_s(2, 10))
    assert jct_s(ran(tables, Scripted({"a": (0, 1)}), job("a", 0, batch=20))) == {"a": 60 + 30 + 3 * epoch_s}


def test_a_gpu_that_cannot_hold_its_part_takes_it_in_several(tables: dict[str, Application]) -> None:
    """40 samples on one GPU are 2 × 20; 40 bring 2 of the initial steps. Nothing waits for the network."""
    assert tables["tiny"].fixed(40, 1) == Batch(20, 1)
    goodput = tables["tiny"].goodput((1,), Batch(20, 1), 0)
    assert goodput == pytest.approx(2 / (2 * step_s(1, 20)))


def test_only_another_list_of_nodes_is_a_restart(tables: dict[str, Application]) -> None:
    stays = ran(tables, Scripted({"a": (0,)}, {"a": (0,)}), job("a", 0))
    moves = ran(tables, Scripted({"a": (0,)}, {"a": (1,)}), job("a", 0))
    assert [found.outcomes[0].starts for found in (stays, moves)] == [1, 2]
    assert jct_s(moves)["a"] == jct_s(stays)["a"] + 30


def test_a_job_without_gpus_keeps_what_it_has_done(tables: dict[str, Application]) -> None:
    paused = ran(tables, Scripted({"a": (0,)}, {}, {}, {"a": (0,)}), job("a", 0))
    assert jct_s(paused)["a"] == 240 + 30 + 30, "half a minute before, half a minute after it"


def test_more_gpus_than_there_are_is_an_error(tables: dict[str, Application]) -> None:
    with pytest.raises(RuntimeError, match="hands out GPUs that there are not"):
        ran(tables, Scripted({"a": (0,) * 5}), job("a", 0))


def test_step_times_are_of_the_ring_of_nodes_and_between_those_that_were_measured(
    tables: dict[str, Application],
) -> None:
    tiny = tables["tiny"]
    assert tiny.step_s((3, 1), 10) == tiny.step_s((1, 3), 10)
    assert tiny.step_s((4,) * 5, 10)[0] == pytest.approx(step_s(20, 10))
    assert tiny.step_s((2,), 15)[0] == pytest.approx(step_s(2, 15))
    with pytest.raises(ValueError, match="was not measured"):
        tiny.step_s((1,), 21)


def test_the_best_batch_is_the_best_of_all_that_can_be_chosen(tables: dict[str, Application]) -> None:
    tiny = tables["tiny"]
    for gpus in (1, 2, 4, 8):
        placement = packed(gpus, 4)
        best = tiny.best(placement)
        found = {batch: tiny.goodput(placement, batch, 0) for batch in tiny.candidates(gpus).batches}
        assert best.goodput[0] == pytest.approx(max(found.values()))
        assert found[best.batches[0]] == pytest.approx(max(found.values()))


def test_tiresias_keeps_jobs_where_they_are_and_lets_small_ones_pass(tables: dict[str, Application]) -> None:
    jobs = [job("a", 0, 3, 20), job("wide", 1, 4, 20), job("small", 2, 1)]
    results = ran(tables, Tiresias(), *jobs, nodes=1)
    first = {outcome.job: outcome.first_start_s for outcome in results.outcomes}
    assert first["a"] == first["small"] == 60 and first["wide"] == 180
    assert all(outcome.starts == 1 for outcome in results.outcomes)


def test_optimus_gives_more_gpus_to_whom_they_save_most(tables: dict[str, Application]) -> None:
    """Of a batch of 10, no more than two GPUs can be used; of 40, eight."""
    results = ran(tables, Optimus(), job("few", 0), job("many", 0, 1, 40), nodes=1)
    busy = {outcome.job: outcome for outcome in results.outcomes}
    assert busy["many"].jct_s < busy["few"].jct_s


@pytest.mark.parametrize("policy", POLICIES)
def test_all_jobs_end_and_a_second_time_alike(policy: str, long: dict[str, Application]) -> None:
    jobs = [job(str(n), 13 * n, 1 + n % 4, (10, 20, 40, 80)[n % 4]) for n in range(24)]
    first, second = (jct_s(ran(long, POLICIES[policy](), *jobs, nodes=2)) for _ in range(2))
    assert len(first) == 24 and first == second


def test_what_was_measured_on_the_way_is_nearly_as_good_as_the_truth(long: dict[str, Application]) -> None:
    jobs = [job(str(n), 300 * n) for n in range(12)]
    true, learned, fixed = (
        sum(jct_s(ran(long, POLICIES[name](), *jobs, nodes=2)).values()) for name in ("true", "learned", "tiresias")
    )
    assert learned < 1.1 * true
    assert true < 0.9 * fixed


@pytest.mark.needs("traces")
@pytest.mark.parametrize("load", ["1.0", "2.0"])
@pytest.mark.parametrize("policy", ["tiresias", "optimus"])
def test_the_authors_policies_give_their_completion_times_job_by_job(policy: str, load: str) -> None:
    folder = traces_folder() / "petuum-adaptdl"
    published = json.loads((folder / "authors_jct_s.json").read_text())[f"{policy}-{load}"]["jcts"]["workload-3"]
    jobs = read_workload(folder / f"workloads-{load}" / "workload-3.csv")
    models = read_tables(traces_folder() / "pkusys-ElasticFlow" / "pollux_traces")
    assert jct_s(PolluxWorld(jobs, models, POLICIES[policy]()).run()) == published
