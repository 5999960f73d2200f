"""DeepShare's world: its rules, its authors' figures, and what our policies make of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.papers.deepshare.contended import DURATION_S, MIXES, draw, predicted_table
from prefect_gpu.papers.deepshare.experiments import compare
from prefect_gpu.papers.deepshare.profiles import greedy, hybrid, knowing
from prefect_gpu.papers.deepshare.traffic import TRAFFIC
from prefect_gpu.papers.deepshare.world import DeepShareWorld, Figures
from prefect_gpu.papers.deepshare.world_in_rounds import RoundCluster
from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.simulation.traces import ContentionTable, TraceJob, read_contention, read_trace
from tests.components import traces_folder

A2, A4, B2 = Key("A", 2, 2), Key("A", 4, 2), Key("B", 2, 2)
TABLE = ContentionTable(
    isolated={A2: 10.0, A4: 20.0, Key("A", 4, 4): 16.0, B2: 10.0},
    ratios={(A2, A2): 0.9, (A2, B2): 0.5, (B2, A2): 0.2, (B2, B2): 0.8, (A2, A4): 0.95, (A4, A2): 0.7},
    samples={},
)
MEASURED = TABLE.isolated
WIDER = {
    (own, other): 0.2 + (7 * at + 3 * beside) % 10 / 10
    for at, own in enumerate(MEASURED)
    for beside, other in enumerate(MEASURED)
}
"""Ratios of all pairs, some below the floor and some above 1."""


def job(name: str, model: str = "A", gpus: int = 2, rounds: float = 1.0) -> TraceJob:
    """A job of so many rounds alone on two nodes."""
    return TraceJob(name, 0.0, 300.0 * rounds, gpus, model)


def cluster(*jobs: TraceJob, flaw: bool = False) -> RoundCluster:
    """Four nodes of eight GPUs."""
    return RoundCluster(jobs, TABLE, flaw=flaw)


def test_a_job_alone_has_its_full_speed_and_ends_with_the_round_that_completes_it() -> None:
    world = cluster(job("a", rounds=1.5))
    world.start(world.jobs[0], (0, 1))
    assert world.advance() == ([], [world.jobs[0]])
    assert world.jobs[0].done == 3000
    ended, _ = world.advance()
    assert [(one.name, one.end_s) for one in ended] == [("a", 600.0)]
    assert world.free == [8, 8, 8, 8]


def test_the_worst_neighbour_counts_and_no_ratio_is_below_the_floor() -> None:
    world = cluster(job("a"), job("b", "B"), job("c"), job("far"))
    a, b, c, far = world.jobs
    for one, nodes in ((a, (0, 1)), (b, (1, 2)), (c, (0, 3)), (far, (2, 3))):
        world.start(one, nodes)
    assert world.ratio(a) == 0.5, "b slows it down more than c does"
    assert world.ratio(b) == 0.35, "measured as 0.2"
    assert world.ratio(c) == 0.9


def test_a_job_on_one_node_takes_no_part_in_the_contention() -> None:
    world = cluster(job("a"), job("b", "B"))
    world.start(world.jobs[0], (0,))
    world.start(world.jobs[1], (0, 1))
    assert [world.ratio(one) for one in world.jobs] == [1.0, 1.0]


@given(st.lists(st.tuples(st.integers(0, 11), st.sampled_from([(0, 1), (1, 2), (0, 3), (2, 3), (0, 1, 2, 3), (1,)]))))
def test_ratios_that_are_kept_up_to_date_are_those_of_looking_at_everybody(
    moves: list[tuple[int, tuple[int, ...]]],
) -> None:
    jobs = [job(str(at), "AB"[at % 2], (2, 4)[at % 4 == 0]) for at in range(12)]
    world = RoundCluster(jobs, ContentionTable(MEASURED, WIDER, {}))
    for at, nodes in moves:
        one = world.jobs[at]
        if one in world.running:
            world.stop(one)
        elif world.fits(one.gpus, nodes) and (len(nodes) == 1 or Key(one.model, one.gpus, len(nodes)) in MEASURED):
            world.start(one, nodes)
    for one in world.running:
        others = [other for other in world.running if other is not one and other.nodes & one.nodes]
        wide = [other.key for other in others if len(other.nodes) > 1 and len(one.nodes) > 1]
        expected = max(0.35, min(WIDER[one.key, other] for other in wide)) if wide else 1.0
        assert world.ratio(one) == expected


def test_with_the_flaw_the_job_after_one_that_ends_misses_a_round() -> None:
    for flaw, ran_s in ((True, [300, 0, 300]), (False, [300, 300, 300])):
        world = cluster(job("short", rounds=1), job("next", rounds=9), job("third", rounds=9), flaw=flaw)
        for one, nodes in zip(world.jobs, ((0, 1), (2, 3), (2, 3)), strict=True):
            world.start(one, nodes)
        world.advance()
        assert [one.ran_s for one in world.jobs] == ran_s


def test_a_job_that_nobody_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="B on 4 GPUs"):
        cluster(job("b", "B", 4))


def play(jobs: list[TraceJob], profile: str | Profile, table: ContentionTable, *, flaw: bool = True) -> Figures:
    """The figures of a job set, all of whose jobs must end."""
    world = DeepShareWorld(jobs, table, profile, flaw=flaw)
    assert world.run().unfinished == []
    world.scheduler.state.check_invariants()
    return world.figures()


def told(table: ContentionTable) -> Profile:
    """The profile ``deepshare`` that knows a table."""
    return knowing("deepshare", SensitivityTable(table.ratios), table.isolated)


def columns(figures: Figures) -> list[float]:
    """In the order in which the authors' figures are listed here."""
    return [figures.running_s, figures.completion_s, figures.makespan_s, figures.ratio, figures.used]


