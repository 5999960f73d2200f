"""Which jobs share GPUs: worth, packing, and groups as tables and properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prefect_gpu.papers.muri.gang_packing import Packing
from prefect_gpu.papers.muri.grouping import form_groups, worths
from prefect_gpu.papers.muri.interleaving import Interleaving, Profile
from tests.support import examples

MODEL = Interleaving()
LOADER = MODEL.number(Profile(490, 446, 8, 0))
COMPUTER = MODEL.number(Profile(426, 0.6, 410, 0))
MIXED = MODEL.number(Profile(214, 82, 75, 66))
SYNCER = MODEL.number(Profile(260, 0.5, 166, 133))


@pytest.mark.parametrize(
    ("name", "gpus", "profiles", "nodes", "expected"),
    [
        ("nothing waits, nobody shares", [4, 4], [LOADER, COMPUTER], [8], [(0,), (1,)]),
        ("free GPUs elsewhere, nobody shares", [8, 8], [LOADER, COMPUTER], [8, 8], [(0,), (1,)]),
        ("complements share when GPUs are short", [8, 8], [LOADER, COMPUTER], [8], [(0, 1)]),
        ("two of a kind do not", [8, 8], [COMPUTER, COMPUTER], [8], [(0,)]),
        ("sizes do not mix", [8, 4], [LOADER, COMPUTER], [8], [(0,)]),
        ("the waiting job joins its complement", [4, 4, 4], [LOADER, COMPUTER, COMPUTER], [8], [(0, 2), (1,)]),
        ("wide groups come first", [1, 8], [LOADER, LOADER], [8, 1], [(1,), (0,)]),
        ("a gang over two nodes", [12, 4], [LOADER, LOADER], [8, 8], [(0,), (1,)]),
        (
            "what does not fit wide ones first keeps the order of service",
            [3, 3, 2, 4, 2, 2],
            [LOADER] * 6,
            [8, 8],
            [(0,), (1,), (2,), (3,), (4,), (5,)],
        ),
        ("what fits nowhere is left out", [32, 1], [LOADER, LOADER], [8], [(1,)]),
        ("no GPUs", [1], [LOADER], [], []),
        ("no jobs", [], [], [8], []),
    ],
)
def test_groups(
    name: str, gpus: list[int], profiles: list[int], nodes: list[int], expected: list[tuple[int, ...]]
) -> None:
    assert form_groups(gpus, profiles, nodes, MODEL) == expected, name


jobs = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4, 8, 12, 16]), st.sampled_from([LOADER, COMPUTER, MIXED, SYNCER])), max_size=30
)
nodes = st.sampled_from([[8], [8, 8], [8, 8, 8, 8], [4, 8], [3, 5, 8]])


@settings(max_examples=examples(0.6), deadline=None)
@given(jobs, nodes, st.sampled_from([0, 50, 5000]))
@example([(3, LOADER), (2, LOADER), (3, LOADER), (4, LOADER), (4, LOADER)], [3, 5, 8], 0)
@example([(3, LOADER), (3, LOADER), (2, LOADER), (4, LOADER), (2, LOADER), (2, LOADER), (3, COMPUTER)], [8, 8], 5000)
def test_groups_are_sound(jobs: list[tuple[int, int]], nodes: list[int], budget: int) -> None:
    gpus, profiles = [size for size, _ in jobs], [profile for _, profile in jobs]
    groups = form_groups(gpus, profiles, nodes, MODEL, budget=budget)
    runs = Counter(job for group in groups for job in group)
    assert all(count == 1 for count in runs.values()), "a job is in one group at most"
    assert all(len({gpus[job] for job in group}) == 1 for group in groups), "a group has one GPU count"
    assert all(1 <= len(group) <= 4 for group in groups)
    packing = Packing(nodes)
    assert all(packing.take(gpus[group[0]]) for group in groups), "all groups fit in the order given"
    for group in groups:
        if len(group) > 1:
            assert MODEL.mixture([profiles[job] for job in group]).throughput >= 1, "sharing beats taking turns"
    alone = {group[0] for group in groups if len(group) == 1}
    for size in {gpus[job] for group in groups if len(group) > 1 for job in group}:
        assert not packing.copy().take(size), f"with {size} free GPUs nobody has to share, {alone} alone"
    assert groups == form_groups(gpus, profiles, nodes, MODEL, budget=budget), "same input, same groups"


@settings(max_examples=examples(0.4), deadline=None)
@given(jobs, nodes)
def test_the_search_never_makes_the_groups_worth_less(jobs: list[tuple[int, int]], nodes: list[int]) -> None:
    gpus, profiles = [size for size, _ in jobs], [profile for _, profile in jobs]
    worth = worths(gpus, sum(nodes))

    def total(budget: int) -> float:
        return sum(
            MODEL.alone(profiles[job]) * worth[job] * MODEL.mixture([profiles[member] for member in group]).rate
            for group in form_groups(gpus, profiles, nodes, MODEL, budget=budget)
            for job in group
        )

    assert total(20_000) >= total(0) - 1e-6


def test_the_first_in_order_is_worth_most_of_its_size() -> None:
    assert worths([8, 8, 8], 8, foresight=0) == [3, 2, 1]


@given(st.lists(st.integers(1, 20), max_size=20), nodes)
def test_a_packing_takes_only_what_is_free(gangs: list[int], nodes: list[int]) -> None:
    packing = Packing(nodes)
    taken = sum(gang for gang in gangs if packing.take(gang))
    assert packing.free == sum(nodes) - taken >= 0


@pytest.mark.parametrize(
    ("sizes", "nodes", "holds"),
    [
        ({8: 2}, [8, 8], True),
        ({8: 2, 1: 1}, [8, 8], False),
        ({5: 2}, [8, 8], True),
        ({5: 3}, [8, 8], False),
        ({12: 1, 4: 1}, [8, 8], True),
        ({16: 1, 4: 2}, [8, 8, 8], True),
        ({6: 2, 2: 2}, [8, 8], True),
    ],
)
def test_gangs_fit_together_or_not(sizes: dict[int, int], nodes: list[int], holds: bool) -> None:
    assert Packing(nodes).holds(sizes) is holds


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: form_groups([1], [], [8], MODEL), "gpus and profiles"),
        (lambda: form_groups([0], [LOADER], [8], MODEL), "gpus"),
        (lambda: worths([1], 0), "total_gpus"),
        (lambda: worths([1], 8, foresight=-1), "foresight"),
        (lambda: Packing([-1]), "node_gpus"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()
