"""What a second of each job's work costs the cluster."""

from __future__ import annotations

import pytest

from prefect_gpu.papers.deepshare import compositions
from prefect_gpu.papers.deepshare.prices import Prices
from prefect_gpu.papers.deepshare.profiles import greedy
from prefect_gpu.papers.deepshare.speeds import Speeds
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable
from prefect_gpu.scheduling.model.abilities import Abilities
from prefect_gpu.scheduling.model.jobs import Job
from tests.papers.deepshare.test_contention_aware import SPEEDS, Cluster

NARROW = {key: speed for key, speed in SPEEDS.items() if key.nodes == 2}
LOUD, QUIET = Key("loud", 4, 2), Key("quiet", 4, 2)
RATIOS = {(LOUD, LOUD): 0.55, (LOUD, QUIET): 0.8, (QUIET, LOUD): 0.9, (QUIET, QUIET): 1.0}


def priced(world: Cluster, *keys: Key, prices: Prices | None = None) -> dict[Key, float] | None:
    state, profile = world.scheduler.state, world.scheduler.profile
    found = prices or Prices(Speeds(NARROW, fewest=True))
    return found.of(keys, Decision(state, profile.policies, Abilities(), world.now))


def with_jobs(louds: int, quiets: int, gpus: int = 4, **asks: float) -> Cluster:
    """Two nodes of so many devices, where these jobs run or wait: four devices each, on both nodes."""
    world = Cluster(greedy(SensitivityTable(RATIOS), NARROW), nodes=2, gpus=gpus)
    world.submit(*(f"l{n}" for n in range(louds)), kind="loud", gpus=4, **asks)
    world.submit(*(f"q{n}" for n in range(quiets)), kind="quiet", gpus=4, **asks)
    return world


def test_alone_among_its_like_a_job_costs_what_they_do_to_each_other() -> None:
    assert priced(with_jobs(6, 0), LOUD) == {LOUD: pytest.approx(1 / 0.55)}
    assert priced(with_jobs(0, 6), QUIET) == {QUIET: pytest.approx(1.0)}


def test_where_good_company_is_plenty_it_decides_the_price_and_where_it_is_scarce_it_is_dear() -> None:
    plenty = priced(with_jobs(1, 9), LOUD, QUIET)
    scarce = priced(with_jobs(9, 1), LOUD, QUIET)
    assert plenty is not None
    assert scarce is not None
    # A loud one beside a quiet one: 0.8 of the one and 0.9 of the other are done on the devices of both.
    assert 0.8 * plenty[LOUD] + 0.9 * plenty[QUIET] == pytest.approx(2.0)
    assert plenty[QUIET] == pytest.approx(1.0)
    assert plenty[LOUD] == pytest.approx(1.1 / 0.8)
    assert scarce[LOUD] == pytest.approx(1 / 0.55)
    assert scarce[QUIET] == pytest.approx((2 - 0.8 / 0.55) / 0.9)


def test_whole_nodes_and_single_ones_cost_what_they_take() -> None:
    world = with_jobs(2, 2)
    world.submit("whole", gpus=8)
    world.submit("one", gpus=1)
    found = priced(world, Key("quiet", 8, 2), Key("quiet", 1, 1))
    assert found == {Key("quiet", 8, 2): 1.0, Key("quiet", 1, 1): 1.0}


def test_there_are_none_where_nobody_meets_anybody_or_there_are_too_many_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Cluster(greedy(SensitivityTable(RATIOS), NARROW), nodes=2)
    world.submit("whole", gpus=8)
    world.submit("one", gpus=1)
    assert priced(world, Key("quiet", 8, 2)) is None
    assert priced(with_jobs(2, 2, gpus=3), LOUD) is None
    monkeypatch.setattr(compositions, "MOST", 2)
    assert priced(with_jobs(2, 2), LOUD) is None


def test_they_are_looked_at_again_when_somebody_new_comes_and_when_work_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = with_jobs(6, 0)
    prices = Prices(Speeds(NARROW, fewest=True))
    before = priced(world, LOUD, prices=prices)
    world.submit(*(f"q{n}" for n in range(20)), kind="quiet", gpus=4)
    assert priced(world, LOUD, prices=prices) == before, "nobody has asked about the new ones"
    after = priced(world, LOUD, QUIET, prices=prices)
    assert after is not None
    assert before is not None
    assert after[LOUD] < before[LOUD]
    asked: list[Job] = []
    monkeypatch.setattr(prices, "_renew", asked.append)
    priced(world, LOUD, QUIET, prices=prices)
    world.now = 1.0
    priced(world, LOUD, QUIET, prices=prices)
    assert not asked
    world.now = 10_000.0
    priced(world, LOUD, QUIET, prices=prices)
    assert len(asked) == 1
