"""Gangs of live contention cannot avoid the network, each pair is measured, and the figures follow from the runs."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from benchmarks._gangs.cluster import Cluster, lab_of, nodes_of
from benchmarks._gangs.pool import CORES_ASKED
from benchmarks.contention_live import workload
from benchmarks.contention_live.__main__ import Found, claims_of
from benchmarks.contention_live.predicted import Ends, many_orders, mean_jct_s
from benchmarks.contention_live.sensitivities import Pairs, Row, by_class, learned
from prefect_gpu.scheduling.interference.sensitivity import Key
from tests.benchmarks.quick import quick


def row(run: str, own: str, other: str, slowdown: float, nodes: int = 2) -> Row:
    return {
        "run_id": run,
        "program": own,
        "gpus": 4,
        "nodes": nodes,
        "beside": other,
        "beside_gpus": 4,
        "beside_nodes": 2,
        "slowdown": slowdown,
        "measured_at": 1.0,
    }


def test_a_seed_gives_the_same_gangs_each_time_and_another_seed_another_order() -> None:
    ours = workload.gangs(1)
    assert ours == workload.gangs(1) != workload.gangs(2)
    kinds = Counter((gang.program.name, gang.estimate.service_s) for gang in ours)
    assert len(ours) == 40 and len(kinds) == 12
    assert max(kinds.values()) - min(kinds.values()) <= 1


def test_no_gang_fits_a_node_and_all_of_them_fit_the_nodes_side_by_side() -> None:
    devices = workload.SHAPE.nodes * workload.SHAPE.devices
    assert workload.SHAPE.devices < workload.WORKERS and devices % workload.WORKERS == 0
    assert all(gang.request().total_gpus == workload.WORKERS for gang in workload.gangs(1))


def test_loud_gangs_use_most_of_the_link_and_quiet_ones_almost_nothing() -> None:
    parts = [
        workload.sent_bytes(one) / workload.SHAPE.link_bps / workload.step_s(one)
        for one in (workload.LOUD, workload.MIDDLE, workload.QUIET)
    ]
    assert parts == pytest.approx([0.88, 0.35, 0.03], abs=0.01)


def test_the_chain_has_each_pair_once_and_nobody_between_two_that_are_alike() -> None:
    names = [program.name for program in workload.CHAIN]
    met = [tuple(sorted(pair)) for pair in itertools.pairwise(names)]
    every = [tuple(sorted(pair)) for pair in itertools.combinations_with_replacement(set(names), 2)]
    assert sorted(met) == sorted(every)
    assert all(before != after for before, after in zip(names, names[2:], strict=False))


def test_of_each_run_the_last_word_counts_and_of_the_runs_the_median() -> None:
    rows = [row("a", "x", "y", 9.0), row("a", "x", "y", 1.5), row("b", "x", "y", 1.7, nodes=4), row("a", "y", "x", 1.1)]
    assert by_class(rows) == {
        "x beside y": {"slowdown": 1.6, "least": 1.5, "most": 1.7, "runs": 2},
        "y beside x": {"slowdown": 1.1, "least": 1.1, "most": 1.1, "runs": 1},
    }


def test_what_was_measured_is_learned_by_pair_as_placed() -> None:
    known = {(own, other): slowdown for own, other, slowdown in learned([row("a", "x", "y", 1.8, nodes=4)] * 5)}
    assert list(known) == [(Key("x", 4, 4), Key("y", 4, 2))]
    assert 1.5 < known[Key("x", 4, 4), Key("y", 4, 2)] <= 1.8


def test_claims_compare_each_of_ours_with_each_of_theirs_in_the_same_repeats() -> None:
    found = Found()
    found.jct_s.update({"las": [200.0, 100.0], "srtf": [100.0, 100.0], "deepshare-hybrid": [100.0, 90.0]})
    found.jct_s["adaptive"] = [110.0, 100.0]
    values = {claim.name: (claim.value, claim.holds) for claim in claims_of(found)}
    assert list(values.values()) == [(-30.0, True), (-5.0, True), (-22.5, True), (5.0, False)]
    [quick_one] = claims_of(found, quick=True)
    assert quick_one.name.startswith("adaptive against las") and quick_one.value == -22.5


def simulated_cluster(tmp_path: Path) -> Cluster:
    machines = lab_of(workload.SHAPE, tmp_path, "pgw", "10.82.0", containers=False)
    nodes = nodes_of(machines, workload.SHAPE)
    return Cluster(machines, nodes, CORES_ASKED, lambda: pytest.fail("nothing is started here"))


def pairs_of(slowdown: float) -> Pairs:
    loud = Key(workload.LOUD.name, 4, 2)
    return ((loud, loud, slowdown),)


def test_simulated_gangs_take_longer_where_loud_ones_slow_each_other_down(tmp_path: Path) -> None:
    cluster, ends = simulated_cluster(tmp_path), Ends(0.5, 1.0)
    one, two = (mean_jct_s(cluster, "las", 1, pairs_of(slowdown), ends) for slowdown in (1.0, 2.0))
    assert one < two < 2 * one


def test_orders_are_compared_one_by_one(tmp_path: Path) -> None:
    said = many_orders(simulated_cluster(tmp_path), ["srtf"], ["las", "srtf"], pairs_of(1.5), Ends(0.5, 1.0), orders=2)
    assert said["srtf against srtf"] == {"mean": 0.0, "least": 0.0, "most": 0.0}
    assert said["srtf against las"]["most"] <= said["srtf against las"]["mean"] < 0


@pytest.mark.needs("networks", "pytorch")
def test_quick_runs_real_gangs_measures_them_beside_each_other_and_reports(tmp_path: Path) -> None:
    said = quick("contention_live", "--folder", str(tmp_path), "--prefix", "pgw", "--subnet", "10.82.0")
    assert said["claims"]
    assert said["slowdowns"]["FSDP beside FSDP"]["slowdown"] > 1.0
    assert [len(one["gangs"]) for one in said["runs"]] == [workload.QUICK_JOBS] * len(said["table"])
    assert all(len(set(gang["nodes"].split())) > 1 for one in said["runs"] for gang in one["gangs"])
