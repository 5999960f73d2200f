"""Jobs on several nodes slow each other down where they meet; nobody on one node takes part."""

from __future__ import annotations

import pytest

from prefect_gpu.papers.deepshare.speeds import Speeds
from prefect_gpu.papers.from_trace import cluster
from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.simulation.effects.contention import Contention
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World
from tests.simulation.where import Where

ON_TWO = Key("A", 2, 2)
TABLE = {(ON_TWO, ON_TWO): 0.5}


def ends(services: dict[str, float], speeds: dict[Key, float] | None = None) -> dict[str, float]:
    """When jobs end that begin together, by where they are; each has so many seconds of service."""
    jobs = [JobModel(name, 0.0, seconds, Request(2, spans=True), kind="A") for name, seconds in services.items()]
    physics = Contention(SensitivityTable(TABLE), Speeds(speeds))
    results = World(cluster(4, 8), jobs, Profile("where", placement=Where()), physics=physics).run()
    return {outcome.job: outcome.end_s or 0.0 for outcome in results.outcomes}


def test_two_jobs_that_share_a_node_slow_each_other_down_until_one_has_ended() -> None:
    assert ends({"n0+n1": 10.0, "n1+n2": 15.0}) == pytest.approx({"n0+n1": 20.0, "n1+n2": 25.0})


def test_two_jobs_that_share_no_node_do_not_meet() -> None:
    assert ends({"n0+n1": 10.0, "n2+n3": 10.0}) == pytest.approx({"n0+n1": 10.0, "n2+n3": 10.0})


def test_a_job_on_one_node_disturbs_nobody_and_nobody_disturbs_it() -> None:
    assert ends({"n0+n0": 10.0, "n0+n1": 10.0}) == pytest.approx({"n0+n0": 10.0, "n0+n1": 10.0})


def test_a_job_has_the_speed_that_was_measured_for_its_spread() -> None:
    speeds = {Key("A", 2, 1): 12.0, ON_TWO: 6.0}
    assert ends({"n0+n0": 10.0, "n1+n2": 10.0}, speeds) == pytest.approx({"n0+n0": 10.0, "n1+n2": 20.0})
