"""Liquid's experiments in small: the direction of each effect, not the calibrated figures."""

from __future__ import annotations

import pytest

from prefect_gpu.papers.comparison import Comparison
from prefect_gpu.papers.liquid import experiments as liquid
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.simulation.effects.network import Network
from prefect_gpu.simulation.effects.sharing import Interference
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World


@pytest.fixture(scope="module")
def table() -> list[Comparison]:
    return liquid.compare(quick=True)


@pytest.mark.parametrize("kind", ["pre-scheduling", "sharing", "events", "immediate mode", "batch mode"])
def test_each_of_liquids_measures_helps(table: list[Comparison], kind: str) -> None:
    rows = [row for row in table if row.setting.startswith(kind)]
    assert rows and all(row.improvement > 0 for row in rows)


def test_the_same_comparison_comes_out_twice(table: list[Comparison]) -> None:
    assert liquid.compare(quick=True) == table


def test_every_row_says_what_was_assumed(table: list[Comparison]) -> None:
    assert all(row.paper == "liquid" and row.assumed for row in table)


def speed_at(*nodes: str, share: float = 1 / 3, company: tuple[str, ...] = ()) -> float:
    """Speed of a gang whose workers, and then whose server, are on these nodes."""
    world = World(liquid._t4_nodes(3), [], "fifo", physics=Network())

    def start(name: str, where: tuple[str, ...]) -> None:
        parts = [Placement(node, (), ()) for node in where]
        model = JobModel(name, 0.0, 100.0, Request(workers=2, servers=1), network_share=share)
        world._submit(model)
        place = Placement(parts[0].node, (), (), others=tuple(parts[1:]), servers=1)
        world._launch(world.runs[name], place)

    if company:
        start("other", company)
    start("gang", nodes)
    return Network().speed(world.runs["gang"], world)


def test_the_further_apart_a_gang_is_the_slower_it_trains() -> None:
    together, pair, apart = speed_at("n00", "n00", "n00"), speed_at("n00", "n01", "n00"), speed_at("n00", "n01", "n02")
    assert together == 1.0 > pair > apart == pytest.approx(0.5)


def test_a_program_that_communicates_more_suffers_more() -> None:
    vgg, resnet, inception = (
        speed_at("n00", "n01", "n02", share=p.network_share) for p in (liquid.VGG, liquid.RESNET, liquid.INCEPTION)
    )
    assert vgg < resnet < inception < 1.0


def test_gangs_on_the_same_links_slow_each_other_down() -> None:
    alone = speed_at("n00", "n01", "n02")
    assert speed_at("n00", "n01", "n02", company=("n00", "n01", "n02")) < alone
    assert speed_at("n00", "n01", "n02", company=("n00", "n00", "n00")) == alone


@pytest.mark.parametrize("make", [lambda: Network(remote=0.5), lambda: Interference(meeting=2.0)])
def test_effects_refuse_what_makes_no_sense(make: object) -> None:
    with pytest.raises(ValueError, match="give"):
        make()  # type: ignore[operator]
