"""The world of Shockwave's simulator: its rules, with numbers that can be checked by hand, and what was published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.papers.shockwave.policies import Fair, LongestFirst, Replay, ShortestFirst
from prefect_gpu.papers.shockwave.tables import Pattern, Tables, read_jobs, read_tables
from prefect_gpu.papers.shockwave.world import Policy, ShockwaveWorld
from prefect_gpu.papers.unsuitable import Unsuitable
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.traces import TraceError
from tests.components import traces_folder
from tests.papers.shockwave.small import Row, plain, write_tables, write_trace

LONG_S = 1e6
POLICIES: dict[str, Callable[[], Policy]] = {"ours": Fair, "shortest": ShortestFirst, "longest": LongestFirst}


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., Results]:
    def run(
        rows: Sequence[Row],
        policy: Policy,
        gpus: int = 4,
        exclusive_s: Sequence[float] = (),
        runs: Sequence[tuple[int, int]] = ((1, 50), (9, 100)),
    ) -> Results:
        tables = read_tables(write_tables(tmp_path, exclusive_s or [LONG_S] * len(rows), runs))
        jobs = read_jobs(write_trace(tmp_path / "jobs.trace", *rows))
        return ShockwaveWorld(jobs, tables, policy, nodes=1, gpus_per_node=gpus, keep_timeline=True).run()

    return run


def jct_s(results: Results) -> list[float]:
    return [outcome.jct_s for outcome in results.outcomes]


def rounds(*chosen: str) -> Replay:
    """Who is in each round: "ab" are jobs 0 and 1."""
    return Replay([[str("abc".index(letter)) for letter in names] for names in chosen])


def test_a_job_runs_in_rounds_and_ends_within_one(world: Callable[..., Results]) -> None:
    assert jct_s(world([plain(0, 300)], rounds("a", "a", "a"))) == [300]


def test_a_round_lasts_until_its_last_job_has_done_its_steps(world: Callable[..., Results]) -> None:
    """The second round ends with b, after 90 s, and c begins then."""
    results = world([plain(0, 60), plain(0, 210), plain(0, 50)], rounds("ab", "b", "c"))
    assert jct_s(results) == [60, 210, 260]


def test_who_arrives_during_a_round_waits_for_the_next(world: Callable[..., Results]) -> None:
    assert jct_s(world([plain(0, 240), plain(10, 30)], rounds("a", "ab"))) == [240, 140]


def test_after_a_time_without_jobs_the_next_one_starts_when_it_arrives(world: Callable[..., Results]) -> None:
    assert jct_s(world([plain(0, 30), plain(500, 30)], rounds("a", "b"))) == [30, 30]


def test_who_was_not_in_the_round_before_does_less_of_a_whole_round(world: Callable[..., Results]) -> None:
    """a does 120, and, when it is back, 100 and 80; b does 100 in its first round, and in its last all that is left."""
    results = world([plain(0, 300), plain(0, 200)], rounds("a", "b", "a", "a", "b"))
    assert jct_s(results) == [240 + 120 + 80, 440 + 100]
    assert [outcome.starts for outcome in results.outcomes] == [2, 2]
    assert [outcome.trained_s for outcome in results.outcomes] == [120 + 100 + 80, 100 + 100]


def test_a_batch_that_doubles_takes_effect_after_the_next_round_and_keeps_whole_epochs(
    world: Callable[..., Results],
) -> None:
    """After 1,200 of 4,000 steps it asks; after 2,400, in the third epoch, it gets: 500 of 2,000 are left, at 8/s."""
    assert jct_s(world([(0, "ResNet-18", 50, 4_000, 1, "gns")], rounds("a", "a", "a"))) == [240 + 500 / 8]


def test_a_job_that_waits_keeps_what_it_asked_for(world: Callable[..., Results]) -> None:
    """Its second round does 1,000 steps only, for it is late; 2,200 are in the third epoch, too."""
    rows: list[Row] = [(0, "ResNet-18", 50, 4_000, 1, "gns"), plain(120, 100)]
    assert jct_s(world(rows, rounds("a", "b", "a", "a")))[0] == 220 + 120 + 500 / 8


def test_a_static_job_and_one_without_a_measured_speed_keep_their_batch(world: Callable[..., Results]) -> None:
    static = world([(0, "ResNet-18", 50, 4_000, 1, "static")], rounds(*["a"] * 4))
    unmeasured = world([(*plain(0, 400)[:5], "gns")], rounds(*["a"] * 4), runs=((1, 100), (9, 200)))
    assert jct_s(static) == jct_s(unmeasured) == [400]


def test_accordion_takes_the_largest_batch_outside_the_critical_epochs(world: Callable[..., Results]) -> None:
    """It asks in epoch 12, and has done 24 of 40 when it gets 256 samples a step, 196 of which are an epoch."""
    results = world([(0, "ResNet-18", 50, 40_000, 2, "accordion")], rounds("a", "a", "a"))
    steps = -(-40_000 * 50 // 256)
    assert jct_s(results) == [240 + (steps - 24 * 196) / 50]


def test_a_job_far_over_its_time_is_ended(world: Callable[..., Results]) -> None:
    assert jct_s(world([plain(0, 1_000)], rounds(*["a"] * 9), exclusive_s=[100])) == [240]


def test_a_job_with_nothing_left_after_a_change_is_given_up_after_five_empty_rounds(
    world: Callable[..., Results],
) -> None:
    """Of 2,500 steps it has done 2,400, three epochs: of 1,250 it has then done 1,500."""
    row: Row = (0, "ResNet-18", 50, 2_500, 1, "gns")
    assert jct_s(world([row], rounds(*["a"] * 7))) == [240]
    assert world([row], rounds(*["a"] * 6)).unfinished == ["0"]


def test_fairness_is_the_time_that_a_job_took_over_that_with_its_part_of_the_gpus(
    world: Callable[..., Results],
) -> None:
    results = world([plain(0, 60), plain(0, 60)], rounds("a", "b"), gpus=1, exclusive_s=[60, 50])
    assert results.fairness == [60 / (60 * 2), 120 / (50 * 2)]
    assert results.summary()["worst_fairness"] == 1.2
    assert results.summary()["unfair_fraction"] == 0.5


def test_more_gpus_than_there_are_is_an_error(world: Callable[..., Results]) -> None:
    with pytest.raises(Unsuitable, match="hands out 6 GPUs at a time, and there are 4"):
        world([plain(0, 60, 2), plain(0, 60, 4)], rounds("ab"))


@pytest.mark.parametrize(("policy", "first"), [("shortest", 0), ("longest", 1)])
def test_baselines(policy: str, first: int, world: Callable[..., Results]) -> None:
    outcomes = world([plain(0, 100), plain(0, 500)], POLICIES[policy](), gpus=1).outcomes
    assert outcomes[first].first_start_s == 0 < (outcomes[1 - first].first_start_s or 0)


def test_ours_is_told_nothing_of_batch_sizes_to_come(world: Callable[..., Results]) -> None:
    """The same jobs, one of which becomes faster later: until then, all rounds are the same."""
    rows: list[Row] = [(0, "ResNet-18", 50, 4_000, 1, "gns"), plain(0, 300), plain(0, 350), plain(0, 360)]
    changing, staying = (world(rows, Fair(), gpus=2, runs=runs) for runs in (((1, 50), (9, 100)), ((10, 50),)))
    early = [
        sorted((span.job, span.start_s) for span in results.timeline if span.start_s < 240)
        for results in (changing, staying)
    ]
    assert early[0] == early[1]
    assert jct_s(changing) != jct_s(staying)


@given(
    drawn=st.lists(
        st.tuples(st.integers(0, 900), st.integers(1, 1_000), st.sampled_from((1, 2, 4))), min_size=1, max_size=12
    ),
    policy=st.sampled_from(sorted(POLICIES)),
)
def test_all_jobs_end_and_nobody_is_on_the_gpu_of_another(
    drawn: list[tuple[int, int, int]], policy: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("world")
    rows = [plain(at, steps, gpus) for at, steps, gpus in sorted(drawn)]
    tables = read_tables(write_tables(folder, [LONG_S] * len(rows)))
    jobs = read_jobs(write_trace(folder / "jobs.trace", *rows))
    first, second = (
        ShockwaveWorld(jobs, tables, POLICIES[policy](), nodes=2, gpus_per_node=2, keep_timeline=True).run()
        for _ in range(2)
    )
    assert not first.unfinished and jct_s(first) == jct_s(second)
    spans = sorted((span.device, span.start_s, span.end_s) for span in first.timeline)
    assert all(one[0] != other[0] or one[2] <= other[1] + 1e-9 for one, other in pairwise(spans))


def test_a_pattern_is_read_as_runs_of_epochs() -> None:
    pattern = Pattern((1, 10), (50, 100), 1.0)
    assert [pattern.size(epoch) for epoch in (0, 1, 9, 10, 99)] == [50, 100, 100, 100, 100]


@pytest.mark.parametrize(
    "line", ["x", "LM\ta\tb\tc\t1\t5\t1\tgns\t1\t-1\t0\t0", "LM (batch size 5)\ta\tb\tc\t1\tmany\t1\tgns\t1\t-1\t0\t0"]
)
def test_what_is_no_trace_is_named_with_its_line(line: str, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "jobs.trace", plain(0, 1))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(TraceError, match=r"jobs\.trace, line 2: "):
        read_jobs(path)


def test_jobs_of_another_trace_are_refused(tmp_path: Path) -> None:
    tables = read_tables(write_tables(tmp_path, [LONG_S]))
    jobs = read_jobs(write_trace(tmp_path / "jobs.trace", plain(0, 1), plain(0, 1)))
    with pytest.raises(ValueError, match=r"job 1 .* has no speed or no pattern"):
        ShockwaveWorld(jobs, tables, Fair())


def _published() -> tuple[Tables, Path]:
    folder = traces_folder() / "uw-mad-dash-shockwave"
    return read_tables(folder), folder / "120_jobs.trace"


@pytest.mark.needs("traces")
@pytest.mark.parametrize("name", ["Shockwave", "MST"])
def test_the_published_schedules_give_every_completion_time(name: str) -> None:
    tables, trace = _published()
    results = ShockwaveWorld(read_jobs(trace), tables, Replay(tables.schedule(name))).run()
    assert jct_s(results) == tables.published[name]["jct_s"]
    assert results.end_s == tables.published[name]["makespan_s"]
    assert [round(value, 5) for value in results.fairness] == tables.published[name]["finish_time_fairness"]


@pytest.mark.needs("traces")
def test_ours_is_early_short_and_fair_at_once() -> None:
    tables, trace = _published()
    results = ShockwaveWorld(read_jobs(trace), tables, Fair()).run()
    assert results.end_s <= 21_800 and results.summary()["mean_jct_s"] <= 8_000
    assert max(results.fairness) <= 1.2 and results.unfair_fraction <= 0.01
