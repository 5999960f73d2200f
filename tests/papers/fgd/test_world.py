"""The world of FGD's simulator: its rules and its authors' scores, on numbers that fit on a page."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.papers.fgd.authors import BestFit, Fgd
from prefect_gpu.papers.fgd.ours import Expecting
from prefect_gpu.papers.fgd.simulation import read_workload, simulate_fgd
from prefect_gpu.papers.fgd.tables import Machine, Shape, read_pods
from prefect_gpu.papers.fgd.world import Cluster, FgdWorld, Policy, Whole
from prefect_gpu.papers.unsuitable import Unsuitable
from prefect_gpu.simulation.traces.job import TraceError
from tests.papers.fgd.small import write_workload

TWO = Machine("two", 8000, 1000, 2, "T4")
FOUR = Machine("four", 8000, 1000, 4, "G2")
ONE, HALF, CPU = Shape(1000, 10, 1000, 1), Shape(1000, 10, 500, 1), Shape(1000, 10, 0, 0)


class Scripted:
    """Places the pods where it was written down."""

    def __init__(self, *places: tuple[int, tuple[int, ...]]) -> None:
        self.places = list(places)

    def arrives(self, shape: Shape, cluster: Cluster) -> None: ...

    def place(self, shape: Shape, cluster: Cluster, fitting: Whole) -> tuple[int, tuple[int, ...]]:
        return self.places.pop(0)


def test_what_fits_has_cores_memory_model_and_devices() -> None:
    cluster = Cluster([TWO, FOUR])
    assert cluster.fitting(Shape(1000, 10, 1000, 4)).tolist() == [1]
    assert cluster.fitting(Shape(1000, 10, 300, 1, "A10|T4")).tolist() == [0]
    assert cluster.fitting(Shape(1000, 10, 300, 1, "A10")).tolist() == []
    assert [len(cluster.fitting(Shape(*asked, 0, 0))) for asked in ((8000, 1000), (8001, 1000), (8000, 1001))] == [
        2,
        0,
        0,
    ]
    cluster.take(1, HALF, (2,))
    assert cluster.fitting(Shape(0, 0, 1000, 4)).tolist() == []


def test_a_part_goes_to_the_fullest_device_and_whole_ones_are_the_first_free() -> None:
    cluster = Cluster([FOUR])
    cluster.take(0, HALF, (1,))
    assert cluster.devices(0, HALF) == (1,)
    assert cluster.devices(0, Shape(0, 0, 600, 1)) == (0,)
    assert cluster.devices(0, Shape(0, 0, 1000, 2)) == (0, 2)


@pytest.mark.parametrize("place", [(0, (0, 0)), (0, (0,)), (1, (0, 1))])
def test_what_there_is_not_cannot_be_given(place: tuple[int, tuple[int, ...]]) -> None:
    """A device twice, too few of them, a model that the pod does not accept."""
    with pytest.raises(RuntimeError, match="gives Shape"):
        FgdWorld([TWO, FOUR], [Shape(0, 0, 1000, 2, "T4")], Scripted(place)).run()


def test_figures_are_means_over_the_arrivals_at_a_per_cent_and_count_the_lost() -> None:
    """Each pod asks for half of the cluster; the third is lost."""
    world = FgdWorld([TWO], [ONE, ONE, ONE, CPU], BestFit())
    results = world.run()
    assert world.allocated_at() == {50: 50.0, 100: 100.0, 150: 100.0}
    assert results.placed == {"pods": 4, "lost": 1, "allocated_at_100_fraction": 1.0, "allocated_fraction": 1.0}
    assert [world.lost, results.decisions] == [1, 4]
    summary = results.summary()
    assert summary["lost"] == 1 and "mean_jct_s" not in summary


def test_best_fit_takes_the_node_with_the_least_left_and_of_equal_ones_the_first() -> None:
    cluster = Cluster([FOUR, TWO, TWO])
    assert BestFit().place(ONE, cluster, cluster.fitting(ONE)) == (1, (0,))
    # By the rule, truncated: 100 · (1 − ½ · 7000/128000 − ½ · 1000/8000) = 91.01…
    scores, _ = BestFit().score(ONE, cluster, np.array([1]))
    assert scores.tolist() == [91]


def test_fgd_keeps_whole_what_whole_pods_are_expected_for() -> None:
    """Half a device is taken of one that is begun already, as most pods ask for whole ones."""
    cluster = Cluster([FOUR, TWO])
    cluster.take(1, HALF, (1,))
    assert Fgd([ONE] * 9 + [HALF]).place(HALF, cluster, cluster.fitting(HALF)) == (1, (1,))


def test_fgds_score_by_hand() -> None:
    """All pods ask for a whole device. Of two, half of one is taken: 500 milli become a fragment, and none were.

    100 · sigmoid(−0.5) = 37.75…; where the device was begun before, its 500 are none any more: 100 · sigmoid(0.5).
    """
    cluster = Cluster([TWO, TWO])
    cluster.take(1, HALF, (0,))
    scores, devices = Fgd([ONE]).score(HALF, cluster, np.array([0, 1]))
    assert scores.tolist() == [math.floor(100 / (1 + math.exp(0.5))), math.floor(100 / (1 + math.exp(-0.5)))]
    assert devices.tolist() == [0, 0]


def test_typical_pods_are_the_most_frequent_down_to_95_in_100() -> None:
    """The pods of the rare kind would need the T4; they are no more than one in twenty."""
    cluster = Cluster([TWO, FOUR])
    rare = Shape(1000, 10, 1000, 1, "T4")
    common = [Shape(1000, 10, 1000, 1, "G2")] * 19
    assert Fgd([*common, rare]).place(ONE, cluster, cluster.fitting(ONE))[0] == 0
    assert Fgd([rare] * 20).place(ONE, cluster, cluster.fitting(ONE))[0] == 1


def test_scores_are_remembered_only_until_a_node_changes() -> None:
    """The same as if each were found anew."""
    shapes = [HALF, ONE, CPU, HALF, Shape(500, 5, 300, 1), ONE, HALF, HALF, CPU, Shape(0, 0, 1000, 2)] * 3
    kept, cluster = Fgd(shapes), Cluster([TWO, FOUR, TWO, FOUR])
    for shape in shapes:
        fitting = cluster.fitting(shape)
        if len(fitting):
            place = kept.place(shape, cluster, fitting)
            assert place == Fgd(shapes).place(shape, cluster, fitting)
            cluster.take(place[0], shape, place[1])


def test_ours_leaves_scarce_models_to_those_who_need_them() -> None:
    t4_only = Shape(1000, 10, 1000, 1, "T4")
    cluster = Cluster([TWO, FOUR])
    ours = Expecting([ONE, ONE, t4_only, t4_only])
    ours.arrives(ONE, cluster)
    assert ours.place(ONE, cluster, cluster.fitting(ONE))[0] == 1


def test_ours_learns_from_the_first_pods() -> None:
    """Nothing is known at first; then most ask for whole nodes of four, and one keeps away from those."""
    whole = Shape(1000, 10, 1000, 4)
    policy, cluster = Expecting(), Cluster([Machine("three", 8000, 1000, 3, "G2"), FOUR])
    cluster.take(1, CPU, ())
    for _ in range(25):
        policy.arrives(whole, cluster)
    assert policy.place(ONE, cluster, cluster.fitting(ONE))[0] == 0


POLICIES = {"bestfit": lambda _: BestFit(), "fgd": Fgd, "ours": Expecting, "ours, learned": lambda _: Expecting()}
PARTS = st.sampled_from([50, 190, 470, 810, 1000])
SHAPES = st.one_of(
    st.builds(
        Shape, st.integers(0, 3000), st.integers(0, 200), PARTS, st.just(1), st.sampled_from(["", "T4", "G2|T4"])
    ),
    st.builds(Shape, st.integers(0, 3000), st.integers(0, 200), st.just(1000), st.sampled_from([2, 4])),
    st.builds(Shape, st.integers(0, 3000), st.integers(0, 200), st.just(0), st.just(0)),
)


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=10)
@given(shapes=st.lists(SHAPES, min_size=1, max_size=30))
def test_never_more_than_there_is_always_where_there_is_room_and_always_the_same(
    name: str, shapes: list[Shape]
) -> None:
    """``take`` checks each placement; a pod is lost only where no node fits, and a second time all goes alike."""
    machines = [TWO, FOUR, TWO]
    worlds = [FgdWorld(machines, shapes, policy) for policy in (POLICIES[name](shapes), POLICIES[name](shapes))]
    for world in worlds:
        world.run()
    assert worlds[0].cluster.changes == worlds[1].cluster.changes
    assert (worlds[0].cluster.milli == worlds[1].cluster.milli).all()
    assert worlds[0].cluster.milli.min() >= 0
    assert len(worlds[0].cluster.changes) + worlds[0].lost == len(shapes)
    anew, placed = Cluster(machines), iter(worlds[0].cluster.changes)
    policy: Policy = POLICIES[name](shapes)
    for shape in shapes:
        policy.arrives(shape, anew)
        fitting = anew.fitting(shape)
        if len(fitting):
            node, devices = policy.place(shape, anew, fitting)
            assert node == next(placed), "whoever fits is placed"
            anew.take(node, shape, devices)


def test_a_workload_is_read_as_it_was_drawn(tmp_path: Path) -> None:
    pods = write_workload(tmp_path, arriving=[3, 0, 0], rank=[2, 0, 1])
    found = read_workload(pods, tmp_path, 42)
    assert [machine.name for machine in found.machines] == ["n1", "n2", "n0"]
    assert [pod.job_id for pod in found.arriving] == ["p3", "p0", "p0"]
    assert found.pods[3].shape == Shape(4000, 1024, 1000, 2, "G2|T4")
    assert found.pods[1].gpu_share == 0.5 and found.pods[2].gpus == 0
    for profile, knowledge in (("adaptive", "exact"), ("adaptive", "learned"), ("fgd", "none"), ("bestfit", "exact")):
        assert simulate_fgd(found, profile, knowledge).placed["lost"] == 0


def test_without_arrivals_each_pod_comes_once(tmp_path: Path) -> None:
    found = read_workload(write_workload(tmp_path), tmp_path, 0)
    assert [pod.job_id for pod in found.arriving] == ["p0", "p1", "p2", "p3"]


def test_what_cannot_be_is_named(tmp_path: Path) -> None:
    pods = write_workload(tmp_path, arriving=[0, 4])
    with pytest.raises(ValueError, match=r"seed=1 was not drawn in .*: choose one of 42"):
        read_workload(pods, tmp_path, 1)
    with pytest.raises(ValueError, match="was not drawn of"):
        read_workload(pods, tmp_path, 42)
    (tmp_path / "arrivals_tiny.json.gz").write_text("{}]")
    with pytest.raises(ValueError, match="holds no arrivals by seed"):
        read_workload(pods, tmp_path, 42)
    pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\nx,1,1,2,500\n")
    with pytest.raises(TraceError, match="gpu_milli=500 is a part of several GPUs: give 1000"):
        read_pods(pods)
    with pytest.raises(Unsuitable, match="profile='srtf' with knowledge='exact' is not known in world='fgd'"):
        simulate_fgd(read_workload(write_workload(tmp_path, arriving=[0]), tmp_path, 42), "srtf")
