"""What an elastic run measures of itself on each number of devices, and what may be promised of others."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.runs import STEP_S, TRAINING_S, FinishedRun, Known
from prefect_gpu.estimation.throughput.scaling_curve import speeds_on
from prefect_gpu.estimation.throughput.speeds import Measured, apart_of, assumed, both, bounded, corrected, speeds_of

rates = st.floats(0.01, 1e4)
curves = st.lists(rates, min_size=1, max_size=8)
measurements = st.dictionaries(st.integers(1, 8), rates, max_size=4)


def test_each_number_of_devices_has_its_steps_and_seconds() -> None:
    measured = Measured({})
    measured.begins(1)
    for step in range(1, 12):
        measured.reports(step, 100.0 + step / 10)
    measured.begins(4)  # after a move; the first report of a launch only says where it is
    for step in range(12, 43):
        measured.reports(step, 200.0 + step / 30)
    assert speeds_of(measured.kept) == {1: pytest.approx(10.0), 4: pytest.approx(30.0)}
    again = Measured(measured.kept)  # the next launch
    again.begins(1)
    for step in range(42, 53):
        again.reports(step, 300.0 + step / 20)
    assert speeds_of(again.kept)[1] == pytest.approx(20 / 1.5), "both launches together"


def test_slow_first_steps_repeated_reports_and_steps_done_again_say_nothing() -> None:
    measured = Measured({})
    measured.reports(1, 5.0)
    measured.reports(2, 6.0)
    assert measured.kept == {}, "nobody knows on how many devices"
    measured.begins(2)
    for step, at in ((1, 100.0), (1, 101.0), (11, 102.0), (3, 103.0), (13, 105.0), (23, 104.0)):
        measured.reports(step, at)
    assert measured.kept == {"2": [20.0, 4.0]}


@pytest.mark.parametrize(
    "kept",
    [
        None,
        [1],
        {"x": [100, 1]},
        {"0": [100, 1]},
        {"9" * 30: [100, 1]},
        {"2": [4, 1.0]},
        {"2": [100, 0]},
        {"2": [100, math.inf]},
        {"2": ["a", "b"]},
        {"2": [True, True]},
        {"2": [100]},
        {"2": "10"},
        {2: [100, 1]},
    ],
)
def test_what_is_absurd_or_rests_on_a_few_steps_says_nothing(kept: Any) -> None:
    assert speeds_of(kept) == {}


def test_what_is_assumed_at_first_is_amdahls_law() -> None:
    assert assumed(4) == pytest.approx((1.0, 1.667, 2.143, 2.5), abs=0.001)


def test_a_run_that_got_no_faster_on_more_devices_is_promised_nothing_there() -> None:
    curve = corrected((10.0, 17.0, 22.0, 25.0), {1: 10.0, 2: 9.8})
    assert curve[:2] == (10.0, 9.8)
    assert max(curve[2:]) <= 9.8


def test_a_run_that_is_slower_than_its_likes_is_so_on_any_number_of_devices() -> None:
    assert corrected((10.0, 16.0, 20.0), {1: 5.0}) == pytest.approx((5.0, 8.0, 10.0))


def test_more_devices_add_no_more_than_the_last_ones_did() -> None:
    assert corrected((10.0, 19.0, 28.0, 37.0), {1: 10.0, 2: 12.0}) == pytest.approx((10.0, 12.0, 14.0, 16.0))


def test_between_two_that_were_measured_both_count() -> None:
    _, two, *_ = corrected((10.0, 20.0, 30.0, 40.0), {1: 10.0, 4: 10.0})
    assert two == pytest.approx(10.0), "the geometric mean of 1 and 1/4 of what was learned"


def test_where_it_cannot_run_it_still_cannot() -> None:
    assert corrected((0.0, 8.0, 12.0), {2: 4.0}) == pytest.approx((0.0, 4.0, 6.0))
    assert corrected((), {2: 4.0}) == ()


@given(curves, measurements)
def test_its_own_speeds_count_unless_fewer_devices_were_as_fast(learned: list[float], own: dict[int, float]) -> None:
    curve = corrected(learned, own)
    assert len(curve) == len(learned)
    falls = [b for a, b in zip(sorted(own), sorted(own)[1:], strict=False) if own[b] <= own[a]]
    for count, rate in own.items():
        if count <= len(curve) and not any(fall < count for fall in falls):
            assert curve[count - 1] == pytest.approx(rate)
    for fall in falls:
        assert all(rate <= own[fall] * (1 + 1e-9) for rate in curve[fall - 1 :])


@given(curves, measurements)
def test_bounds_only_ever_lower_a_curve(curve: list[float], measured: dict[int, float]) -> None:
    assert all(low <= high for low, high in zip(bounded(curve, measured), curve, strict=True))


def ended(number: int, gpus: int, rate: float, width: int = 64, **speeds: float) -> FinishedRun:
    known = Known("train", {"width": width}, {"steps": 1000}, gpus=gpus)
    own = {int(count.removeprefix("on_")): speed for count, speed in speeds.items()}
    return FinishedRun(
        f"r{number}", known, {STEP_S: 1 / rate, TRAINING_S: 1000 / rate}, ended_at=number, steps=1000, speeds=own
    )


def told(runs: list[FinishedRun], max_gpus: int = 6, width: int = 64) -> tuple[float, ...]:
    return Estimator(runs).throughput(Known("train", {"width": width}), max_gpus)


def test_from_one_number_of_gpus_the_others_follow_by_the_usual_form_cautiously() -> None:
    one, two, _, four, *_ = told([ended(0, 1, 10.0)])
    assert one == pytest.approx(10.0, rel=0.05)
    assert 1.5 < two / one < 1.9 and 2.0 < four / one < 3.0


def test_a_run_that_was_resized_tells_of_all_the_numbers_that_it_had() -> None:
    # It ended on four; what it did on one and two is told by its own speeds alone.
    curve = told([ended(0, 4, 30.0, on_1=10.0, on_2=18.0, on_4=30.0)])
    assert curve[:4] == pytest.approx((10.0, 18.0, 24.5, 30.0), rel=0.06)


def test_how_a_program_scales_holds_for_other_parameters() -> None:
    runs = [ended(at, 1, 640.0 / width, width) for at, width in enumerate([32, 64, 128, 256] * 4)]
    runs += [ended(20, 1, 10.0, 64, on_1=10.0, on_4=12.0)]
    one, *_, four = told(runs, 4, width=256)
    assert one == pytest.approx(2.5, rel=0.1)
    assert four / one == pytest.approx(1.2, rel=0.1)


def test_a_program_that_was_no_faster_on_more_is_not_promised_to_be() -> None:
    curve = told([ended(at, 1, 10.0, on_1=10.0, on_2=9.0) for at in range(3)])
    assert all(rate <= curve[0] for rate in curve[1:])


def test_who_tells_of_a_number_is_counted() -> None:
    model = Estimator([ended(0, 4, 30.0, on_1=10.0, on_4=30.0), ended(1, 1, 10.0)]).programs["train"]
    assert [speed.runs for speed in speeds_on(model, Known("train", {"width": 64}), 5)] == [2, 0, 0, 1, 0]
    assert speeds_on(model, Known("train"), 0) == ()


def test_what_was_measured_on_several_nodes_is_kept_apart_and_says_what_to_expect_on_one() -> None:
    measured = Measured({})
    for devices, nodes, rate in ((1, 1, 10.0), (4, 2, 20.0), (4, 3, 20.0)):
        measured.begins(devices, nodes)
        for step in range(20):
            measured.reports(step, at=100.0 + step / rate)
    assert set(measured.kept) == {"1", "4/2", "4/3"}
    own, apart = speeds_of(measured.kept), apart_of(measured.kept)
    assert own == {1: pytest.approx(10.0)} and apart == {4: pytest.approx(20.0)}
    together, spread = both(assumed(4), assumed(4, 0.3), own, apart)
    assert together[0] == spread[0] == pytest.approx(10.0) and spread[3] == pytest.approx(20.0)
    assert together[3] == pytest.approx(20.0 * (1.9 / 1.6)), "on one node it is expected to lose less"


def test_several_nodes_are_learned_from_runs_that_were_there() -> None:
    """On two nodes it did half of what it does on one; the next run of the program is told so."""

    def run(number: int) -> FinishedRun:
        of = ended(number, 4, 15.0)
        return replace(of, apart={4: 15.0}, speeds={1: 10.0, 4: 30.0}, nodes=2)

    estimator = Estimator([run(number) for number in range(4)])
    known = Known("train", {"width": 64})
    one, apart = (estimator.throughput(known, 4, apart=wide) for wide in (False, True))
    assert one[3] == pytest.approx(30.0, rel=0.1) and apart[3] == pytest.approx(15.0, rel=0.1)
    assert one[0] == pytest.approx(10.0, rel=0.1) == apart[0]


@given(*[st.dictionaries(st.integers(1, 6), st.floats(0.1, 100.0), max_size=3)] * 2)
def test_its_own_speeds_count_on_one_node_and_on_several(own: dict[int, float], apart: dict[int, float]) -> None:
    together, spread = both(assumed(6), assumed(6, 0.3), own, apart)
    assert len(together) == len(spread) == 6 and min(*together, *spread) >= 0
    assert all(together[count - 1] <= rate * (1 + 1e-9) for count, rate in own.items())
    assert all(spread[count - 1] <= rate * (1 + 1e-9) for count, rate in apart.items())
