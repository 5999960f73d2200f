"""Gangs on measured links: a gang alone, two on one link, and those that do not meet."""

from __future__ import annotations

import pytest

from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.simulation.effects.links import Iteration, SharedLinks
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World
from tests.simulation.where import Where

NODES = [
    Node(f"n{at}", tuple(Device(f"n{at}-{gpu}", "T4", 1) for gpu in range(2)), (), rack=f"rack{at // 2}")
    for at in range(4)
]
LINKS = SharedLinks({("heavy", 2): Iteration(1.0, 2.0, 5.0), ("light", 2): Iteration(1.0, 1.0, 1.0)})


def ends(*names: str, kind: str = "heavy") -> list[float]:
    """When each of the gangs ends that begin together, each with 10 s of service."""
    jobs = [JobModel(name, 0.0, 10.0, Request(workers=2), kind=kind) for name in names]
    results = World(NODES, jobs, Profile("where", placement=Where()), physics=LINKS).run()
    return [outcome.end_s or 0.0 for outcome in results.outcomes]


@pytest.mark.parametrize(("name", "seconds"), [("n0+n0", 10.0), ("n0+n1", 20.0), ("n0+n2", 50.0)])
def test_a_gang_alone_is_as_fast_as_was_measured(name: str, seconds: float) -> None:
    assert ends(name) == pytest.approx([seconds])


def test_two_gangs_on_one_link_share_it() -> None:
    """Each would use the link for four fifths of the time; together they fill it: 8 s for an iteration of each."""
    first, second = ends("n0+n2", "n1+n3")
    assert first == second == pytest.approx(10 * (1 + 4 * (1 + 0.88)), rel=0.02)
    assert first == pytest.approx(80.0, rel=0.1)


def test_gangs_in_different_racks_do_not_meet() -> None:
    assert ends("n0+n1", "n2+n3") == pytest.approx([20.0, 20.0])


def test_gangs_on_the_links_of_the_same_nodes_meet() -> None:
    first, second = ends("n0+n1 a", "n0+n1 b")
    assert first == second == pytest.approx(10 * (1 + 1 * 1.62), rel=0.02)  # x = 1 + x / (1 + x): the golden ratio


def test_what_does_not_communicate_is_never_slowed_down() -> None:
    assert ends("n0+n2", "n1+n3", kind="light") == pytest.approx([10.0, 10.0])


def test_a_gang_is_faster_once_the_other_has_gone() -> None:
    jobs = [
        JobModel("n0+n2", 0.0, 5.0, Request(workers=2), kind="heavy"),
        JobModel("n1+n3", 0.0, 10.0, Request(workers=2), kind="heavy"),
    ]
    results = World(NODES, jobs, Profile("where", placement=Where()), physics=LINKS).run()
    first, second = (outcome.end_s or 0.0 for outcome in results.outcomes)
    assert second - first == pytest.approx(25.0, rel=0.01)  # half of it was left, at the pace of one alone
