"""What the rest of a node is worth, by hand, and what holds for all of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.placement.kernels.device_values import device_values
from prefect_gpu.scheduling.placement.kernels.fragments import Ask, Fragments, Rest, holds

ONE, HALF = Ask(0, 0, 1000, 1), Ask(0, 0, 500, 1)
EIGHT = Ask(0, 0, 1000, 8)


def rest(*milli: int, cpu: int = 10**6, memory: int = 10**6, model: str = "G2") -> Rest:
    return Rest(model, cpu, memory, milli)


def test_a_part_that_somebody_fills_is_worth_its_size_and_one_that_nobody_needs_nothing() -> None:
    """Of ten devices, 810 of each are asked for, and as good as nothing of 190: of those, plenty of room is left."""
    values = device_values({810: 20, 190: 1}, 10)
    assert (values[100], values[81], values[19]) == pytest.approx((810, 810, 0))
    plenty = device_values({810: 20, 190: 20}, 10)
    assert (plenty[100], plenty[81], plenty[19]) == pytest.approx((1000, 810, 190))


def test_parts_that_go_together_are_worth_it_together() -> None:
    values = device_values({600: 10, 400: 10}, 5)
    assert values[100] == pytest.approx(1000) and values[60] == pytest.approx(600) and values[59] == values[40]


@given(st.dictionaries(st.sampled_from([50, 120, 190, 470, 810, 1000]), st.floats(0.1, 100), max_size=5))
def test_values_rise_and_are_no_more_than_the_size(demand: dict[int, float]) -> None:
    values = device_values(demand, 20)
    assert all(later >= sooner - 1e-6 for sooner, later in pairwise(values))
    assert all(value <= 10 * size + 1e-3 for size, value in enumerate(values))


def test_half_a_device_is_taken_of_one_that_is_begun() -> None:
    fragments = Fragments({ONE: 99, HALF: 1}, {"G2": 8})
    assert fragments.loss(rest(500, 1000), HALF)[1] == 0
    assert fragments.loss(rest(500, 1000), HALF)[0] < fragments.loss(rest(1000, 1000), HALF)[0]


def test_whole_nodes_stay_whole_where_somebody_needs_them() -> None:
    full, begun = rest(*[1000] * 8), rest(*[0] * 4, *[1000] * 4)
    fragments = Fragments({ONE: 99, EIGHT: 1}, {"G2": 64})
    assert fragments.loss(begun, ONE)[0] < fragments.loss(full, ONE)[0]


def test_who_would_leave_devices_without_cores_goes_elsewhere() -> None:
    """Each job needs four cores; of two nodes, one has cores for the devices that are left, and no more."""
    job = Ask(4000, 0, 1000, 1)
    fragments = Fragments({job: 1}, {"G2": 8})
    light = Ask(4000, 0, 0, 0)
    assert fragments.loss(rest(1000, 1000, cpu=8000), light)[0] > 0
    assert fragments.loss(rest(1000, 1000, cpu=12000), light)[0] == 0


def test_a_scarce_model_has_a_price_also_where_only_a_set_of_models_is_scarce() -> None:
    devices = {"A": 2, "B": 2, "C": 4}
    either = Ask(0, 0, 1000, 1, frozenset({"A", "B"}))
    fragments = Fragments({ONE: 1, either: 1}, devices)
    assert [fragments.price(model) for model in "ABC"] == [1.0, 1.0, 0.0]
    quarter = Fragments({ONE: 3, Ask(0, 0, 1000, 1, frozenset({"C"})): 1}, devices)
    assert [quarter.price(model) for model in "ABC"] == [0.0, 0.0, 0.5]
    assert Fragments({ONE: 1}, devices).loss(rest(1000), ONE)[0] < quarter.loss(rest(1000, model="C"), ONE)[0]


def test_how_many_jobs_of_several_devices_a_node_holds() -> None:
    two = Ask(3000, 100, 1000, 2)
    assert holds(rest(500, 1000, 1000, 1000, 1000), two) == 2
    assert holds(rest(1000, 1000, 1000, 1000, cpu=5000), two) == 1
    assert holds(rest(1000, 1000, 1000, 1000, memory=99), two) == 0


def test_nothing_expected_is_worth_nothing() -> None:
    assert Fragments({}, {"G2": 8}).worth(rest(1000)) == 0.0
    assert Fragments({Ask(1000, 0, 0, 0): 1}, {"G2": 8}).worth(rest(1000)) == 0.0


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no device for"):
        Fragments({ONE: 1}, {"G2": 1}).loss(rest(500), ONE)


ASKS = st.builds(
    Ask, st.integers(0, 8000), st.integers(0, 8000), st.sampled_from([50, 470, 810, 1000]), st.just(1)
) | st.builds(Ask, st.integers(0, 8000), st.integers(0, 8000), st.just(1000), st.sampled_from([2, 4]))


@given(
    st.lists(ASKS, min_size=1, max_size=6),
    st.lists(st.integers(0, 1000), min_size=1, max_size=8),
    st.integers(0, 40_000),
)
def test_a_state_is_worth_what_can_be_used_and_the_same_each_time(asks: list[Ask], milli: list[int], cpu: int) -> None:
    expected = dict.fromkeys(asks, 1.0)
    first, second = (Fragments(expected, {"G2": 16}) for _ in range(2))
    state = rest(*sorted(milli), cpu=cpu, memory=40_000)
    assert first.worth(state) == second.worth(state) == first.worth(state)
    assert 0 <= first._filled(state) <= sum(milli)
    for ask in asks:
        fits = sum(left >= ask.milli for left in milli) >= ask.gpus and cpu >= ask.cpu and ask.memory <= 40_000
        if fits:
            loss, device = first.loss(state, ask)
            after = state.less(ask, device)
            assert min(after.milli) >= 0 and sum(state.milli) - sum(after.milli) == ask.milli * ask.gpus
            assert list(after.milli) == sorted(after.milli)
            assert loss == pytest.approx(
                first.worth(state) - first.worth(after) + first.price("G2") * ask.milli * ask.gpus
            )
