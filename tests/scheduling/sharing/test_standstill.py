"""Which runs still learn: on real losses, which are noisy, and on those that mislead."""

from __future__ import annotations

import csv
import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from sklearn.datasets import load_digits

from prefect_gpu.scheduling.sharing.convergence import Category
from prefect_gpu.scheduling.sharing.plateau import Plateau, interval_of
from tests.components import traces_folder

PC, WC, CC = Category


def categories(values: Sequence[float], interval_s: float = 3.0) -> list[Category]:
    """The category after each loss; one is reported every second."""
    watch = Plateau()
    return [watch.observe(float(second), value, interval_s) for second, value in enumerate(values)]


def noisy(values: Sequence[float], std: float, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [value + chance.gauss(0.0, std) for value in values]


def batch_losses(rate: float, seconds: int = 60, batches: int = 30) -> list[float]:
    """The loss of one batch in each second of a real training: softmax regression on scikit-learn's digits."""
    features, target = load_digits(return_X_y=True)
    features = features / 16
    chance = np.random.default_rng(1)
    weights = np.zeros((features.shape[1], 10))
    losses = []
    for _ in range(seconds):
        for _ in range(batches):
            chosen = chance.integers(0, len(features), 32)
            scores = np.exp(features[chosen] @ weights)
            likely = scores / scores.sum(axis=1, keepdims=True)
            losses.append(float(-np.log(likely[np.arange(32), target[chosen]]).mean()))
            likely[np.arange(32), target[chosen]] -= 1
            weights -= rate / 32 * features[chosen].T @ likely
    return losses[batches - 1 :: batches]


def test_the_interval_is_a_twentieth_of_the_training_within_bounds() -> None:
    assert [interval_of(s) for s in (None, 5.0, 100.0, 3600.0)] == [30.0, 1.0, 5.0, 30.0]


def test_losses_of_batches_that_still_fall_are_no_standstill() -> None:
    losses = batch_losses(rate=0.003)
    assert losses[-1] < 0.75 * losses[0]  # else the training shows nothing
    assert set(categories(losses)) == {PC}


def test_a_training_that_has_converged_is_found_in_the_noise_of_its_batches() -> None:
    losses = batch_losses(rate=1.0)
    found = categories(losses)
    at = found.index(CC)
    assert set(found[at:]) == {CC}
    assert np.mean(losses[at:]) < 0.2 * math.log(10)


@pytest.mark.needs("traces")
def test_published_validation_curves_stand_still_only_after_most_of_their_gain() -> None:
    seen = 0
    for path in sorted((traces_folder() / "pkusys-ElasticFlow" / "pollux_traces").glob("*/validation-*.csv")):
        with path.open(newline="") as file:
            values = [float(row["metric"]) for row in csv.DictReader(file)]
        if len(values) < 50:
            continue
        found = categories(values, len(values) / 20)
        assert CC in found, path
        gain = abs(values[found.index(CC)] - values[0]) / (max(values) - min(values))
        assert gain > 0.85, path
        assert sum(a is CC and b is PC for a, b in itertools.pairwise(found)) <= 3, path
        seen += 1
    assert seen == 26


@pytest.mark.parametrize("scale, shift", [(1.0, 0.0), (-1.0, 0.0), (1e-6, 0.0), (1.0, 1000.0), (1.0, -1.0)])
def test_neither_scale_nor_direction_nor_offset_matters(scale: float, shift: float) -> None:
    losses = noisy([math.exp(-second / 5) for second in range(60)], 0.01)
    assert categories([scale * loss + shift for loss in losses]) == categories(losses)
    assert categories(losses)[-1] is CC


@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_is_neither_progress_nor_ever_confirmed(seed: int) -> None:
    watch = Plateau()
    for second, loss in enumerate(noisy([2.3] * 90, 0.05, seed)):
        watch.observe(float(second), loss, 3.0)
    assert (watch.category, watch.learned, watch.confirmed) == (CC, False, False)


def test_a_slow_start_is_no_standstill() -> None:
    plateau, fall = [2.3] * 24, [2.3 * math.exp(-second / 10) for second in range(30)]
    assert set(categories(noisy(plateau + fall, 0.01))) == {PC}


def test_one_that_has_learned_and_stands_still_is_confirmed_some_looks_later() -> None:
    watch, confirmed_at, converged_at = Plateau(), None, None
    for second, loss in enumerate(noisy([1 + math.exp(-second / 3) for second in range(60)], 0.01)):
        watch.observe(float(second), loss, 3.0)
        converged_at = second if converged_at is None and watch.category is CC else converged_at
        confirmed_at = second if confirmed_at is None and watch.confirmed else confirmed_at
    assert converged_at is not None and confirmed_at is not None
    assert confirmed_at - converged_at >= 9


def test_a_slow_drift_is_seen_at_last_also_when_the_run_was_slowed_down() -> None:
    still = [1 + math.exp(-second / 3) for second in range(45)]
    found = categories(noisy([*still, *(1 - 0.002 * second for second in range(60))], 0.005))
    assert found[44] is CC
    assert PC in found[45:]


def test_the_interval_may_change_as_more_is_known() -> None:
    watch = Plateau()
    for second in range(80):
        watch.observe(float(second), 1 + math.exp(-second / 3), 30.0 if second < 40 else 2.0)
    assert watch.category is CC


def test_what_is_no_number_or_no_news_changes_nothing() -> None:
    watch = Plateau()
    assert [watch.observe(0.0, math.nan), watch.observe(1.0, 1.0), watch.observe(1.0, 2.0)] == [PC, PC, PC]
