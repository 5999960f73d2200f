"""Buddy cells of GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.papers.baselines.cells import Cell, Cells, cell_gpus
from prefect_gpu.scheduling.placement.kernels.topology import Topology
from tests.support import examples


def cells(*gpus: int) -> Cells:
    return Cells(Topology([0] * len(gpus), [0] * len(gpus), list(gpus)))


def test_a_cell_is_a_power_of_two() -> None:
    assert [cell_gpus(gpus) for gpus in range(10)] == [0, 1, 2, 4, 4, 8, 8, 8, 8, 16]


def test_a_cell_is_split_in_halves_until_it_is_small_enough() -> None:
    node = cells(8)
    assert node.take(0, 2) == Cell(0, 0, 2)
    assert node.free(0) == [Cell(0, 2, 2), Cell(0, 4, 4)]


def test_the_smallest_cell_that_suffices_is_taken() -> None:
    node = cells(8)
    node.take(0, 1)
    assert node.take(0, 3) == Cell(0, 4, 4)
    assert node.take(0, 1) == Cell(0, 1, 1)
    assert node.take(0, 4) is None


def test_free_gpus_that_are_no_buddies_make_no_larger_cell() -> None:
    node = cells(4)
    taken = [node.take(0, 1) for _ in range(4)]
    for cell in (taken[1], taken[2]):
        assert cell is not None
        node.give_back(cell)
    assert node.take(0, 2) is None


def test_six_gpus_are_a_cell_of_four_and_one_of_two() -> None:
    assert cells(6).free(0) == [Cell(0, 0, 4), Cell(0, 4, 2)]


def test_a_cell_cannot_be_given_back_twice_or_from_nowhere() -> None:
    node = cells(4)
    cell = node.take(0, 2)
    assert cell is not None
    node.give_back(cell)
    for wrong in (cell, Cell(0, 4, 2), Cell(0, 3, 2)):
        with pytest.raises(ValueError, match="is not taken"):
            node.give_back(wrong)
    with pytest.raises(ValueError, match="gpus is 0"):
        node.take(0, 0)


@settings(max_examples=examples(1), deadline=None)
@given(gpus=st.integers(1, 16), steps=st.lists(st.tuples(st.booleans(), st.integers(1, 16))))
def test_cells_never_overlap_and_all_merge_again(gpus: int, steps: list[tuple[bool, int]]) -> None:
    node, whole = cells(gpus), cells(gpus)
    taken: list[Cell] = []
    for take, number in steps:
        if take:
            cell = node.take(0, number)
            if cell is not None:
                assert cell.gpus == cell_gpus(number)
                taken.append(cell)
        elif taken:
            node.give_back(taken.pop(number % len(taken)))
        held = [gpu for cell in [*taken, *node.free(0)] for gpu in range(cell.first, cell.first + cell.gpus)]
        assert sorted(held) == list(range(gpus))
    for cell in taken:
        node.give_back(cell)
    assert node.free(0) == whole.free(0)
