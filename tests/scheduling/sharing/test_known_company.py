"""Who shares where the pool decides: memory and use of a device must be known, and must fit (Liquid §6.2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.instructions import Launch
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request
from prefect_gpu.scheduling.sharing.rules import decided
from tests.scheduling.world import GIB, World, asks, node

LEFT_TO_THE_POOL = Request(automatic=True)


def needs(gib: float | None, use: float | None) -> Estimate:
    return Estimate(memory_bytes=None if gib is None else int(gib * GIB), utilisation=use, service_s=100.0)


def submit(world: World, job: str, request: Request, estimate: Estimate, program: str = "") -> None:
    world.submit(job, request=replace(decided(request, estimate), kind=program), estimate=estimate)


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (UNKNOWN, replace(LEFT_TO_THE_POOL, exclusive=True)),
        (needs(3, None), replace(LEFT_TO_THE_POOL, exclusive=True)),
        (needs(None, 0.2), replace(LEFT_TO_THE_POOL, exclusive=True)),
        (needs(3, 0.2), replace(LEFT_TO_THE_POOL, exclusive=False, gpu_memory_bytes=3 * GIB)),
    ],
    ids=["nothing known", "use unknown", "memory unknown", "both known"],
)
def test_a_run_shares_once_both_its_needs_are_known(estimate: Estimate, expected: Request) -> None:
    assert decided(LEFT_TO_THE_POOL, estimate) == expected


def test_a_word_of_the_user_is_the_last() -> None:
    for said in (Request(), asks(gib=2, shares=True), asks(gib=2)):
        assert decided(said, needs(1, 0.1)) is said
    assert decided(Request(automatic=True, gpu_memory_bytes=4 * GIB), needs(3, 0.2)).gpu_memory_bytes == 4 * GIB


def test_an_estimate_that_no_device_could_hold_keeps_no_run_from_starting() -> None:
    capability = World(node("n", 8), profile="adaptive").state.capability
    request = decided(LEFT_TO_THE_POOL, needs(1e9, 0.2), capability.may_hold)
    assert request == replace(LEFT_TO_THE_POOL, exclusive=True)
    assert decided(LEFT_TO_THE_POOL, needs(3, 0.2), capability.may_hold).shareable
    said = asks(gib=1000, shares=True)  # what the user says is another matter: it is refused
    assert decided(said, needs(3, 0.2), capability.may_hold) is said and not capability.may_hold(said)


@pytest.mark.parametrize(
    ("estimates", "together"),
    [
        ([needs(3, 0.5), needs(3, 0.5)], 2),
        ([needs(3, 0.5), needs(3, 0.6)], 1),
        ([needs(5, 0.3), needs(4, 0.3)], 1),
        ([needs(2, 0.3), needs(2, 0.3), needs(2, 0.3), needs(2, 0.3)], 3),
        ([UNKNOWN, needs(1, 0.1)], 1),
    ],
    ids=[
        "they just fit",
        "too busy together",
        "too large together",
        "the fourth is too many",
        "of one nothing is known",
    ],
)
def test_uses_and_memories_must_fit_on_the_device(estimates: list[Estimate], together: int) -> None:
    world = World(node("n", 8), profile="adaptive")
    for number, estimate in enumerate(estimates):
        submit(world, f"j{number}", LEFT_TO_THE_POOL, estimate)
    assert len(world.launched) == together


def test_runs_whose_use_was_measured_as_nothing_are_not_crowded_onto_a_large_device() -> None:
    world = World(node("n", 140), profile="adaptive")
    for number in range(30):
        submit(world, f"j{number}", LEFT_TO_THE_POOL, needs(1, 0.0))
    assert len(world.launched) == 20


def test_a_run_that_said_itself_that_it_shares_is_only_judged_by_its_memory_beside_its_like() -> None:
    world = World(node("n", 8), profile="adaptive")
    for job in "ab":
        submit(world, job, asks(gib=3, shares=True), UNKNOWN)
    assert world.launched == ["a", "b"]
    submit(world, "c", LEFT_TO_THE_POOL, needs(1, 0.1))
    assert world.launched == ["a", "b"], "how busy a and b keep the device is not known"


def test_it_is_granted_its_upper_estimate_and_shares() -> None:
    world = World(node("n", 8), profile="adaptive")
    submit(world, "a", LEFT_TO_THE_POOL, needs(3, 0.4))
    launch = next(said for said in world.instructions if isinstance(said, Launch))
    assert (launch.placement.memory_bytes, launch.placement.shared) == (3 * GIB, True)


def test_programs_that_were_found_to_slow_each_other_down_do_not_meet() -> None:
    world = World(node("n", 8), profile="adaptive")
    world.handle(ev.CompanyLearned((("a", "b", 3.0), ("b", "a", 2.5), ("a", "c", 1.1), ("c", "a", 1.2))))
    submit(world, "first", LEFT_TO_THE_POOL, needs(1, 0.2), "a")
    submit(world, "slowed", LEFT_TO_THE_POOL, needs(1, 0.2), "b")
    submit(world, "fine", LEFT_TO_THE_POOL, needs(1, 0.2), "c")
    assert world.launched == ["first", "fine"]
    world.end("first")
    assert world.launched == ["first", "fine", "slowed"]


def test_a_run_that_needs_its_device_alone_is_joined_by_nobody_and_gets_its_turn() -> None:
    world = World(node("n", 8), profile="adaptive")
    for job in "ab":
        submit(world, job, asks(gib=2, shares=True), UNKNOWN)
    world.train("a", "b")
    world.handle(ev.MemoryExhausted("b"))
    submit(world, "c", asks(gib=2, shares=True), UNKNOWN)
    world.end("a")
    assert world.launched == ["a", "b"], "b has the device alone now"
    world.end("b")
    assert world.launched == ["a", "b", "c"]


def test_an_elastic_run_shares_its_devices_with_nobody_unless_it_says_so() -> None:
    elastic = replace(LEFT_TO_THE_POOL, max_gpus=4)
    assert decided(elastic, needs(1, 0.1)).is_resizable
    said = replace(elastic, automatic=False, exclusive=False, gpu_memory_bytes=GIB)
    assert decided(said, needs(1, 0.1)) is said and not said.is_resizable
