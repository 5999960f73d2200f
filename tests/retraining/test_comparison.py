"""The test of a challenger against the champion."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from prefect_gpu.retraining import compare


def test_with_few_examples_the_p_value_is_exact() -> None:
    challenger, champion = np.array([0.1, 0.5, 0.2, 0.4, 0.3]), np.array([0.4, 0.6, 0.1, 0.9, 0.5])
    difference = champion - challenger
    as_large = [
        np.mean(np.multiply(signs, difference)) >= difference.mean() - 1e-12 for signs in product((1, -1), repeat=5)
    ]
    assert compare(challenger, champion).p_value == pytest.approx(np.mean(as_large))


def test_of_right_and_wrong_answers_it_is_mcnemars_test() -> None:
    chance = np.random.default_rng(1)
    challenger, champion = chance.random(90) < 0.2, chance.random(90) < 0.3
    gained, lost = int((champion & ~challenger).sum()), int((challenger & ~champion).sum())
    exact = stats.binomtest(gained, gained + lost, alternative="greater").pvalue
    assert compare(challenger, champion).p_value == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("examples", [60, 2500])
def test_a_better_model_wins_and_an_equal_one_does_not(examples: int) -> None:
    chance = np.random.default_rng(2)
    champion = chance.gamma(1.0, size=examples)
    better = compare(champion - 0.3 + chance.normal(0, 0.1, examples), champion)
    assert better.better and better.p_value < 0.01 and 0.2 < better.low < better.gain < better.high < 0.4
    worse = compare(champion + 0.3, champion)
    assert not worse.better and "is not smaller (+0.3" in worse.reason
    alike = compare(champion, champion)
    assert not alike.better and not alike.p_value < 1 and "is not smaller (+0 on" in alike.reason


@pytest.mark.parametrize("examples", [60, 2500])
def test_a_gain_has_to_be_more_than_the_least_that_is_asked_for(examples: int) -> None:
    chance = np.random.default_rng(3)
    champion = chance.gamma(1.0, size=examples)
    challenger = champion - 0.3 + chance.normal(0, 0.1, examples)
    assert compare(challenger, champion, min_gain=0.2).better
    too_little = compare(challenger, champion, min_gain=0.5)
    assert not too_little.better and "more than 0.5 is asked for" in too_little.reason
    assert not compare(champion - 0.3, champion, min_gain=0.3).better


@pytest.mark.parametrize("examples", [36, 2500])
@pytest.mark.parametrize("asked", [0.07, 0.08, 0.33, 0.62])
def test_exactly_the_least_gain_is_not_more_than_it_whatever_rounding_says(asked: float, examples: int) -> None:
    champion = np.random.default_rng(7).gamma(1.0, size=examples)
    assert not any(compare(champion + more - asked, champion + more, min_gain=asked).better for more in range(4))


def test_a_challenger_that_is_no_better_wins_as_often_as_the_level_says() -> None:
    chance = np.random.default_rng(4)
    wins = sum(compare(chance.gamma(1.0, size=40), chance.gamma(1.0, size=40), level=0.1).better for _ in range(200))
    assert 8 <= wins <= 35  # of 200 at 0.1: 20, and six standard deviations are 25


def test_luck_is_called_luck() -> None:
    lucky = compare([0.0] * 19 + [1.0], [0.0] * 18 + [1.0] * 2, loss="share of wrong answers")
    assert not lucky.better
    assert "The challenger's share of wrong answers is smaller by 0.05 on 20 examples. But" in lucky.reason
    assert "it may have been lucky" in lucky.reason


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([0.1, 0.2], [0.1]), "challenger has 2 losses and champion has 1"),
        (([0.1], [0.1]), "hold out more examples"),
        (([0.1, float("inf")], [0.1, 0.2]), "challenger has a loss that is not finite"),
        (([0.1, 0.2], [1e308, 1.7e308]), "champion has a loss beyond 1e.100.* clip"),  # their mean is not finite
        ((["a", "b"], [0.1, 0.2]), "challenger has what is no number"),
        (([[0.1], [0.2]], [0.1, 0.2]), r"challenger has the shape \(2, 1\)"),
    ],
)
def test_losses_that_are_none_are_refused(arguments: tuple[list[Any], list[Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compare(*arguments)


@pytest.mark.parametrize(
    "limits", [{"level": 0.0}, {"level": 0.5}, {"level": "x"}, {"min_gain": -1.0}, {"min_gain": float("nan")}]
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        compare([0.1, 0.2], [0.1, 0.2], **limits)


def test_of_many_examples_on_which_models_hardly_differ_the_first_one_does_not_decide() -> None:
    """As of the same model trained twice, but for the order of sums."""
    chance = np.random.default_rng(5)
    losses = chance.random(2500)
    wins = sum(compare(losses, losses + chance.normal(0, 2e-9, 2500)).better for _ in range(100))
    assert wins <= 18  # 5 are expected, and six standard deviations are 13
    assert compare(losses, losses + 1e-9 + chance.normal(0, 2e-9, 2500)).better, "it is better, by little"
