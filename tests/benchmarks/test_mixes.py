"""The benchmark of the four mixes claims what is asked, for each mix and baseline."""

from __future__ import annotations

import pytest

from benchmarks._least_p90 import least_p90_s
from benchmarks.mixes import ASKED, Measured, claims_of
from prefect_gpu.papers.deepshare.mixes import Figures, Truth, draw, least_p90_jct_s, run


def measured(**profiles: Figures) -> Measured:
    """As if everything had been simulated."""
    found = Measured(Truth(), 1, 1, spread=False)
    found.found["heavy"] = profiles
    return found


def test_a_claim_holds_only_where_the_gain_is_as_large_as_asked() -> None:
    theirs = Figures(1000.0, 2000.0, 0.0, 0.9, 0.0)
    ours = Figures(830.0, 1600.0, 0.0, 0.9, 0.0)
    claims = claims_of(measured(las=theirs, srtf=theirs, mine=ours, adaptive=ours), "heavy", "mine")
    assert [claim.name for claim in claims if not claim.holds] == [
        "anywhere, heavy: mine against las, mean JCT, percent",
        "anywhere, heavy: mine against las, p90 JCT, percent",
    ]
    assert len(claims) == 4 * len(ASKED) + 2


def test_adaptive_must_be_better_and_not_equal() -> None:
    same = Figures(1000.0, 2000.0, 0.0, 0.9, 0.0)
    failed = [
        claim.name
        for claim in claims_of(measured(las=same, srtf=same, mine=same, adaptive=same), "heavy", "mine")
        if not claim.holds and "adaptive" in claim.name
    ]
    assert len(failed) == len(ASKED)


def test_each_is_simulated_once() -> None:
    found = Measured(Truth(), 12, 1, spread=False)
    assert found.of("low", "srtf") is found.of("low", "srtf")


@pytest.mark.parametrize("mix", ["normal", "heavy"])
def test_nobody_is_below_the_least_p90(mix: str) -> None:
    truth, jobs = Truth(), list(draw(3, 64, mix))
    least_s = least_p90_s(jobs)
    assert least_p90_jct_s(jobs) < least_s, "it knows of contention, too"
    for name in ("srtf", "deepshare-hybrid", "adaptive"):
        assert run(jobs, truth.profile(name, spread=True), truth).p90_jct_s > least_s
