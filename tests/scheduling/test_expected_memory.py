"""The memory that runs are expected to need decides which devices they wait for, and what they are granted."""

from __future__ import annotations

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import EVERYTHING
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from tests.scheduling.kinds import KINDS
from tests.scheduling.world import GIB, PATIENCE_S, World, asks, node
from tests.support import examples


def needs(gib: float) -> Estimate:
    return Estimate(memory_bytes=int(gib * GIB))


# expected GiB, asked for, and the device that it gets of 24, 80 and 40 GiB; None: it waits for ever
TABLE: dict[str, tuple[float, Request, str | None]] = {
    "little": (1, asks(), "n0"),
    "just enough": (24, asks(), "n0"),
    "more than the smallest": (25, asks(), "n2"),
    "more than all but the largest": (41, asks(), "n1"),
    "more than any has": (1000, asks(), "n1"),
    "less than it declares": (1, asks(gib=30), "n2"),
    "more than it declares": (50, asks(gib=30), "n1"),
    "more than it declares, and it shares": (50, asks(gib=1, shares=True), "n1"),
    "it declares more than any has": (1, asks(gib=100), None),
    "two devices, of which no pair is large": (50, asks(2), "n0 n2"),
    "no device": (50, asks(0), ""),
}


@pytest.mark.parametrize("expected, request_, device", TABLE.values(), ids=TABLE.keys())
def test_which_device_a_run_gets(expected: float, request_: Request, device: str | None) -> None:
    world = World(node("n", 24, 80, 40))
    world.submit("a", request=request_, estimate=needs(expected))
    assert world.places.get("a") == device


ELASTIC = Request(1, max_gpus=4, preemptible=True)


@pytest.mark.parametrize(
    ("profile", "request_"),
    [("adaptive", ELASTIC), ("f-scheduling", ELASTIC), ("coda", asks()), ("coda-fifo", asks()), ("coda", asks(2))],
)
def test_a_run_that_needs_40_gb_starts_on_devices_of_80_and_not_of_8(profile: str, request_: Request) -> None:
    world = World(node("small", 8, 8, 8, 8), node("large", 80, 80, 80, 80), profile=profile, abilities=EVERYTHING)
    known = Estimate(memory_bytes=40 * GIB, throughput=(1.0, 1.9, 2.7, 3.4))
    world.submit("a", request=request_, estimate=known)
    assert set(world.places["a"].split()) <= {"large0", "large1", "large2", "large3"}


@pytest.mark.parametrize("profile", ["adaptive", "f-scheduling"])
def test_an_elastic_run_does_not_grow_onto_devices_that_are_too_small(profile: str) -> None:
    world = World(node("n", 80, 8, 8, 8), profile=profile, abilities=EVERYTHING)
    known = Estimate(memory_bytes=40 * GIB, throughput=(1.0, 1.9, 2.7, 3.4))
    world.submit("a", request=ELASTIC, estimate=known)
    world.train("a")
    world.wait(1000.0)
    assert world.places["a"] == "n0" and not world.moved


def test_coda_waits_for_a_large_device_and_others_pass() -> None:
    world = World(node("n", 8, 80), profile="coda", abilities=EVERYTHING)
    world.submit("large", estimate=needs(40))
    world.submit("large too", estimate=needs(40))
    world.submit("small", estimate=needs(4))
    assert world.places == {"large": "n1", "small": "n0"}
    world.end("large")
    assert world.places["large too"] == "n1"


def test_two_devices_that_are_both_large() -> None:
    world = World(node("n", 24, 24, 80, 40))
    world.submit("a", request=asks(2), estimate=needs(50))
    assert world.places["a"] == "n2 n3", "the largest pair has 40 GiB each"


