"""The set that is worth most, and where it goes: against all sets there are, and against what must never happen."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.preemption.best_set import best_set, blocks_of, value
from prefect_gpu.scheduling.preemption.seating import Seating, Spots

worths = st.integers(1, 50).map(float)
widths = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 4]), worths), max_size=9)


def table(jobs: list[tuple[int, float]], levels: int) -> list[list[tuple[float, str]]]:
    found: list[list[tuple[float, str]]] = [[] for _ in range(levels)]
    for number, (level, worth) in enumerate(jobs):
        if level < levels:
            found[level].append((worth, f"job-{number}"))
    return [sorted(entries, key=lambda entry: -entry[0]) for entries in found]


@given(widths, st.integers(0, 3), st.integers(0, 1))
def test_no_set_that_fits_is_worth_more(jobs: list[tuple[int, float]], nodes: int, half: int) -> None:
    free = [4] * nodes + [2] * half
    blocks = blocks_of(free, 4)
    by_level = table(jobs, len(blocks))
    worth = {name: worth for entries in by_level for worth, name in entries}
    width = {name: 1 << level for level, entries in enumerate(by_level) for _, name in entries}

    def fits(names: tuple[str, ...]) -> bool:
        left = list(blocks)  # aligned blocks: the widest first, each from the smallest block that holds it
        for name in sorted(names, key=lambda name: -width[name]):
            level = width[name].bit_length() - 1
            at = next((at for at in range(level, len(left)) if left[at]), None)
            if at is None:
                return False
            left[at] -= 1
            for below in range(level, at):
                left[below] += 1
        return True

    chosen = best_set(by_level, blocks)
    assert fits(tuple(chosen)) and len(set(chosen)) == len(chosen)
    every = (names for count in range(len(worth) + 1) for names in combinations(sorted(worth), count))
    best = max((sum(map(worth.__getitem__, names)) for names in every if fits(names)), default=0.0)
    assert sum(map(worth.__getitem__, chosen)) == best
    assert best_set(by_level, blocks) == chosen


def test_blocks_are_those_of_nodes_and_of_what_is_left_on_them() -> None:
    assert blocks_of([8, 8, 8, 5, 2], 8) == [1, 1, 1, 1, 1]
    assert blocks_of([], 8) == [0, 0, 0]


def test_little_work_counts_and_so_do_busy_devices() -> None:
    assert value(1, 100.0) > value(1, 101.0)
    assert value(2, 50.0) > value(1, 100.0), "as much work, on twice the devices"
    assert value(1, 0.0) == value(1, 1.0) < 2.0, "about to end: much, but not all"


rows = st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.booleans(), st.booleans()), max_size=4)


@given(st.lists(rows, min_size=1, max_size=5), st.lists(st.sampled_from([1, 2, 4, 8, 12]), max_size=5))
def test_whatever_is_planned_fits_and_stops_nobody_in_vain(
    on_nodes: list[list[tuple[int, bool, bool]]], waiting: list[int]
) -> None:
    free: dict[int, int] = {}
    stays: dict[str, Spots] = {}
    leaves: dict[str, Spots] = {}
    movable: set[str] = set()
    at: dict[str, tuple[int, int]] = {}
    for node, row in enumerate(on_nodes):
        left = 4
        for number, (width, goes_on, moves) in enumerate(row):
            name = f"{node}.{number}"
            if width > left:
                continue
            left -= width
            at[name] = (node, width)
            (stays if goes_on else leaves)[name] = [(node, width)]
            if goes_on and moves:
                movable.add(name)
        free[node] = left
    seating = Seating(free, stays, leaves, movable)
    for number, width in enumerate(sorted(waiting, reverse=True)):
        whole, rest = divmod(width, 4) if width > 4 else (1, 0)
        seating.start(f"new-{number}", whole, min(width, 4), rest)
    seats = seating.finish()
    assert set(seats.stops) <= set(leaves), "nobody else is stopped"
    assert set(seats.moves) <= movable, "nobody else moves"

    def used(stopped: set[str]) -> dict[int, int]:
        on = dict.fromkeys(free, 0)
        for name, (node, width) in at.items():
            if name not in stopped:
                on[seats.moves.get(name, node)] += width
        for spots in seats.starts.values():
            assert len({node for node, _ in spots}) == len(spots), "each part has a node of its own"
            for node, devices in spots:
                on[node] += devices
        return on

    held = {node: free[node] + sum(w for n, w in at.values() if n == node) for node in free}
    assert all(count <= held[node] for node, count in used(set(seats.stops)).items())
    for name in seats.stops:
        others = used(set(seats.stops) - {name})
        assert any(count > held[node] for node, count in others.items()), f"{name} need not go"
    for number, width in enumerate(sorted(waiting, reverse=True)):
        spots = seats.starts.get(f"new-{number}")
        assert spots is None or sum(devices for _, devices in spots) == width, "whole or not at all"


def test_the_fewest_devices_move_and_nobody_who_is_not_in_the_way() -> None:
    seating = Seating(
        {0: 1, 1: 2, 2: 2}, {"a": [(0, 1)], "b": [(0, 2)], "c": [(1, 2)], "d": [(2, 2)]}, {}, {"a", "b", "c", "d"}
    )
    assert seating.start("wide", 1, 4)
    seats = seating.finish()
    assert len(seats.moves) == 1 and not seats.stops and set(seats.moves) <= {"c", "d"}
