"""Nobody ends much later than with its share of the devices alone; until then, who waits is overtaken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Quotas
from prefect_gpu.scheduling.model.instructions import Preempt
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.model.shares import Shares
from prefect_gpu.scheduling.preemption.minimum_runtime import left_alone_for_s
from prefect_gpu.scheduling.profiles.adaptive import MOST_LATE
from tests.scheduling.world import World, node
from tests.support import examples

STOPS = Request(preemptible=True)
INSTANT = Abilities(Preemption.INSTANT)


def pool(devices: int = 1, abilities: Abilities = INSTANT) -> World:
    return World(node("n", *[8.0] * devices), profile="adaptive", abilities=abilities)


def feed(world: World, seconds: float, *, every_s: float = 100.0, until_late: str = "") -> None:
    """Shorter runs come one after the other, and each takes as long as until the next."""
    for number in range(round(seconds / every_s)):
        name = f"short-{world.now:.0f}-{number}"
        world.submit(name, request=STOPS, service_s=every_s)
        world.wait(every_s)
        if name in world.places:
            world.end(name)
        else:
            world.handle(ev.JobWithdrawn(name, "cancelled"))
        if until_late in world.places and world.state.jobs[until_late].late:
            return


def test_a_long_run_is_overtaken_for_more_than_five_minutes_and_goes_first_once_it_is_late() -> None:
    world = pool()
    world.submit("long", request=STOPS, service_s=2_000.0)
    feed(world, 3_000.0)
    world.submit("next", request=STOPS, service_s=100.0)
    assert world.places.keys() == {"next"}, "it has waited for long, not for too long"
    world.end("next")
    feed(world, MOST_LATE * 2 * 2_000.0, until_late="long")
    world.submit("last", request=STOPS, service_s=100.0)
    assert world.places.keys() == {"long"}
    said = [one.reason for one in world.instructions if isinstance(one, Preempt)]
    assert said[-1] == "run long is late, and may wait no longer"


def test_one_that_turns_out_to_be_longer_than_was_thought_is_not_late_any_more() -> None:
    world = pool()
    world.submit("wrong", request=STOPS, service_s=100.0)
    feed(world, 3_000.0, every_s=50.0, until_late="wrong")
    world.submit("next", request=STOPS, service_s=50.0)
    assert "wrong" in world.places and world.state.jobs["wrong"].late
    world.handle(ev.JobWithdrawn("next", "cancelled"))
    world.wait(10_000.0)
    world.submit("other", request=STOPS, service_s=30.0)
    assert world.places.keys() == {"other"}, "the first needs far more than was thought, and is not late for that"


def beside_firm(world: World, **firm: object) -> None:
    """A run that nobody may stop has one of two devices, and one that needs both has become late."""
    world.submit("firm", request=Request(), **firm)  # type: ignore[arg-type]
    world.train("firm")
    world.submit("wide", request=replace(STOPS, gpus=2), service_s=500.0)
    feed(world, 1_000.0)
    assert any(name.startswith("short") for name in world.launched)
    world.wait(MOST_LATE * 3 * 500.0)
    world.submit("first", request=STOPS, service_s=50.0)
    assert world.state.jobs["wide"].late
    world.end("first")


def test_beside_a_run_that_may_not_be_stopped_devices_are_kept_from_those_that_may_not_either() -> None:
    world = pool(2)
    beside_firm(world)
    world.submit("firm too", request=Request(), service_s=100.0)
    world.wait(300.0)
    assert world.places.keys() == {"firm"}, "the other device is kept"
    assert world.state.jobs["firm too"].hold == "reserved"
    world.end("firm")
    assert world.places["wide"] == "n0 n1"


def test_what_is_kept_for_who_is_late_does_not_idle_whoever_is_stopped_for_it_trains_there() -> None:
    world = pool(2)
    beside_firm(world)
    begun = len(world.launched)
    feed(world, 1_000.0)
    assert len(world.launched) == begun + 10, "one after the other, beside the firm one"
    world.submit("filler", request=STOPS, service_s=10_000.0)
    assert world.places.keys() == {"firm", "filler"}
    world.end("firm")
    assert world.places["wide"] == "n0 n1"
    said = [one.reason for one in world.instructions if isinstance(one, Preempt)]
    assert said == ["run wide is late, and may wait no longer"]


def test_where_owners_have_shares_what_is_kept_does_not_idle_either() -> None:
    world = pool(2)
    world.handle(ev.QuotasChanged(Quotas(shares=Shares(600.0))))
    beside_firm(world)
    world.submit("filler", request=STOPS, service_s=10_000.0)
    assert world.places.keys() == {"firm", "filler"}
    world.end("firm")
    assert world.places["wide"] == "n0 n1"


@pytest.mark.parametrize(
    ("left_s", "launching_s", "starts"), [(50, 0, False), (70, 0, True), (70, 30, False), (150, 30, True)]
)
def test_nobody_starts_on_kept_devices_who_would_be_left_alone_when_they_are_needed(
    left_s: float, launching_s: float, starts: bool
) -> None:
    """Where stopping takes time: the run ahead is expected to go on for so many seconds yet."""
    world = pool(2, Abilities(Preemption.GRACEFUL))
    beside_firm(world, service_s=50_000.0)
    firm = world.state.jobs["firm"]
    world.wait(50_000.0 - firm.attained(world.now) - left_s)
    world.submit("filler", request=STOPS, estimate=Estimate(5_000.0, launching_s=launching_s))
    assert (left_alone_for_s(world.state.jobs["filler"]) <= left_s) == starts
    assert ("filler" in world.places) == starts


def beside_a_gang(outlived_s: float = 0.0) -> World:
    """Nobody may be stopped: a run has one of four devices, and a gang that needs all has waited for too long."""
    world = World(node("n", 8.0, 8.0), node("m", 8.0, 8.0), profile="adaptive", abilities=INSTANT)
    world.submit("ahead", request=Request(), service_s=20_000.0)
    world.train("ahead")
    world.submit("gang", request=Request(gpus=2, workers=2), service_s=500.0)
    world.wait(19_000.0 if not outlived_s else 20_000.0 + outlived_s)
    return world


def test_who_is_gone_before_a_late_gang_can_start_trains_meanwhile() -> None:
    world = beside_a_gang()
    world.submit("longer", request=Request(), service_s=5_000.0)
    world.wait(1.0)
    assert world.places.keys() == {"ahead"} and world.state.jobs["longer"].hold == "reserved"
    world.submit("shorter", request=Request(), service_s=900.0)
    world.wait(1.0)
    assert world.places.keys() == {"ahead", "shorter"}
    world.wait(900.0)
    world.end("shorter")
    world.wait(90.0)
    world.end("ahead")
    assert "gang" in world.places


def test_a_run_that_has_outlived_its_estimate_is_not_about_to_end() -> None:
    world = beside_a_gang(outlived_s=10_000.0)
    world.submit("shorter", request=Request(), service_s=900.0)
    world.wait(1.0)
    assert world.places.keys() == {"ahead", "shorter"}


def test_newcomers_are_not_late_because_nobody_knows_how_long_they_are() -> None:
    world = pool()
    for number in range(20):
        world.submit(f"seen-{number}", request=STOPS)
        world.wait(20_000.0 if number % 5 == 0 else 10.0)
        world.end(f"seen-{number}")
    mean_s = world.state.learned.lengths.mean_s()
    world.submit("one", request=STOPS)
    world.submit("other", request=STOPS)
    world.wait(MOST_LATE * mean_s)
    assert not any(job.late for job in world.state.jobs.values())


def test_nobody_is_prepared_behind_a_run_whose_devices_a_wider_one_is_to_have() -> None:
    """The small one fits behind who is about to end; the wide one may be worth more, with what the other run has."""
    for wide_s, first in ((2_000.0, "small"), (20.0, "wide")):
        world = pool(2, Abilities(Preemption.GRACEFUL, gates=True))
        for name, service_s in (("ends", 1_000.0), ("goes on", 1_045.0)):
            world.submit(name, request=STOPS, estimate=Estimate(service_s, launching_s=2.0))
            world.train(name)
        world.wait(993.0)
        world.submit("wide", request=replace(STOPS, gpus=2), estimate=Estimate(wide_s, launching_s=2.0))
        world.submit("small", request=STOPS, estimate=Estimate(90.0, launching_s=2.0))
        world.wait(1.0)
        assert ("small" in world.launched) == (first == "small")
        world.end("ends")
        assert ("goes on" in world.stopped) == (first == "wide")


def test_where_there_are_no_devices_yet_nobody_is_late_because_of_others() -> None:
    world = World(profile="adaptive", abilities=INSTANT)
    world.submit("one", "other", request=STOPS, service_s=100.0)
    world.wait(1_000.0)
    world.handle(ev.NodesChanged((node("n", 8.0, 8.0),)))
    assert world.places.keys() == {"one", "other"}


@settings(max_examples=examples(4))
@given(
    lengths=st.lists(st.sampled_from([10.0, 30.0, 60.0]), min_size=5, max_size=15),
    widths=st.lists(st.sampled_from([1, 1, 2, 4]), min_size=15, max_size=15),
    pause_s=st.sampled_from([1.0, 30.0, 300.0]),
)
def test_nobody_waits_for_ever(lengths: list[float], widths: list[int], pause_s: float) -> None:
    """However many shorter ones come, each job ends in the end, and the books balance meanwhile."""
    world = pool(4)
    left = {f"job-{number}": length for number, length in enumerate(lengths)}
    for (name, length), width in zip(list(left.items()), widths, strict=False):
        world.submit(name, request=replace(STOPS, gpus=width), service_s=length)
        _pass(world, left, pause_s)
    for number in range(2_000):
        if all(name.startswith("more") for name in left):
            return
        left[name := f"more-{number}"] = 100.0
        world.submit(name, request=STOPS, service_s=100.0)
        _pass(world, left, 25.0)
    raise AssertionError(f"{sorted(left)} never ended")


def _pass(world: World, left: dict[str, float], seconds: float) -> None:
    world.wait(seconds)
    for name in [name for name in world.places if world.state.jobs[name].attained(world.now) >= left[name]]:
        if name in world.places:  # it was not stopped for another meanwhile
            del left[name]
            world.end(name)