def test_a_run_waits_for_the_large_device_and_says_so_while_others_pass() -> None:
    world = World(node("n", 24, 80))
    world.submit("holder", request=asks(gib=80))
    world.submit("large", estimate=needs(60))
    assert world.reason("large") == (
        "it needs 1 device with 80GiB, judging by earlier runs, on one node, and 1 of 1 is in use"
    )
    world.submit("small", estimate=needs(2))
    assert world.places == {"holder": "n1", "small": "n0"}, "the same request behind it may pass"
    world.end("holder")
    assert world.places["large"] == "n1"


def test_devices_are_kept_only_where_a_run_that_has_waited_long_would_go() -> None:
    world = World(node("n", 24, 80))
    world.submit("holder", request=asks(gib=80))
    world.submit("large", estimate=needs(60))
    world.wait(PATIENCE_S + 1)
    world.submit("small", estimate=needs(2))
    assert world.places["small"] == "n0"


def test_an_estimate_that_comes_later_moves_a_waiting_run_to_another_line() -> None:
    world = World(node("n", 24, 80))
    world.submit("holder", request=asks(gib=80))
    world.submit("other")
    world.submit("a")
    world.handle(ev.JobEstimated("a", needs(60)))
    world.end("other")
    assert "a" not in world.places
    world.handle(ev.JobEstimated("a", needs(6)))
    assert world.places["a"] == "n0"


def test_a_large_device_that_comes_is_waited_for_and_one_that_goes_is_not() -> None:
    small, large = node("n", 24), node("m", 80)
    world = World(small)
    world.submit("first")
    world.submit("a", estimate=needs(60))
    world.handle(ev.NodesChanged((small, large)))
    assert world.places["a"] == "m0"
    world.submit("b", estimate=needs(60))
    world.end("first")
    assert "b" not in world.places, "it waits for the large one"
    world.handle(ev.NodesChanged((small,)))
    assert world.places["b"] == "n0"


@pytest.mark.parametrize("gpus, workers", [(2, 1), (1, 2), (1, 3), (3, 1)])
def test_an_estimate_never_keeps_a_run_from_all_devices(gpus: int, workers: int) -> None:
    """Only one device is large, and it needs several."""
    world = World(node("n", 24, 80, 24), node("m", 24))
    world.submit("a", request=Request(gpus, workers=workers), estimate=needs(60))
    assert len(world.places["a"].split()) == gpus * workers


def test_a_run_that_shares_is_granted_what_it_is_expected_to_need() -> None:
    world = World(node("n", 24))
    world.submit("a", request=asks(gib=4, shares=True), estimate=needs(6))
    world.submit("b", request=asks(gib=4, shares=True), estimate=needs(19))
    granted = world.state.jobs["a"].placement
    assert granted is not None and granted.memory_bytes == 6 * GIB
    assert "b" not in world.places, "18 GiB are left"
    world.end("a")
    assert world.places["b"] == "n0"


def test_nothing_is_granted_beyond_the_device() -> None:
    world = World(node("n", 24))
    world.submit("a", request=asks(gib=4, shares=True), estimate=needs(1000))
    granted = world.state.jobs["a"].placement
    assert granted is not None and granted.memory_bytes == 24 * GIB


@settings(max_examples=examples(0.2))
@given(
    st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=4),
    st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=3),
    st.lists(st.tuples(st.integers(1, 2), st.none() | st.integers(1, 9)), min_size=1, max_size=6),
)
def test_whatever_is_expected_every_run_starts_in_the_end(
    sizes: list[int], others: list[int], jobs: list[tuple[int, int | None]]
) -> None:
    for profile in KINDS:
        note(f"profile {profile}")  # the last of them is the one that fails
        world = World(node("n", *sizes), node("m", *others), profile=profile)
        for number, (gpus, gib) in enumerate(jobs):
            known = Estimate(service_s=60.0, memory_bytes=None if gib is None else gib * GIB)
            world.submit(f"job-{number}", request=Request(gpus), estimate=known)
        for _ in jobs:
            world.wait(1000.0)
            world.end(*world.places)
        assert len(world.launched) == len(jobs)
