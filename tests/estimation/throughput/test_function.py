"""f_M(R): the form, what is learned over programs, and predictions on resources that were not tried."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.estimation_public import gpus as public
from prefect_gpu.estimation.runs import Interval
from prefect_gpu.estimation.throughput import NO_PRIOR, Setup, Throughput, Tried, learn_prior
from prefect_gpu.estimation.throughput import step_time as form
from prefect_gpu.estimation.throughput.setups import Columns, merged
from prefect_gpu.scheduling.elastic.listing1 import ElasticJob, assign
from prefect_gpu.scheduling.model.jobs import Estimate
from tests.components import traces_folder
from tests.support import examples

KINDS: dict[str | None, int] = {None: 0, "fast": 1, "slow": 2}


def _true(setup: Setup, log_shape: Iterable[float] = (-2.5, -2.5, -1.0, -2.0, -1.0, 0.7), step_s: float = 2.0) -> float:
    """Steps per second of a made-up program, of a usual batch of 64; the slow kind takes three times as long."""
    parameters = np.array([math.log(step_s), *log_shape, 0.0, 0.0, math.log(3.0)])
    return float(np.exp(-form.log_step_time(parameters, Columns.of([setup], KINDS, 64.0))[0]))


def _tried(*setups: Setup, **true: float) -> list[Tried]:
    return [Tried(setup, _true(setup, **true)) for setup in setups]  # type: ignore[arg-type]


def _on(gpus: int, per_node: int = 8, batch_size: float = 64.0, kind: str | None = None) -> Setup:
    return Setup(gpus, -(-gpus // per_node), kind, batch_size)


def _factor(interval: Interval) -> float:
    return interval.high / interval.low


SHAPES = st.tuples(*(st.floats(mean - 0.8, mean + 0.8) for mean in (-2.5, -2.5, -1.0, -2.0, -1.0, 0.7)))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Setup(0), "gpus is 0"),
        (lambda: Setup(2, 3), "nodes is 3 with 2 GPUs"),
        (lambda: Setup(batch_size=0.0), "batch_size is 0.0"),
        (lambda: Setup(batch_size=math.nan), "batch_size is nan"),
        (lambda: Tried(Setup(), 0.0), "steps_per_s is 0.0: leave out"),
        (lambda: Tried(Setup(), math.inf), "steps_per_s is inf"),
        (lambda: Tried(Setup(), 1.0, 0), "runs is 0"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(make: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()  # type: ignore[operator]


def test_measurements_of_one_setup_are_averaged_as_factors_and_the_latest_setups_kept() -> None:
    two, one = merged([Tried(_on(1), 1.0), Tried(_on(2), 3.0), Tried(_on(1), 8.0, runs=2)])
    assert (two.setup, two.runs, two.steps_per_s) == (_on(2), 1, pytest.approx(3.0))
    assert (one.setup, one.runs) == (_on(1), 3)
    assert one.steps_per_s == pytest.approx(4.0)
    many = merged(Tried(_on(1, batch_size=float(size)), 1.0) for size in range(1, 100))
    assert len(many) == 64
    assert many[-1].setup.batch_size == 99.0


@given(SHAPES, st.integers(1, 64), st.sampled_from((1, 2, 4, 8)))
@settings(max_examples=examples(0.5))
def test_the_form_is_at_most_linear_and_slower_on_larger_batches(
    shape: tuple[float, ...], gpus: int, node: int
) -> None:
    rate = _true(_on(gpus, node), shape)
    assert rate <= gpus * _true(_on(1), shape) * (1 + 1e-9)
    assert _true(_on(gpus, node, 128.0), shape) <= rate


@given(SHAPES)
@settings(max_examples=examples(0.5))
def test_within_a_node_the_form_rises_to_one_best_number_of_gpus_and_falls_behind_it(shape: tuple[float, ...]) -> None:
    rates = [_true(_on(gpus, 64), shape) for gpus in range(2, 65)]
    best = rates.index(max(rates))
    assert rates[: best + 1] == sorted(rates[: best + 1])
    assert rates[best:] == sorted(rates[best:], reverse=True)


@given(SHAPES)
@settings(max_examples=examples(0.15), deadline=None)
def test_three_counts_tell_what_lies_between_them(shape: tuple[float, ...]) -> None:
    function = Throughput([Tried(_on(gpus), _true(_on(gpus), shape)) for gpus in (1, 4, 16)])
    for gpus in (2, 3, 6, 12):
        predicted = function.predict(_on(gpus))
        assert predicted.low <= _true(_on(gpus), shape) <= predicted.high
        assert _factor(predicted) < 4.0


def test_it_passes_close_to_what_was_measured_even_where_no_form_does() -> None:
    rates = {1: 0.034, 2: 0.072, 4: 0.143, 8: 0.194, 16: 0.360, 32: 0.489, 64: 0.469}  # BERT on T4s, as published
    function = Throughput(Tried(_on(gpus, 4), rate) for gpus, rate in rates.items())
    for gpus, rate in rates.items():
        assert function.predict(_on(gpus, 4)).median == pytest.approx(rate, rel=0.06)


@given(st.lists(st.floats(0.2, 5.0), min_size=3, max_size=3), st.integers(2, 64))
@settings(max_examples=examples(0.15), deadline=None)
def test_no_rate_is_more_than_linear_whatever_was_measured(noise: list[float], gpus: int) -> None:
    tried = [Tried(_on(count), factor * _true(_on(count))) for count, factor in zip((1, 4, 16), noise, strict=True)]
    function = Throughput(tried)
    each = max(function.predict(_on(1)).median, *(one.steps_per_s / one.setup.gpus for one in tried))
    assert function.predict(_on(gpus)).median <= gpus * each * (1 + 1e-9)


def test_the_further_from_what_was_tried_the_wider() -> None:
    function = Throughput(_tried(_on(1), _on(2), _on(4)))
    widths = [_factor(function.predict(_on(gpus))) for gpus in (2, 8, 16, 64)]
    assert widths == sorted(widths)
    assert widths[0] < 1.3
    assert widths[-1] > 5.0
    assert _factor(function.predict(_on(2, batch_size=4096.0))) > widths[0]


def test_more_runs_of_a_setup_make_it_surer() -> None:
    once, often = (Throughput([Tried(_on(1), 1.0, runs)]).predict(_on(1)) for runs in (1, 50))
    assert _factor(often) < _factor(once) < 1.3


def test_the_same_measurements_in_any_order_give_the_same_function() -> None:
    tried = _tried(*(_on(gpus, batch_size=size) for gpus in (1, 2, 4, 16) for size in (32.0, 64.0)))
    asked = [_on(gpus) for gpus in (1, 3, 8, 32)]
    expected = Throughput(tried).predict_all(asked)
    assert Throughput(tried).predict_all(asked) == expected
    random.Random(1).shuffle(tried)
    for shuffled, interval in zip(Throughput(tried).predict_all(asked), expected, strict=True):
        assert dataclasses.astuple(shuffled) == pytest.approx(dataclasses.astuple(interval), rel=1e-3)


def test_nothing_tried_is_known_to_no_order_of_magnitude_and_not_handed_to_the_scheduler() -> None:
    function = Throughput()
    assert _factor(function.predict(_on(4))) > 1e4
    assert function.as_tuple(8) == ()


def test_the_scheduler_gets_a_cautious_rate_for_each_count() -> None:
    function = Throughput(_tried(_on(1), _on(2), _on(4)))
    rates = function.as_tuple(8)
    assert Estimate(throughput=rates).throughput == rates
    assert len(rates) == 8
    for gpus, rate in enumerate(rates, 1):
        predicted = function.predict(_on(gpus))
        assert predicted.low < rate < predicted.median
    assert rates[3] == pytest.approx(function.predict(_on(4)).median, rel=0.06)
    # Nobody has seen the one on more than one GPU: more are not handed out on a guess while the other can use them.
    guess = Throughput(_tried(_on(1)))
    proven = Throughput(_tried(_on(1), _on(4), _on(8), log_shape=(-6.0, -6.0, -1.0, -6.0, -1.0, 0.7)))
    jobs = [ElasticJob(name, 1, 8, (0.0, *one.as_tuple(8))) for name, one in (("guess", guess), ("proven", proven))]
    given_gpus = assign(jobs, 8)
    assert given_gpus["guess"] < given_gpus["proven"]


def test_kinds_of_gpus_differ_by_what_other_programs_saw() -> None:
    others = [
        _tried(
            _on(1, kind="fast"), _on(1, kind="slow"), log_shape=(-2.0 - i, -2.5, -1.0, -2.0, -1.0, 0.7), step_s=i + 1.0
        )
        for i in range(5)
    ]
    prior = learn_prior(others)
    assert prior.kinds["slow"] - prior.kinds["fast"] == pytest.approx(math.log(3.0), rel=0.1)
    function = Throughput(_tried(_on(1, kind="fast")), prior)
    there = function.predict(_on(1, kind="slow"))
    assert there.median == pytest.approx(_true(_on(1, kind="slow")), rel=0.15)
    assert there.low < _true(_on(1, kind="slow")) < there.high
    known, new = function.predict(_on(1, kind="fast")), function.predict(_on(1, kind="newest"))
    assert _factor(known) < _factor(there) < _factor(new)


def test_programs_that_scale_badly_make_others_expected_to() -> None:
    counts = [_on(gpus) for gpus in (1, 2, 4, 8, 16, 32)]
    poor = learn_prior([_tried(*counts, log_shape=(-2.5, 0.5, -1.0, 1.0, -1.0, 0.7))] * 6)
    good = learn_prior([_tried(*counts, log_shape=(-4.0, -5.0, -1.0, -5.0, -1.0, 0.7))] * 6)
    rates = [Throughput(_tried(_on(1)), prior).predict(_on(8)).median for prior in (poor, NO_PRIOR, good)]
    assert rates == sorted(rates)
    assert rates[2] > 2 * rates[0]
    assert learn_prior([[]]) == NO_PRIOR


def test_a_program_on_one_gpu_says_nothing_of_synchronising() -> None:
    prior = learn_prior([_tried(_on(1))] * 20)
    assert prior.programs == 20
    assert prior.shape[1:5] == pytest.approx(NO_PRIOR.shape[1:5], abs=1e-3)
    assert prior.shape_std[1:5] == pytest.approx(NO_PRIOR.shape_std[1:5], rel=1e-2)


@given(
    st.lists(
        st.builds(
            Tried,
            st.builds(
                Setup,
                st.integers(1, 10**9),
                st.just(1),
                st.sampled_from((None, "a", "b")),
                st.sampled_from((None, 1e-300, 1.0, 1e12, 1e300)),
            ),
            st.floats(1e-300, 1e300),
            st.integers(1, 10**6),
        ),
        max_size=6,
    )
)
@settings(max_examples=examples(0.15), deadline=None)
def test_absurd_measurements_give_intervals_all_the_same(tried: list[Tried]) -> None:
    function = Throughput(tried, learn_prior([tried]))
    for setup in (Setup(), Setup(64, 8, "a", 1e12), Setup(3, 3, "c", 1e-12)):
        predicted = function.predict(setup)
        assert 0 < predicted.low <= predicted.median <= predicted.high < math.inf


@pytest.mark.needs("traces")
@pytest.mark.slow
def test_public_gpu_tables_are_predicted_from_three_counts() -> None:
    result = public.by_gpus(traces_folder() / "pkusys-ElasticFlow", quick=True)["rules"]["1, 4, 16"]
    result.pop("parabola")
    for figures in result.values():
        assert figures["predictions"] == 91
        assert figures["median"] <= 0.10
        assert 0.87 <= figures["coverage"] <= 0.97


@pytest.mark.needs("traces")
def test_public_placements_are_predicted_from_three() -> None:
    figures = public.by_placement(traces_folder() / "pkusys-ElasticFlow" / "pollux_traces", quick=True)
    assert figures["1 GPU, a full node, 1 on each of 4"]["median"] <= 0.10
