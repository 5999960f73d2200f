"""Whose turn is it, under dominant resource fairness (Ghodsi et al., 2011)?"""

from __future__ import annotations

import pytest

from prefect_gpu.scheduling.model.jobs import Request
from tests.scheduling.world import World, node

Task = tuple[str, int, int]  # owner, GPUs, cores

# On 18 GPUs and 9 cores: what owners hold, what waits in order of submission, and whose tasks are started in turn.
TABLE: dict[str, tuple[list[Task], list[Task], str]] = {
    "who holds less goes first, and shares change with each start": (
        [("a", 4, 1), ("b", 2, 1)],
        [("a", 2, 1), ("a", 2, 1), ("b", 2, 1), ("b", 2, 1)],
        "baba",
    ),
    "an owner who holds many cores holds much, with however few GPUs": (
        [("a", 1, 4), ("b", 4, 1)],
        [("a", 1, 1), ("a", 1, 1), ("b", 1, 1), ("b", 1, 1)],
        "bbaa",
    ),
    "equals take turns in the order of submission": (
        [],
        [("b", 1, 1), ("b", 1, 1), ("a", 1, 1), ("a", 1, 1)],
        "baba",
    ),
    "the paper's example: A's tasks take a core and 4 of 18, B's 3 cores and 1; both come to two thirds": (
        [],
        [("a", 4, 1), ("a", 4, 1), ("a", 4, 1), ("b", 1, 3), ("b", 1, 3)],
        "ababa",
    ),
}


@pytest.mark.parametrize("held, waiting, expected", TABLE.values(), ids=TABLE.keys())
def test_whose_turn_it_is(held: list[Task], waiting: list[Task], expected: str) -> None:
    world = World(node("n", *[8] * 18, cpus=9), profile="drf")
    rest = ("holder", 18 - sum(gpus for _, gpus, _ in held), 1)
    for number, (owner, gpus, cores) in enumerate([*held, rest, *waiting]):
        request = Request(gpus, cpus=cores, owner=owner)
        world.submit(f"{owner}-{number}", request=request, due=float(number))
    at_first = list(world.launched)
    assert len(at_first) == len(held) + 1, "the others wait"
    world.end(at_first[-1])
    assert "".join(job.split("-")[0] for job in world.launched[len(at_first) :]) == expected
