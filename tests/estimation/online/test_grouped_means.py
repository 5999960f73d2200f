"""Means of groups that lean on the groups around them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.estimation.online import grouped_means
from prefect_gpu.estimation.online.grouped_means import GroupedMeans, Prediction

VALUES = st.floats(-50, 50)
WEIGHTS = st.floats(1e-6, 1)
SAMPLES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), VALUES, WEIGHTS), min_size=1, max_size=30)


def _filled(samples: list[tuple[str, int, float, float]], prior_within: float = 1.0) -> GroupedMeans:
    means = GroupedMeans(2, prior_within)
    for outer, inner, value, weight in samples:
        means.add((outer, inner), value, weight)
    return means


def _predicted(means: GroupedMeans, outer: str, inner: int = 0) -> Prediction:
    prediction = means.predict((outer, inner))
    assert prediction is not None
    return prediction


def test_nothing_is_expected_before_the_first_value() -> None:
    assert GroupedMeans(2, 1.0).predict(("a", 0)) is None


def test_the_narrowest_known_group_answers() -> None:
    means = _filled([("a", 0, 5.0, 1), ("a", 0, 5.0, 1), ("a", 1, 7.0, 1), ("b", 0, 1.0, 1)])
    expected = {
        ("a", 0): (2, 2),
        ("a", 1): (1, 2),
        ("a", 2): (3, 1),
        ("b", 0): (1, 2),
        ("b", 1): (1, 1),
        ("c", 0): (4, 0),
    }
    assert {place: _predicted(means, *place)[2:] for place in expected} == expected  # members, depth


def test_groups_of_like_values_are_trusted_and_groups_that_differ_by_chance_are_not() -> None:
    like = _filled([(name, 0, level, 1) for name, level in zip("abc", (1.0, 5.0, 9.0), strict=True) for _ in range(20)])
    assert _predicted(like, "c").mean == pytest.approx(9.0, abs=0.1)
    like.add(("d", 0), 20.0)
    assert _predicted(like, "d").mean == pytest.approx(20.0, abs=0.5)  # one is enough

    chance = random.Random(1)
    noise = _filled([(f"{index % 40}", 0, chance.gauss(0, 3), 1) for index in range(400)])
    noise.add(("d", 0), 9.0)
    assert abs(_predicted(noise, "d").mean) < 3.0


def test_a_value_that_tells_little_moves_little() -> None:
    means = _filled([("a", 0, 1.0, 1), ("a", 0, 1.0, 1), ("a", 0, 9.0, 1e-3)])
    assert _predicted(means, "a").mean == pytest.approx(1.0, abs=0.02)


def test_the_spread_of_like_values_is_learned() -> None:
    chance = random.Random(2)
    means = _filled([("a", 0, chance.gauss(4, 0.5), 1) for _ in range(2000)])
    assert math.sqrt(_predicted(means, "a").variance) == pytest.approx(0.5, rel=0.05)
    means = _filled([("a", 0, chance.gauss(4, 0.5 / math.sqrt(weight)), weight) for weight in [1, 0.1, 0.01] * 700])
    assert math.sqrt(_predicted(means, "a").variance) == pytest.approx(0.5, rel=0.05)  # that of a value of weight 1


@given(SAMPLES, st.randoms(use_true_random=False), st.sampled_from("abcd"), st.integers(0, 3))
def test_the_order_of_values_does_not_matter(
    samples: list[tuple[str, int, float, float]], chance: random.Random, outer: str, inner: int
) -> None:
    shuffled = samples.copy()
    chance.shuffle(shuffled)
    assert _predicted(_filled(samples), outer, inner) == pytest.approx(
        _predicted(_filled(shuffled), outer, inner), rel=1e-6, abs=1e-6
    )


@given(SAMPLES, VALUES)
def test_values_that_all_move_move_the_mean_and_not_the_spread(
    samples: list[tuple[str, int, float, float]], by: float
) -> None:
    here = _predicted(_filled(samples), "a")
    there = _predicted(_filled([(outer, inner, value + by, weight) for outer, inner, value, weight in samples]), "a")
    assert there.mean == pytest.approx(here.mean + by, abs=1e-6)
    assert there.variance == pytest.approx(here.variance, rel=1e-6, abs=1e-6)
    assert there[2:] == here[2:]


@given(SAMPLES, st.floats(0.01, 10))
def test_a_mean_lies_among_the_values_and_its_variance_is_positive(
    samples: list[tuple[str, int, float, float]], prior_within: float
) -> None:
    means = _filled(samples, prior_within)
    values = [value for _, _, value, _ in samples]
    for outer in "abcd":
        found = _predicted(means, outer)
        assert min(values) - 1e-9 <= found.mean <= max(values) + 1e-9
        assert 0 < found.variance < math.inf


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_means, "MOST_GROUPS", 5)
    means = GroupedMeans(2, 1.0)
    for index in range(50):
        means.add((str(index), 0), float(index))
    assert _predicted(means, "3").depth == 2  # one of the first
    assert _predicted(means, "30")[2:] == (50, 0)  # counted with all
    assert len(means) == 50
    assert max(len(width.groups) for width in means._widths) == 5
