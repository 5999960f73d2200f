"""Running jobs that make room, or way for better company: events in, instructions expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.papers.deepshare.exchange import Company
from prefect_gpu.papers.deepshare.greedy import ContentionAware
from prefect_gpu.papers.deepshare.profiles import BUSY
from prefect_gpu.scheduling.interference.sensitivity import Key, Running, SensitivityTable
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.instructions import Launch, Move, Preempt
from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.scheduling.order.orders import LeastService
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.scheduling.sharing.rules import NoSharing
from prefect_gpu.scheduling.state.learned import Learned
from tests.papers.deepshare.test_contention_aware import Cluster

KEYS = [Key(model, gpus, 2) for model in ("loud", "quiet") for gpus in (2, 4, 8)]
TABLE = {(own, other): 0.6 if own.model == other.model == "loud" else 0.95 for own in KEYS for other in KEYS}


QUIET = ("q1", "q2", "q3", "q4")
GRACEFUL = Abilities(Preemption.GRACEFUL)


def cluster(nodes: int = 4, abilities: Abilities = GRACEFUL) -> Cluster:
    """Nodes of four devices, where jobs go on two; two loud ones keep 60 % of their speed."""
    profile = Profile(
        "test",
        LeastService(),
        sharing=NoSharing(),
        allocation=(ContentionAware(dict.fromkeys(KEYS, 1.0), rule=BUSY, fewest=True, exchanges=True),),
        learned=Learned(SensitivityTable(TABLE)),
    )
    return Cluster(profile, nodes, abilities)


def start(world: Cluster, *jobs: str, **asks: Any) -> None:
    """Submit jobs that start at once, and train."""
    world.submit(*jobs, **{"gpus": 4, "launching_s": 1.0, **asks})
    world.handle(ev.Together(tuple(ev.PhaseEntered(job, Status.TRAINING) for job in jobs)))
    assert set(jobs) <= set(world.places)


def stopped(said: Sequence[object]) -> list[str]:
    return [one.job for one in said if isinstance(one, Preempt)]


def test_a_job_makes_way_for_one_that_is_better_company() -> None:
    world = cluster(nodes=2)
    start(world, "l1", "l2", kind="loud")
    said = world.submit(*QUIET, gpus=4)
    assert len(stopped(said)) == 1
    [launch] = [one for one in said if isinstance(one, Launch)]
    assert launch.job == "q1"
    assert "it is expected to keep 95% of its speed beside 1 other run on its 2 nodes" in launch.reason
    [reason] = [one.reason for one in said if isinstance(one, Preempt)]
    assert reason == "q1 makes better use of its nodes beside the jobs there"


@pytest.mark.parametrize(
    "asks",
    [{"launching_s": 0.0}, {"launching_s": 30.0}, {"preemptible": False}, {"service_s": 3.0}],
    ids=["nobody knows what a launch takes", "it takes too long", "may not be stopped", "is nearly done"],
)
def test_nobody_makes_way_where_it_is_not_worth_it(asks: dict[str, Any]) -> None:
    world = cluster(nodes=2)
    start(world, "l1", "l2", kind="loud", **asks)
    assert not stopped(world.submit(*QUIET, gpus=4))


def test_who_is_launching_or_was_stopped_three_times_stays() -> None:
    world = cluster(nodes=2)
    world.submit("l1", "l2", kind="loud", gpus=4, launching_s=1.0)
    assert not stopped(world.submit(*QUIET, gpus=4))
    for job in ("l1", "l2"):
        world.scheduler.state.running[job].stops = 3
    assert not stopped(world.handle(ev.Together(tuple(ev.PhaseEntered(job, Status.TRAINING) for job in ("l1", "l2")))))
    assert not stopped(world.submit("q2", gpus=4))


def test_a_job_moves_where_another_then_has_room() -> None:
    world = cluster()
    start(world, "j1", "j2", "j3", "j4")
    first = world.places["j1"]
    [beside] = [job for job, place in world.places.items() if place == first and job != "j1"]
    [other, kept] = [job for job, place in world.places.items() if place != first]
    world.submit("big", gpus=8)
    assert "big" not in world.places
    said = world.handle(ev.Together((ev.JobEnded(beside, "completed"), ev.JobEnded(other, "completed"))), at=10.0)
    [move] = [one for one in said if isinstance(one, Move)]
    assert move.job in ("j1", kept)
    assert move.reason == "big gets its devices"
    assert world.places["j1"] == world.places[kept]
    assert set(world.places["big"].split()) == {f"{node}4" for node in "abcd" if node not in world.places["j1"]}


def test_nobody_moves_for_one_that_has_room_or_where_stopping_is_impossible() -> None:
    world = cluster(abilities=Abilities(Preemption.NONE))
    start(world, "j1", "j2", "j3", "j4")
    first = world.places["j1"]
    [beside] = [job for job, place in world.places.items() if place == first and job != "j1"]
    other = next(job for job, place in world.places.items() if place != first)
    world.submit("big", gpus=8)
    world.handle(ev.Together((ev.JobEnded(beside, "completed"), ev.JobEnded(other, "completed"))), at=10.0)
    world.submit("small", gpus=4)
    assert not any(isinstance(one, Move | Preempt) for one in world.said)
    assert {"big", "small"} & set(world.places) == {"small"}


nodes = st.sets(st.integers(0, 4), min_size=1, max_size=3).map(frozenset)
models = st.sampled_from(["a", "b", "c"])
ratios = st.dictionaries(st.tuples(models, models), st.floats(0.4, 1.0), max_size=9)


def done(running: Sequence[Running], table: SensitivityTable, weights: dict[Key, float]) -> float:
    """What gets done, as the class says: the sum of weight × ratio."""
    return sum(
        weights[one.key]
        * table.among(one.key, [other.key for other in running if other is not one and other.nodes & one.nodes])
        for one in running
    )


@given(
    st.lists(st.tuples(models, nodes), min_size=1, max_size=7),
    models,
    nodes,
    nodes,
    ratios,
    st.lists(st.floats(0.5, 9.0), min_size=12, max_size=12),
)
def test_what_a_change_brings_is_the_difference_of_what_gets_done(
    jobs: list[tuple[str, frozenset[int]]],
    model: str,
    to: frozenset[int],
    there: frozenset[int],
    known: dict[tuple[str, str], float],
    weighed: list[float],
) -> None:
    pairs = {(Key(own, 2, 2), Key(other, 2, 2)): ratio for (own, other), ratio in known.items()}
    table = SensitivityTable(pairs)
    keys = [Key(one, 12, width) for one in "abc" for width in (1, 2, 3, 4)]
    weights = dict(zip(keys, weighed, strict=True))
    running = [Running(Key(one, 12, len(where)), where) for one, where in jobs]
    company = Company(running, table, weights, 5)
    now = done(running, table, weights)
    new = Key(model, 12, 2)
    gains = company.gains_of_places(new)
    for at, one in enumerate(running):
        rest = [other for other in running if other is not one]
        replaced = done([*rest, Running(new, one.nodes)], table, weights)
        assert gains[at] == pytest.approx(replaced - now, abs=1e-9)
        # The one that moves keeps its key: it goes on as many nodes as before.
        moved = done([*rest, Running(one.key, to), Running(new, there)], table, weights)
        assert company.gain_of_room(at, to, new, there) == pytest.approx(moved - now, abs=1e-9)
