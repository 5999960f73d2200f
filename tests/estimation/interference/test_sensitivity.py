"""How much programs slow each other down, from runs side by side."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.estimation_public import pairs as public
from prefect_gpu.estimation.interference import sensitivity
from prefect_gpu.estimation.interference.sensitivity import Party, Sensitivity
from prefect_gpu.estimation.runs import Interval
from tests.components import traces_folder
from tests.support import examples

A, B, C, D = (Party(name) for name in "abcd")
FRAGILE = {"a": 0.3, "b": 0.1, "c": 0.02, "d": 0.2}  # what a neighbour of full pressure costs, as a logarithm
LOUD = {"a": 1.0, "b": 0.2, "c": 1.5, "d": 0.6}


def _true(program: Party, *neighbours: Party) -> float:
    return math.exp(-sum(FRAGILE[program.program] * LOUD[neighbour.program] for neighbour in neighbours))


def _learned(*pairs: tuple[Party, Party], times: int = 1) -> Sensitivity:
    learned = Sensitivity()
    for program, neighbour in pairs * times:
        learned.observe(program, [neighbour], _true(program, neighbour))
    return learned


ALL = tuple(itertools.product((A, B, C, D), repeat=2))


def _width(interval: Interval) -> float:
    return interval.high - interval.low


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_a_ratio_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match=r"ratio of .* is .*: give its step rate"):
        Sensitivity().observe(A, [B], ratio)


def test_alone_nothing_disturbs_and_being_alone_teaches_nothing() -> None:
    learned = Sensitivity()
    learned.observe(A, [], 0.5)
    assert learned.predict(A) == Interval(1.0, 1.0, 1.0)
    assert learned.predict(A, B).median == 1.0


def test_before_anything_is_observed_nothing_is_held_against_a_pair_but_nothing_is_sure() -> None:
    predicted = Sensitivity().predict(A, B)
    assert (predicted.median, predicted.high) == (1.0, 1.0)
    assert predicted.low < 0.7


def test_a_pair_that_was_measured_often_is_what_was_measured() -> None:
    learned = _learned((A, C), times=20)
    predicted = learned.predict(A, C)
    assert predicted.median == pytest.approx(_true(A, C), rel=0.02)
    assert predicted.low < _true(A, C) < predicted.high


def test_a_pair_that_was_not_measured_is_what_both_do_to_others() -> None:
    learned = _learned(*(pair for pair in ALL if pair not in ((A, C), (C, B))), times=2)
    harmful, harmless = learned.predict(A, C), learned.predict(C, B)
    assert harmful.median < 0.85 < 0.95 < harmless.median
    assert _width(learned.predict(A, A)) < _width(harmful)


def test_a_new_program_is_as_others_are_on_average_and_the_interval_says_so() -> None:
    learned = _learned(*ALL)
    new = learned.predict(Party("new"), A)
    assert min(_true(p, A) for p in (A, B, C, D)) < new.median < max(_true(p, A) for p in (A, B, C, D))
    assert new.low < new.median
    assert _width(new) > _width(learned.predict(B, A))


def test_a_placement_that_was_not_measured_is_like_the_others_of_the_two_programs() -> None:
    learned = Sensitivity()
    for gpus in (1, 2):
        learned.observe(Party("a", gpus), [Party("b", gpus)], 0.6)
        learned.observe(Party("c", gpus), [Party("d", gpus)], 0.95)
    assert learned.predict(Party("a", 4), Party("b", 4)).median < 0.75
    assert learned.predict(Party("c", 4), Party("d", 4)).median > 0.85


def test_neighbours_add_up_and_those_measured_together_are_told_apart() -> None:
    learned = Sensitivity()
    for first, second in itertools.combinations((A, B, C), 2):
        for _ in range(10):
            learned.observe(D, [first, second], _true(D, first, second))
    for neighbour in (A, B, C):
        assert learned.predict(D, neighbour).median == pytest.approx(_true(D, neighbour), rel=0.1)
    assert learned.predict(D, A, B, C).median == pytest.approx(_true(D, A, B, C), rel=0.15)


def test_faster_beside_others_than_alone_is_noise() -> None:
    learned = Sensitivity()
    for _ in range(5):
        learned.observe(A, [B], 1.7)
    assert learned.predict(A, B).median == 1.0


def test_only_the_newest_observations_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "MOST_OBSERVATIONS", 10)
    learned = Sensitivity()
    for ratio in [0.3] * 10 + [0.9] * 10:
        learned.observe(A, [B], ratio)
    assert learned.predict(A, B).median == pytest.approx(0.9, abs=0.02)


PARTIES = st.builds(Party, st.sampled_from("ab"), st.integers(0, 1))


@given(
    st.lists(st.tuples(PARTIES, st.lists(PARTIES, max_size=3), st.floats(1e-300, 1e300)), max_size=8),
    PARTIES,
    st.lists(PARTIES, max_size=3),
)
@settings(max_examples=examples(0.4), deadline=None)
def test_a_prediction_is_a_ratio_whatever_was_observed(
    observed: list[tuple[Party, list[Party], float]], program: Party, neighbours: list[Party]
) -> None:
    learned = Sensitivity()
    for own, beside, ratio in observed:
        learned.observe(own, beside, ratio)
    predicted = learned.predict(program, *neighbours)
    assert 0 < predicted.low <= predicted.median <= predicted.high <= 1


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(0.1), deadline=None)
def test_the_order_of_observations_does_not_matter(rng: random.Random) -> None:
    pairs = list(ALL)
    rng.shuffle(pairs)
    assert _learned(*pairs).predict(A, B).median == pytest.approx(_learned(*ALL).predict(A, B).median)


@pytest.mark.needs("traces")
@pytest.mark.slow
def test_public_pairs_are_predicted_better_than_by_means() -> None:
    for name, shares in public.by_pair(traces_folder(), quick=True).items():
        figures = shares["30% measured"]
        assert figures["error"] < 0.75 * figures["mean_of_program"] < figures["mean_of_all"], name
        assert 0.87 <= figures["coverage"] <= 0.99, name
