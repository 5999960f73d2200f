"""The four mixes in our own world: the same jobs for everybody, and what comes of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from prefect_gpu.papers.deepshare.contended import MIXES
from prefect_gpu.papers.deepshare.even_spread import EvenSpread
from prefect_gpu.papers.deepshare.mixes import SIZES, Truth, draw, run


@pytest.mark.parametrize("mix", MIXES)
def test_a_seed_gives_the_same_jobs_each_time_in_the_parts_of_the_mix(mix: str) -> None:
    jobs = list(draw(3, mix=mix))
    assert jobs == list(draw(3, mix=mix)) != list(draw(4, mix=mix))
    assert {job.request.gpus for job in jobs} == set(SIZES)
    found, parts = Counter(job.kind for job in jobs), MIXES[mix]
    for model, part in parts.items():
        assert found[model] == pytest.approx(256 * part / sum(parts.values()), abs=part)


def test_an_unknown_mix_is_refused() -> None:
    with pytest.raises(ValueError, match="mix='odd' is not known"):
        list(draw(0, mix="odd"))


@pytest.mark.parametrize("name", ["las", "srtf", "deepshare", "adaptive"])
def test_who_may_put_jobs_anywhere_avoids_the_network(name: str) -> None:
    truth = Truth()
    found = run(draw(0, jobs=24), truth.profile(name), truth)
    assert found.running_s == pytest.approx(3600)
    assert 0 < found.used <= 1


def test_small_jobs_first_is_better_than_las_and_srtf_where_all_jobs_are_equally_long() -> None:
    truth = Truth()
    found = {name: run(draw(0, jobs=48), truth.profile(name), truth) for name in ("las", "srtf", "deepshare")}
    assert found["deepshare"].jct_s < min(found["las"].jct_s, found["srtf"].jct_s)


@pytest.mark.parametrize("name", ["srtf", "deepshare", "adaptive"])
def test_where_all_are_spread_jobs_slow_each_other_down(name: str) -> None:
    truth = Truth()
    found = run(draw(0, jobs=24), truth.profile(name, spread=True), truth)
    assert found.running_s > 3600


def test_the_rule_slows_jobs_down_less_than_those_who_do_not_look() -> None:
    truth = Truth()
    ours, theirs = (
        run(draw(0, jobs=48, mix="heavy"), truth.profile(name, spread=True), truth) for name in ("deepshare", "srtf")
    )
    assert ours.running_s < theirs.running_s


def test_the_baselines_prefer_few_nodes_where_all_are_spread() -> None:
    assert isinstance(Truth().profile("las", spread=True).placement, EvenSpread)


def test_a_policy_teaches_its_own_table_and_not_the_world() -> None:
    truth = Truth()
    assert truth.table() is not truth.table()


def test_a_job_that_never_ends_is_an_error() -> None:
    job = replace(next(draw(0)), request=replace(next(draw(0)).request, gpus=33))
    with pytest.raises(RuntimeError, match="1 jobs never ended"):
        run([job], Truth().profile("srtf"), Truth())
