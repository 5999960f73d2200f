"""Whatever happens where owners have shares: the books balance, limits and guarantees hold, and nobody is lost."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling import record
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities
from prefect_gpu.scheduling.model.cluster import Quotas
from prefect_gpu.scheduling.model.jobs import Request, Status
from prefect_gpu.scheduling.model.shares import Share, Shares
from tests.scheduling.fair_share.test_adaptive import held, pool, run, starts, stopped
from tests.scheduling.test_every_profile import NO_SHRINKING, Outside, abilities, steps
from tests.support import examples

shares = st.builds(
    lambda team, ada, bob, half_life_s: Shares(
        half_life_s,
        (
            Share("team", "", *team),
            Share("ada", "team", min(ada[0], team[0]), *ada[1:]),
            Share("bob", "", *bob),
        ),
    ),
    *[st.tuples(st.integers(0, 3), st.none() | st.integers(3, 6), st.sampled_from([0.5, 2.0])) for _ in range(3)],
    st.sampled_from([60.0, 3600.0]),
)


def over_limit(outside: Outside) -> list[str]:
    standing = outside.scheduler.standing()
    assert standing is not None
    totals = standing.tree.totals(standing.has)
    return [
        f"{node} has {totals[node]:g} of {share.limit}"
        for node, share in standing.tree.share.items()
        if share.limit is not None and totals[node] > share.limit + 1e-6
    ]


@settings(max_examples=examples(1.0), suppress_health_check=list(HealthCheck), phases=NO_SHRINKING)
@given(abilities.filter(lambda one: not one.free_moves), shares, st.lists(steps, min_size=8, max_size=45))
def test_whatever_happens_no_limit_is_exceeded_and_the_same_events_give_the_same_instructions(
    able: Abilities, promised: Shares, happenings: list[tuple[Any, ...]]
) -> None:
    outside = Outside("adaptive", able)
    outside.send(ev.QuotasChanged(Quotas(shares=promised)))
    for what in happenings:
        outside.step(what)
        assert not over_limit(outside)
    if outside.replays:
        assert [said for _, _, said in record.replay(outside.lines)] == outside.said


@given(st.lists(st.tuples(st.sampled_from("bcd"), st.integers(1, 4)), min_size=1, max_size=12), st.integers(1, 4))
def test_what_is_guaranteed_is_there_at_once_whoever_runs(others: list[tuple[str, int]], guaranteed: int) -> None:
    world = pool(Share("a", guaranteed=guaranteed))
    for number, (owner, gpus) in enumerate(others):
        world.submit(f"{owner}{number}", request=run(owner, gpus=gpus), service_s=1000.0 + number)
    starts(world, "a", guaranteed)
    assert held(world, "a") == guaranteed, "all of it, at the moment at which it is asked for"
    stopped(world)


@settings(max_examples=examples(0.1))
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, 1, 2, 4])), min_size=2, max_size=8))
def test_nobody_starves_beside_an_owner_with_endless_work(wanted: list[tuple[str, int]]) -> None:
    world = pool(half_life_s=3600.0)
    for number, (owner, gpus) in enumerate(wanted):
        world.submit(f"{owner}{number}", request=run(owner, gpus=gpus), service_s=300.0)
    for again in range(400):
        world.submit(f"z{again}", request=Request(preemptible=True, owner="z"), service_s=200.0)
        for job in list(world.places):
            if world.state.jobs[job].status is Status.LAUNCHING:
                world.train(job)
        world.wait(100.0)
        stopped(world)
        for job in [job for job in world.places if world.state.jobs[job].remaining_s(world.now) == 0.0]:
            world.end(job)
        if not any(job[0] in "ab" for job in world.state.jobs):
            return
    raise AssertionError(f"they wait for ever: {sorted(job for job in world.state.jobs if job[0] in 'ab')}")
