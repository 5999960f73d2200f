"""The benchmark of stoppable runs draws what it says, and claims what was measured and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks._elastic_training import Network
from benchmarks._host.former import former_version
from benchmarks.stoppable.__main__ import claims_of, details_of
from benchmarks.stoppable.contenders import BEFORE, CONTENDERS, Passed
from benchmarks.stoppable.trainings import (
    DEVICES,
    LONGEST_S,
    SHORTEST_S,
    SIZES,
    STEP_S,
    Training,
    draw,
    earlier,
    undisturbed,
)

THEIRS = Passed(100.0, 300.0, 700.0, 20, 5, 0, 0, 0, 0, (50.0, 150.0), 1.1)
OURS = replace(THEIRS, mean_s=85.0, most_stops=3)


def test_a_sweep_is_the_same_every_time_and_mixed() -> None:
    sweep = draw(5, 600)
    assert sweep == draw(5, 600) != draw(6, 600)
    assert [one.at_s for one in sweep] == sorted(one.at_s for one in sweep)
    assert len({one.seed for one in sweep}) == 600
    sizes = Counter(one.gpus for one in sweep)
    assert sizes.keys() == set(SIZES) and all(150 < count < 250 for count in sizes.values()), "equally often"
    assert all(SHORTEST_S - STEP_S <= one.steps * STEP_S <= LONGEST_S + STEP_S for one in sweep)


def test_more_arrives_than_the_devices_can_do_meanwhile() -> None:
    sweep = draw(1, 600)
    load = sum(one.gpus * one.steps * STEP_S for one in sweep) / (DEVICES * sweep[-1].at_s)
    assert load == pytest.approx(1.43, abs=0.02)


def test_a_pool_has_seen_short_and_long_runs_before() -> None:
    lengths = [one.steps * STEP_S for one in earlier(8)]
    assert (lengths[0], lengths[-1]) == (SHORTEST_S, LONGEST_S)
    assert not {one.seed for one in earlier(8)} & {one.seed for one in draw(1, 60)}


def test_a_training_that_was_stopped_gives_the_same_and_one_with_a_step_less_does_not(tmp_path: Path) -> None:
    training = Training(0.0, 1, 12, 7)
    network = Network(training.seed)
    for number in range(5):
        network.step(number)
    network.save(tmp_path / "checkpoint")
    again = Network(training.seed)
    again.load(tmp_path / "checkpoint")
    for number in range(5, training.steps):
        again.step(number)
    assert again.digest() == undisturbed(training) != undisturbed(replace(training, steps=11))


def test_claims_hold_where_the_bounds_are_kept_and_only_there() -> None:
    good = claims_of(
        {"adaptive": [OURS, OURS, replace(OURS, mean_s=100.0)], "srsf": [THEIRS] * 3, "before": [THEIRS] * 3}
    )
    assert len(good) == 6 and all(claim.holds for claim in good), "the median of three counts"
    equal = replace(THEIRS, most_stops=4, lost=1, different=1, failed=1)
    bad = claims_of({"adaptive": [equal], "srsf": [THEIRS], "before": [THEIRS]})
    assert not any(claim.holds for claim in bad)


def test_nothing_is_claimed_of_who_did_not_play() -> None:
    assert not any("JCT" in claim.name for claim in claims_of({"adaptive": [OURS]}))
    others = claims_of({"adaptive": [OURS], "srsf": [replace(THEIRS, different=1)]})
    assert [claim.name for claim in others if not claim.holds] == ["results unlike the undisturbed run's"]


def test_details_have_a_ratio_for_each_sweep() -> None:
    details = details_of({"adaptive": [OURS, THEIRS], "srsf": [THEIRS, THEIRS]}, [1.0, 2.0], whole=False)
    assert details["mean_jct_to"] == {"srsf": [0.85, 1.0]}
    assert "jct_s" not in details["all"]["srsf"][0]


def test_the_release_before_has_no_whole_set(tmp_path: Path) -> None:
    package = former_version(BEFORE, tmp_path)
    if package is None:
        pytest.skip("this is no clone with the release before")
    scheduling = package / "prefect_gpu" / "scheduling" / "preemption"
    assert scheduling.is_dir() and not (scheduling / "whole_set.py").exists()
    assert [one.name for one in CONTENDERS if one.commit is not None] == ["before"]
