"""Plans for gangs: who waits for a nearer place, who does not, and for how long at most."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_gpu.papers.lookahead.allocation import Lookahead
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import NOTHING_SPECIAL
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.profiles import Profile, get_profile
from prefect_gpu.simulation.effects.links import Iteration, SharedLinks
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World as Simulation
from tests.scheduling.world import World
from tests.support import examples

PAIR = Request(workers=2)
SLOWED = Estimate(100.0, sent_bps=20.0)  # three times as long across


def racks(link_bps: float = 100.0, uplink_bps: float = 10.0) -> tuple[Node, ...]:
    """Two racks of two nodes with one device each: a and b, c and d."""
    return tuple(
        Node(name, (Device(name, "test", 8 << 30),), (0,), f"rack-{name in 'cd'}", "", link_bps, uplink_bps)
        for name in "abcd"
    )


def half_full(left_s: float | None, *nodes: Node, profile: Profile | None = None) -> World:
    """One run on the first node of each rack. That on a still has so many seconds, that on c has long."""
    world = World(*(nodes or racks()), profile=profile or get_profile("ahead"))
    estimates = {"first": Estimate(left_s), "gone": Estimate(1.0), "long": Estimate(5000.0)}
    for job, estimate in estimates.items():
        world.submit(job, estimate=estimate)
    world.train("first", "gone", "long")
    world.end("gone")
    assert world.places == {"first": "a", "long": "c"}
    return world


def test_a_gang_waits_for_a_rack_if_it_then_ends_sooner() -> None:
    world = half_full(30.0)
    world.submit("gang", request=PAIR, estimate=SLOWED)
    assert world.held("gang") == ["contention"]
    assert (
        world.reason("gang") == "it should start in 30 s and end in 150 s; if it started now, it would end 150 s later"
    )
    world.now += 30.0
    world.end("first")
    assert world.places["gang"] == "a b"


# seconds that the other run has left, estimate of the gang, nodes: reasons to start at once, across racks
AT_ONCE = {
    "it would take longer to wait": (500.0, SLOWED, racks()),
    "it sends nothing": (30.0, Estimate(100.0), racks()),
    "nobody knows what it sends": (30.0, Estimate(100.0, sent_bps=None), racks()),
    "nobody knows how long it takes": (30.0, Estimate(None, sent_bps=20.0), racks()),
    "nobody knows when the other ends": (None, SLOWED, racks()),
    "nobody knows how fast the uplinks are": (30.0, SLOWED, racks(uplink_bps=0.0)),
    "the uplinks are fast enough": (30.0, SLOWED, racks(uplink_bps=1000.0)),
}


@pytest.mark.parametrize(("left_s", "estimate", "nodes"), AT_ONCE.values(), ids=AT_ONCE.keys())
def test_a_gang_starts_across_racks_at_once(left_s: float | None, estimate: Estimate, nodes: tuple[Node, ...]) -> None:
    world = half_full(left_s, *nodes)
    world.submit("gang", request=PAIR, estimate=estimate)
    assert world.places["gang"] == "b d"


def test_what_is_measured_of_the_one_that_it_waits_for_changes_the_plan() -> None:
    world = half_full(30.0)
    world.submit("gang", request=PAIR, estimate=SLOWED)
    world.now += 10.0
    world.handle(ev.JobEstimated("first", Estimate(1000.0)))
    assert world.places["gang"] == "b d"


def test_a_run_that_does_not_end_as_expected_is_waited_for_no_longer_than_was_promised() -> None:
    """It is expected to go on for as long as it is over due; at some time starting across racks is better."""
    world = half_full(30.0)
    world.submit("gang", request=PAIR, estimate=SLOWED)
    submitted = world.now
    while "gang" not in world.places:
        due = world.scheduler.next_due()
        assert due is not None and due > world.now
        world.now = due
        world.handle(ev.TimePassed())
    assert world.places["gang"] == "b d" and world.now - submitted <= 300.0  # had it started: 300 s until its end


def test_who_has_lost_patience_starts_where_there_is_room() -> None:
    impatient = Profile("test", allocation=(Lookahead(), Backfill()), patience_s=20.0)
    world = half_full(30.0, profile=impatient)
    world.submit("gang", request=PAIR, estimate=SLOWED)
    assert "gang" not in world.places
    world.wait(20.0)
    assert world.places["gang"] == "b d"


def test_its_place_is_not_given_to_runs_of_unknown_length_meanwhile() -> None:
    world = half_full(30.0)
    world.submit("gang", request=PAIR, estimate=SLOWED)
    world.submit("unknown", "another", request=Request())
    assert world.places["unknown"] == "d"
    assert world.held("another") == ["reserved"]
    world.now += 30.0
    world.end("first")
    assert world.places["gang"] == "a b"


def test_a_stream_of_small_gangs_does_not_keep_a_large_one_waiting_for_longer_than_was_promised() -> None:
    """Pairs come every 5 s and train for 9 s: all four devices are never free. Under FIFO it waits for 300 s."""
    pairs = [JobModel(f"pair-{at}", 5.0 * at, 9.0, PAIR, estimate=Estimate(9.0)) for at in range(100)]
    large = JobModel("large", 2.0, 20.0, Request(workers=4), estimate=Estimate(20.0))
    jobs = sorted([*pairs, large], key=lambda job: job.submit_s)

    def end(profile: str) -> float:
        results = Simulation(racks(), jobs, profile, abilities=NOTHING_SPECIAL).run()
        return next(outcome.end_s or 0.0 for outcome in results.outcomes if outcome.job == "large")

    promised = 2.0 + 2 * (9.0 - 2.0 + 20.0)  # twice what is expected when it comes: the first pair ends, and it starts
    assert end("liquid-immediate") > 300.0
    assert end("ahead") <= promised + 9.0


def test_small_runs_are_placed_as_ever_where_nothing_is_known() -> None:
    plain, planned = (World(*racks(), profile=get_profile(name)) for name in ("liquid-immediate", "ahead"))
    for world in (plain, planned):
        world.submit("one", "two", "three")
        world.submit("gang", request=PAIR)
        world.end("two")
    assert plain.places == planned.places and plain.launched == planned.launched


def test_on_a_large_cluster_nothing_is_planned_beyond_the_budget() -> None:
    profile = Profile("test", allocation=(Lookahead(budget=1), Backfill()))
    world = half_full(30.0, profile=profile)
    world.submit("gang", request=PAIR, estimate=SLOWED)
    assert world.places["gang"] == "b d"


@pytest.mark.parametrize("arguments", [{"slow": 0.5}, {"delay": -1.0}, {"budget": 0}])
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give"):
        Lookahead(**arguments)


ITERATIONS = {
    (kind, workers): Iteration(1.0, 1.0 + sends / 100.0, 1.0 + sends / 10.0)
    for kind, sends in (("quiet", 0.0), ("talks", 3.0), ("shouts", 30.0))
    for workers in (1, 2, 3)
}
gangs = st.tuples(
    st.sampled_from(sorted(ITERATIONS)), st.sampled_from([5.0, 20.0, 80.0]), st.floats(0, 60), st.floats(0.3, 3.0)
)


@given(st.lists(gangs, min_size=1, max_size=9))
@settings(max_examples=examples(0.6), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_everybody_starts_and_ends_whatever_the_estimates_are_worth(
    drawn: list[tuple[tuple[str, int], float, float, float]],
) -> None:
    jobs = [
        JobModel(
            f"{kind}-{at}", submit_s, service_s, Request(workers=workers), kind=kind, saving_s=1.0, launching_s=1.0,
            estimate=Estimate(service_s * wrong, 1.0, 1.0,
                              sent_bps=10.0 * wrong * (ITERATIONS[kind, workers].across_s - 1.0)),
        )
        for at, ((kind, workers), service_s, submit_s, wrong) in enumerate(sorted(drawn, key=lambda one: one[2]))
    ]  # fmt: skip
    results = Simulation(
        racks(), jobs, "ahead", physics=SharedLinks(ITERATIONS), abilities=NOTHING_SPECIAL, keep_timeline=False
    ).run()
    assert not results.unfinished
