"""Who slows whom down on a shared network, and what to start beside what."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.papers.deepshare.greedy import choose_wanted
from prefect_gpu.papers.deepshare.view import View
from prefect_gpu.scheduling.interference.sensitivity import (
    Candidate,
    Gains,
    Key,
    Running,
    SensitivityTable,
    Start,
    Traffic,
    choose_start,
    predicted_ratio,
)

FSDP, GNN, MOE = Key("FSDP", 8, 4), Key("GNN", 4, 2), Key("MoE", 4, 4)
MEASURED = {
    (FSDP, FSDP): 0.5,
    (FSDP, GNN): 0.98,
    (FSDP, MOE): 0.65,
    (GNN, FSDP): 0.87,
    (GNN, GNN): 0.88,
    (MOE, FSDP): 0.2,
    (MOE, GNN): 0.97,
}

# The paper's Table I.
TRAFFIC = {
    "GNN": Traffic(24.63e6, 0.57),
    "IMG": Traffic(211.25e6, 2.43),
    "DLRM": Traffic(170.28e6, 13.36),
    "LM": Traffic(854.82e6, 1.87),
    "FSDP": Traffic(2672.40e6, 7.32),
    "MoE": Traffic(929.48e6, 13.79),
}


def test_a_measured_pair_is_looked_up_and_has_a_direction() -> None:
    table = SensitivityTable(MEASURED)
    assert table.ratio(FSDP, GNN) == 0.98
    assert table.ratio(GNN, FSDP) == 0.87


def test_no_ratio_is_below_the_floor() -> None:
    assert SensitivityTable(MEASURED).ratio(MOE, FSDP) == 0.35


def test_the_worst_neighbour_counts_and_alone_there_is_none() -> None:
    table = SensitivityTable(MEASURED)
    assert table.among(FSDP, []) == 1.0
    assert table.among(FSDP, [GNN, MOE, GNN]) == 0.65


def test_an_unknown_size_is_the_mean_of_the_same_two_models() -> None:
    table = SensitivityTable({(FSDP, FSDP): 0.5, (FSDP, Key("FSDP", 2, 2)): 0.7}, TRAFFIC)
    assert table.ratio(Key("FSDP", 4, 4), Key("FSDP", 4, 2)) == pytest.approx(0.6)


def test_unknown_models_are_predicted_from_their_traffic() -> None:
    table = SensitivityTable(MEASURED, TRAFFIC)
    assert table.ratio(MOE, Key("LM", 4, 2)) == predicted_ratio(TRAFFIC["MoE"], TRAFFIC["LM"])


def test_what_nothing_is_known_of_is_taken_to_be_harmless() -> None:
    assert SensitivityTable(MEASURED).ratio(FSDP, Key("new", 2, 2)) == 1.0


def test_measurements_of_a_pair_are_averaged() -> None:
    table = SensitivityTable()
    for ratio in (0.5, 0.7, 1.2):  # faster than alone is noise
        table.learn(FSDP, GNN, ratio)
    assert table.ratio(FSDP, GNN) == pytest.approx((0.5 + 0.7 + 1.0) / 3)


def test_predictions_follow_the_paper_s_findings() -> None:
    cs = {(own, other): 1 / predicted_ratio(TRAFFIC[own], TRAFFIC[other]) for own in TRAFFIC for other in TRAFFIC}
    # FSDP and MoE beside each other and themselves suffer most; GNN suffers and harms hardly.
    assert min(cs["FSDP", "FSDP"], cs["FSDP", "MoE"], cs["MoE", "FSDP"], cs["MoE", "MoE"]) > 1.7
    assert max(cs[pair] for pair in cs if "GNN" in pair) < 1.1
    assert cs["FSDP", "IMG"] < 1.45
    assert cs["MoE", "FSDP"] == max(cs.values()) or cs["FSDP", "FSDP"] == max(cs.values())


def test_a_faster_link_makes_contention_milder() -> None:
    slow, fast = (predicted_ratio(TRAFFIC["MoE"], TRAFFIC["FSDP"], link) for link in (1.25e9, 25e9))
    assert slow < fast < 1


def pairs(nodes: int = 4) -> list[frozenset[int]]:
    """All pairs of nodes."""
    return [frozenset(pair) for pair in combinations(range(nodes), 2)]


ALL = frozenset(range(4))
A, B = Key("A", 8, 4), Key("B", 4, 2)
FREE = dict.fromkeys(range(4), 8)

# candidates, running jobs, free GPUs by node, measured ratios, and what is started
STARTS: dict[
    str,
    tuple[list[Candidate], list[Running], dict[int, int], dict[tuple[Key, Key], float], Start | None],
] = {
    "on an empty cluster the job with the least left to compute starts": (
        [Candidate(0, A, [ALL], 100.0), Candidate(1, B, pairs(), 150.0), Candidate(2, B, pairs(), 300.0)],
        [],
        FREE,
        {},
        Start(1, B, frozenset({0, 1})),  # 1 / (150 x 4) beats 1 / (100 x 8)
    ),
    "a job starts where it disturbs nobody": (
        [Candidate(0, B, pairs(), 100.0)],
        [Running(A, frozenset({0, 1}))],
        FREE,
        {(A, B): 0.9, (B, A): 0.9},
        Start(0, B, frozenset({2, 3})),
    ),
    "what the others lose is taken off": (
        # Beside A the job 0 changes ratios by 0.7 - 0.3 and job 1 by 0.9 - 0.1; both have as much left.
        [Candidate(0, Key("C", 8, 4), [ALL], 100.0), Candidate(1, Key("D", 8, 4), [ALL], 100.0)],
        [Running(A, ALL)],
        FREE,
        {(Key("C", 8, 4), A): 0.7, (A, Key("C", 8, 4)): 0.7, (Key("D", 8, 4), A): 0.9, (A, Key("D", 8, 4)): 0.9},
        Start(1, Key("D", 8, 4), ALL),
    ),
    "a job that would run too slowly waits": (
        [Candidate(0, B, [ALL], 100.0)],
        [Running(A, ALL)],
        FREE,
        {(B, A): 0.59, (A, B): 1.0},
        None,
    ),
    "a job that would slow another down too much waits": (
        [Candidate(0, B, [ALL], 100.0)],
        [Running(A, ALL)],
        FREE,
        {(B, A): 1.0, (A, B): 0.59},
        None,
    ),
    "just fast enough is fast enough": (
        [Candidate(0, B, [ALL], 100.0)],
        [Running(A, ALL)],
        FREE,
        {(B, A): 0.6, (A, B): 0.6},
        Start(0, B, ALL),
    ),
    "a job that is slowed down already loses no more to a milder neighbour": (
        # A is at 0.7 beside C, and D alone would bring it to 0.8.
        [Candidate(0, Key("D", 4, 4), [ALL], 100.0)],
        [Running(A, ALL), Running(Key("C", 8, 4), ALL)],
        FREE,
        {(A, Key("C", 8, 4)): 0.7, (A, Key("D", 4, 4)): 0.8},
        Start(0, Key("D", 4, 4), ALL),
    ),
    "a node with too few GPUs free is left out": (
        [Candidate(0, B, pairs(), 100.0)],
        [],
        {0: 1, 1: 8, 2: 1, 3: 2},
        {},
        Start(0, B, frozenset({1, 3})),
    ),
    "nothing waits, nothing starts": ([], [], FREE, {}, None),
}


@pytest.mark.parametrize("case", STARTS)
def test_what_starts_next(case: str) -> None:
    candidates, running, free, measured, expected = STARTS[case]
    assert choose_start(candidates, free, Gains(running, SensitivityTable(measured))) == expected


NO_GAINS = Gains([], SensitivityTable())


def view(candidates: list[Candidate]) -> View:
    return View(candidates, [], FREE, FREE, SensitivityTable(), ())


def test_a_higher_power_of_the_gpus_prefers_jobs_of_few() -> None:
    candidates = [Candidate(0, A, [ALL], 100.0), Candidate(1, B, pairs(), 250.0)]  # 800 and 1000 GPU-seconds
    chosen = [choose_wanted(view(candidates), NO_GAINS, power) for power in (1.0, 1.5)]
    assert [start.job for start in chosen if start] == [0, 1]


def test_a_start_that_is_wanted_is_made_if_it_is_nearly_as_good_as_the_best() -> None:
    candidates = [Candidate(0, A, [ALL], 100.0), Candidate(1, A, [ALL], 110.0), Candidate(2, A, [ALL], 120.0)]
    wanted = [Start(1, A, ALL)]
    for least_value, expected in ((0.9, 1), (0.92, 0), (0.0, 1)):  # it is worth 100/110 of the best
        chosen = choose_wanted(view(candidates), NO_GAINS, 1.0, [Start(7, A, ALL), *wanted], least_value)
        assert chosen == Start(expected, A, ALL)
    slowed = {(A, B): 0.5, (B, A): 1.0}
    running = [Running(B, frozenset({0, 1}))]
    assert choose_wanted(view(candidates), Gains(running, SensitivityTable(slowed)), 1.0, wanted, 0.0) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Traffic(-1.0, 1.0), "bytes_per_s is -1"),
        (lambda: SensitivityTable({(FSDP, GNN): 0.0}), "ratio of .* is 0"),
        (lambda: predicted_ratio(TRAFFIC["LM"], TRAFFIC["LM"], 0.0), "link_bytes_per_s is 0"),
        (lambda: choose_start([Candidate(3, A, [ALL], 0.0)], FREE, NO_GAINS), "job 3 is 0"),
        (lambda: choose_start([Candidate(3, Key("A", 3, 2), pairs(), 1.0)], FREE, NO_GAINS), "evenly"),
    ],
)
def test_senseless_input_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()  # type: ignore[operator]


keys = st.tuples(st.sampled_from(sorted(TRAFFIC)), st.sampled_from([(2, 2), (4, 2), (4, 4), (8, 2), (8, 4)])).map(
    lambda found: Key(found[0], *found[1])
)
rates = st.builds(Traffic, st.floats(0, 1e11), st.floats(0, 1e3))


@given(rates, rates, rates)
def test_a_predicted_ratio_is_within_0_and_1_and_falls_with_the_neighbour_s_bandwidth(
    own: Traffic, other: Traffic, third: Traffic
) -> None:
    quieter, louder = sorted((other, third), key=lambda traffic: traffic.bytes_per_s)
    assert 1 / 3 <= predicted_ratio(own, louder) <= predicted_ratio(own, quieter) <= 1


@given(st.lists(st.tuples(keys, st.floats(1, 1e4)), max_size=12), st.floats(0.36, 1))
def test_filling_a_cluster_greedily_ends_within_its_gpus_and_leaves_nobody_too_slow(
    jobs: list[tuple[Key, float]], least: float
) -> None:
    table = SensitivityTable(traffic=TRAFFIC)
    free = dict(FREE)
    running: list[Running] = []
    waiting = {
        number: Candidate(number, key, [ALL] if key.nodes == 4 else pairs(), left)
        for number, (key, left) in enumerate(jobs)
    }
    while True:
        chosen = choose_start(waiting.values(), free, Gains(running, table, least))
        if chosen is None:
            break
        del waiting[chosen.job]
        running.append(Running(chosen.key, chosen.nodes))
        for node in chosen.nodes:
            free[node] -= chosen.key.gpus // chosen.key.nodes
    assert min(free.values()) >= 0
    for job in running:
        others = [other.key for other in running if other is not job and other.nodes & job.nodes]
        assert table.among(job.key, others) >= least
    assert running or not jobs