@pytest.fixture(scope="module")
def published() -> tuple[list[TraceJob], ContentionTable]:
    """The authors' job set, and what they measured."""
    folder: Path = traces_folder() / "gajagajago-deepshare"
    return list(read_trace(folder / "traces" / "simulate" / "trace0")), read_contention(folder / "jobs")


@pytest.mark.needs("traces")
@pytest.mark.parametrize(
    ("profile", "printed"),
    [
        ("deepshare-las", [6082, 139_631, 271_500, 0.627, 0.907]),
        ("deepshare-srtf", [5975, 245_364, 258_600, 0.636, 0.929]),
    ],
)
def test_the_authors_baselines_come_out_as_they_do_in_their_own_simulator(
    profile: str, printed: list[float], published: tuple[list[TraceJob], ContentionTable]
) -> None:
    assert columns(play(published[0], profile, published[1])) == pytest.approx(printed, rel=0.02)


@pytest.mark.needs("traces")
def test_without_the_flaw_jobs_are_complete_sooner(published: tuple[list[TraceJob], ContentionTable]) -> None:
    for profile, completion_s in (("deepshare-las", 134_141), ("deepshare-srtf", 240_040)):
        found = play(published[0], profile, published[1], flaw=False)
        assert found.completion_s == pytest.approx(completion_s, rel=1e-4)


@pytest.mark.needs("traces")
def test_the_greedy_rule_beats_a_plain_one_in_every_column(
    published: tuple[list[TraceJob], ContentionTable],
) -> None:
    jobs, table = published
    found = play(jobs, told(table), table, flaw=False)
    assert found.running_s <= 4397
    assert found.completion_s <= 65_788
    assert found.makespan_s <= 181_500
    assert found.ratio >= 0.827
    assert found.used >= 0.922


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
def test_in_every_mix_jobs_run_and_complete_sooner_than_under_the_authors_baselines(mix: str) -> None:
    table, jobs = predicted_table(), draw(1, 96, mix)
    ours = play(jobs, told(table), table, flaw=False)
    for baseline in ("deepshare-las", "deepshare-srtf"):
        theirs = play(jobs, baseline, table, flaw=False)
        assert ours.running_s < theirs.running_s
        assert ours.completion_s < theirs.completion_s


@pytest.mark.slow
def test_a_hybrid_that_was_told_nothing_learns_from_what_is_measured() -> None:
    table, jobs = predicted_table(), draw(1, 96)
    speeds = table.isolated
    blind, learning = (
        play(jobs, make(SensitivityTable(), speeds), table, flaw=False)
        for make in (greedy, lambda table, speeds: hybrid(table, speeds))
    )
    assert learning.ratio > blind.ratio
    assert learning.running_s < blind.running_s


def test_the_paper_s_improvement_shows_in_its_own_setting() -> None:
    found = compare(quick=True)
    assert len(found) == 6
    assert all(one.holds for one in found)
    assert all(one.assumed for one in found)


@pytest.mark.parametrize("mix", MIXES)
def test_a_job_set_is_drawn_as_the_paper_says(mix: str) -> None:
    jobs = draw(3, 240, mix)
    shares = MIXES[mix]
    counts = {model: sum(one.model == model for one in jobs) for model in TRAFFIC}
    assert counts == {model: 240 * share // sum(shares.values()) for model, share in shares.items()} or mix != "normal"
    assert all(abs(counts[model] - 240 * share / sum(shares.values())) <= share for model, share in shares.items())
    assert {one.gpus for one in jobs} == {2, 4, 8}
    assert {one.duration_s for one in jobs} == {DURATION_S}
    assert jobs == draw(3, 240, mix)
    assert jobs != draw(4, 240, mix)


def test_a_mix_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="mix='odd'"):
        draw(1, mix="odd")
