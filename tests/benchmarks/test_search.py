"""The search's curves follow from what its trainings noted, and its claims from those."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.search.__main__ import claims_of, details_of, shares
from benchmarks.search.contenders import Curve, Size, read_curve
from benchmarks.search.noise import losses as losses_of
from benchmarks.search.problems import PROBLEMS, SPACES

FAST = Curve(((1.0, 0.9), (4.0, 0.2), (9.0, 0.1)), trials=20, steps=90)
SLOW = Curve(((3.0, 0.8), (8.0, 0.2)), trials=5, steps=80)
EXAMPLES = {
    "boosted": {"learning_rate": 0.3, "max_depth": 2, "subsample": 0.5, "max_features": 0.2, "min_samples_leaf": 5},
    "network": {"lr": 0.005, "momentum": 0.5, "channels": 4, "batch": 64, "decay": 1e-5},
}


def test_a_curve_has_the_moments_at_which_the_loss_got_better(tmp_path: Path) -> None:
    notes = [(101.0, 0.9, 0, 1), (103.0, 0.5, 0, 2), (102.0, 0.95, 1, 1), (111.0, 0.1, 1, 2)]
    (tmp_path / "trace").write_text("".join(json.dumps(note) + "\n" for note in notes))
    curve = read_curve(tmp_path / "trace", 100.0, 10.0)
    assert curve == Curve(((1.0, 0.9), (3.0, 0.5)), trials=2, steps=4), "what came after its time does not count"
    assert curve.loss == 0.5 and curve.reached(0.9) == 1.0 and curve.reached(0.4) == float("inf")


def test_the_claim_is_the_median_of_the_seeds() -> None:
    assert shares([FAST, SLOW], [SLOW, FAST], 10.0) == [0.4, float("inf")]
    found = {"boosted": {"ours": [FAST, FAST, SLOW], "plain": [SLOW, SLOW, FAST]}}
    [claim] = claims_of(found, 10.0)
    assert claim.holds and claim.value == 0.4
    [claim] = claims_of({"boosted": {"ours": [SLOW], "plain": [FAST]}}, 10.0)
    assert not claim.holds
    told = details_of(found, [1.0], Size(seconds=10.0))["problems"]["boosted"]["plain"]
    assert told["share_of_time"] == [0.4, 0.4, None] and told["to_their_last"] == [0.5, 0.5, None]
    json.dumps(told, allow_nan=False)


@pytest.mark.parametrize("name", ["boosted", pytest.param("network", marks=pytest.mark.needs("pytorch"))])
def test_a_training_that_was_carried_on_has_the_losses_of_one_that_was_not(name: str, tmp_path: Path) -> None:
    assert set(EXAMPLES[name]) == set(SPACES[name])
    whole, first, second = (PROBLEMS[name](**EXAMPLES[name]) for _ in range(3))
    losses = [whole.step(number) for number in range(4)]
    assert losses[-1] < losses[0]
    parts = [first.step(number) for number in range(2)]
    first.save(tmp_path / "saved")
    second.load(tmp_path / "saved")
    assert parts + [second.step(number) for number in range(2, 4)] == pytest.approx(losses)


@pytest.mark.parametrize("name", ["boosted", pytest.param("network", marks=pytest.mark.needs("pytorch"))])
def test_a_seed_changes_the_draws_of_a_training_and_little_else(name: str) -> None:
    first, again, other = (losses_of(name, EXAMPLES[name], seed, 3)[-1] for seed in (0, 0, 1))
    assert first == pytest.approx(again) and first != pytest.approx(other)
    assert 0.5 < first / other < 2.0
