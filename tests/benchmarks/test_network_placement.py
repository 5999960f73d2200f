"""The workload of the network's benchmark is the same for all policies, and its figures follow from its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._gangs.cluster import Cluster, lab_of, nodes_of
from benchmarks._gangs.pool import CORES_ASKED, Gang, Outcome
from benchmarks.network_placement import workload
from benchmarks.network_placement.__main__ import Found, claims_of, many_orders, table_of
from benchmarks.network_placement.predicted import Alone, figures, simulate, told
from prefect_gpu.scheduling.model.jobs import Estimate
from prefect_gpu.simulation.effects.links import Iteration

ALONE = Alone(
    {
        ("VGG-16", 2): Iteration(0.45, 0.53, 0.95),
        ("VGG-16", 3): Iteration(0.45, 0.58, 1.17),
        **{("ResNet-50", size): Iteration(0.42, 0.43, 0.51) for size in (2, 3)},
        **{("Inception V3", size): Iteration(0.52, 0.53, 0.61) for size in (2, 3)},
    },
    launching_s=0.5,
    saving_s=0.5,
)


def simulated_cluster(tmp_path: Path) -> Cluster:
    machines = lab_of(workload.SHAPE, tmp_path, "pgq", "10.75.0", containers=False)
    return Cluster(
        machines, nodes_of(machines, workload.SHAPE), CORES_ASKED, lambda: pytest.fail("nothing is started here")
    )


@pytest.mark.parametrize("mode", workload.MODES)
def test_a_seed_gives_the_same_gangs_each_time_and_another_seed_others(mode: str) -> None:
    assert workload.gangs(mode, 1) == workload.gangs(mode, 1) != workload.gangs(mode, 2)
    assert sorted((gang.program.name, gang.workers) for gang in workload.gangs(mode, 1)) == sorted(
        (program.name, workers) for program, workers in workload.MIX
    )


def test_a_batch_is_there_before_its_window_closes() -> None:
    assert max(gang.submit_s for gang in workload.gangs("batch", 1)) < workload.WINDOW_S


def test_a_gang_alone_takes_as_long_as_its_steps(tmp_path: Path) -> None:
    gangs = [Gang("one", workload.VGG, 2)]
    profile = workload.profiles("immediate")["ours"]()
    expected = 0.5 + workload.VGG.steps * 0.45 + 0.5
    assert simulate(gangs, profile, simulated_cluster(tmp_path), ALONE) == pytest.approx((expected, expected))


@pytest.mark.parametrize("mode", workload.MODES)
def test_all_policies_place_all_gangs(mode: str, tmp_path: Path) -> None:
    cluster = simulated_cluster(tmp_path)
    assert list(workload.profiles(mode)) == ["ours", "liquid", "random", "even", "kubernetes-default"]
    for make in workload.profiles(mode).values():
        mean_jct_s, makespan_s = simulate(workload.gangs(mode, 3), make(), cluster, ALONE)
        assert 10 < mean_jct_s < makespan_s


def test_many_orders_are_simulated_for_each_mode_and_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.network_placement.__main__._ORDERS", 10)
    said = many_orders(simulated_cluster(tmp_path), ALONE, ("batch",))
    ours = ["mean JCT, batch", "makespan, batch"]
    assert list(said) == [*ours, *(f"{name}, as published" for name in ours)]
    assert all(0 < value < 50 for value in said.values())
    assert said["makespan, batch"] > said["makespan, batch, as published"]


def test_the_scheduler_is_told_what_was_measured_alone_and_what_a_ring_sends() -> None:
    pair, three = told([Gang("a", workload.VGG, 2), Gang("b", workload.VGG, 3)], ALONE)
    assert pair.estimate == Estimate(33 * 0.45, 0.5, 0.5, sent_bps=pytest.approx(12.5e6 / 0.45))
    assert three.estimate.sent_bps == pytest.approx(4 / 3 * 12.5e6 / 0.45)


def test_figures_count_from_the_first_submission() -> None:
    def outcome(submitted_s: float, ended_s: float) -> Outcome:
        return Outcome(Gang("g", workload.VGG, 2), submitted_s, submitted_s, submitted_s, ended_s, ("n", "n"), (), 0.0)

    assert figures([outcome(1.0, 11.0), outcome(3.0, 9.0)]) == (8.0, 10.0)


def test_claims_are_about_all_others_and_the_farthest_simulated_figure() -> None:
    found = Found()
    for mode in workload.MODES:
        for one in ("ours", "liquid"):
            found.measured[mode, one] = [(8.0, 7.0), (8.0, 7.0), (4.0, 4.0)]
            found.simulated[mode, one] = [(8.0, 7.0), (8.0, 7.0), (4.0, 4.0)]
        for other in workload.OTHERS:
            found.measured[mode, other] = [(10.0, 10.0), (10.0, 10.0), (20.0, 20.0)]
            found.simulated[mode, other] = [(9.0, 10.0), (9.0, 10.0), (18.0, 20.0)]
    values = {claim.name: (round(claim.value, 1), claim.holds) for claim in claims_of(found, workload.MODES)}
    assert list(values.values()) == [(20.0, True), (30.0, True), (20.0, True), (30.0, True), (10.0, True)]
    row = table_of(found, workload.MODES)[2]
    assert (row["policy"], row["mean JCT, s (ours shorter by %)"]) == ("random", 20.0)
