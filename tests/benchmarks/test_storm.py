"""A storm does harm to nobody, and its judge would see it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from benchmarks.storm.__main__ import minimised
from benchmarks.storm.judge import _went_back
from benchmarks.storm.trainings import after, result
from benchmarks.storm.weather import KINDS, Act, as_json, forecast
from tests.benchmarks.quick import quick


def test_a_seed_decides_what_happens() -> None:
    acts = forecast(7, 60.0, 12.0)
    assert acts == forecast(7, 60.0, 12.0) != forecast(8, 60.0, 12.0)
    assert {act.kind for act in acts} == set(KINDS), "all kinds, in an hour"
    assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(acts))


def said(what: str, step: int, one: str) -> dict[str, Any]:
    return {"what": what, "step": step, "try": one}


@pytest.mark.parametrize(("again_at", "is_lost"), [(0, True), (10, False), (20, False)])
def test_a_checkpoint_that_is_gone_is_seen(again_at: int, is_lost: bool) -> None:
    diary = [said("begins", 0, "a"), said("saves", 10, "a"), said("saves", 20, "a"), said("begins", again_at, "b")]
    assert bool(_went_back(diary)) is is_lost, "only the last one may have been incomplete"


def test_a_step_that_is_done_twice_changes_the_result() -> None:
    weight = 1.0
    for step in (0, 1, 1, 2):
        weight = after(weight, step)
    assert repr(weight) != result(3)


def test_a_report_is_cut_down_to_the_acts_that_do_harm() -> None:
    acts = forecast(3, 10.0, 12.0)
    guilty = {acts[4], acts[-3]}

    def play(acts: list[Act], seconds: float, seed: int) -> dict[str, Any]:
        lost = ["a run"] if guilty <= set(acts) else []
        return {"acts": as_json(acts), "seconds": seconds, "seed": seed, "wrong": {"lost": lost}}

    told = minimised(play(acts, 600.0, 3), play)
    assert {Act(**act) for act in told["acts"]} == guilty


@pytest.mark.full
@pytest.mark.timeout(900)
def test_nothing_is_lost_in_a_short_storm() -> None:
    told = quick("storm")
    wrong = {claim["name"]: claim for claim in told["claims"] if "standstill" not in claim["name"]}
    assert wrong, told
    assert all(claim["holds"] for claim in wrong.values()), told["wrong"]
