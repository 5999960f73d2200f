"""What a history says of programs on a network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.estimation.interference.network import Communication, remembered, traffic_of
from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable, Traffic

A, B = Key("a", 4, 2), Key("b", 8, 4)
ONE_NODE = Key("a", 4, 1)


def test_a_pair_that_was_measured_often_is_what_was_measured() -> None:
    [(own, other, slowdown)] = remembered([(A, B, 2.0)] * 20)
    assert (own, other) == (A, B)
    assert slowdown == pytest.approx(2.0, rel=0.02)


def test_one_odd_measurement_does_not_decide() -> None:
    [(_, _, slowdown)] = remembered([(A, B, 1.2)] * 9 + [(A, B, 5.0)])
    assert 1.2 < slowdown < 1.5


def test_nothing_measured_is_nothing_remembered() -> None:
    assert remembered([]) == ()


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.sampled_from([A, B]), st.floats(0.5, 8.0)), max_size=12))
def test_each_pair_is_remembered_once_and_as_something_that_a_table_takes(
    measured: list[tuple[Key, Key, float]],
) -> None:
    found = remembered(measured)
    assert [pair[:2] for pair in found] == sorted({pair[:2] for pair in measured})
    table = SensitivityTable({(own, other): 1 / slowdown for own, other, slowdown in found})
    assert all(0.35 <= table.ratio(own, other) <= 1 for own, other, _ in found)


def test_what_a_user_declared_comes_first_then_the_steps_then_the_link() -> None:
    declared = Communication(A, step_s=3.0, bytes_per_s=2e6, comm_to_comp=0.5)
    spread, alone = Communication(A, step_s=3.0, bytes_per_s=2e6), Communication(ONE_NODE, step_s=2.0)
    assert traffic_of([declared, spread, alone], 4e6) == (("a", Traffic(1e6, 0.5)),)
    assert traffic_of([spread, alone], 4e6) == (("a", Traffic(1e6, 0.5)),)
    assert traffic_of([Communication(A, 4.0, 2e6), alone], 4e6) == (("a", Traffic(1e6, 1.0)),)
    [(_, by_link)] = traffic_of([spread], 4e6)
    assert by_link.comm_to_comp == pytest.approx(1 / 3), "a quarter of the time"
    assert traffic_of([spread]) == (), "the link is unknown"


def test_steps_of_other_batches_or_other_numbers_of_devices_are_not_compared() -> None:
    spread = Communication(A, 3.0, 2e6, batch_size=32)
    assert traffic_of([spread, Communication(ONE_NODE, 2.0, batch_size=64)]) == ()
    assert traffic_of([spread, Communication(Key("a", 2, 1), 2.0, batch_size=32)]) == ()


def test_runs_on_one_node_say_nothing_of_the_bandwidth() -> None:
    assert traffic_of([Communication(ONE_NODE, 2.0, 9e9, comm_to_comp=2.0)], 4e6) == ()


def test_a_step_that_is_no_longer_on_several_nodes_shows_no_communication() -> None:
    runs = [Communication(A, 1.9, 2e6), Communication(ONE_NODE, 2.0)]
    assert traffic_of(runs) == (("a", Traffic(1e6, 0.0)),)
