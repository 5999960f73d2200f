"""A trained network decides as it was trained, on clusters of any size, and without the packages that trained it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.papers.deepshare.greedy import ContentionAware
from prefect_gpu.papers.deepshare.network import LEVELS, WEIGHTS, Array, Network, Starts
from prefect_gpu.papers.deepshare.observation import Encoding
from prefect_gpu.papers.deepshare.profiles import PROFILES, base, hybrid
from prefect_gpu.papers.deepshare.reward import BRANCHES
from prefect_gpu.papers.deepshare.shipped import available, content_of, policy_of, record, shipped
from prefect_gpu.papers.deepshare.trained_policy import TrainedPolicy
from prefect_gpu.papers.deepshare.view import View
from prefect_gpu.scheduling.interference.sensitivity import Candidate, Key, Running, SensitivityTable, Start
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.scheduling.order.orders import LeastService
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.scheduling.sharing.rules import NoSharing
from prefect_gpu.scheduling.state.learned import Learned
from tests.papers.deepshare.test_contention_aware import SPEEDS, Cluster, table

LEVELS_OF = {"loud": 1.0, "quiet": 0.5}
STARTS = Starts(Encoding(4, 8, LEVELS_OF))
WIDTHS = frozenset({2, 4})


def weights(seed: int = 0, hidden: int = 8, rest: int = 4, bias: float = 0.0) -> dict[str, Array]:
    """A network of random weights, with a bias against starting anything."""
    chooser = np.random.default_rng(seed)
    shapes = {
        "set_w": (4 * LEVELS, hidden),
        "cell_w": (LEVELS, hidden),
        "all_w": (2 * LEVELS, hidden),
        "start_b": (4, 8, hidden),
        "start_w": (hidden, 1),
        "node_w": (2 * LEVELS, rest),
        "node_b": (rest,),
        "demand_w": (32 * LEVELS, rest),
        "rest_w": (rest, 1),
        "rest_b": (1,),
    }
    found = {name: chooser.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    found["rest_b"] = found["rest_b"] + np.float32(bias)
    return found


def policy(seed: int = 0, bias: float = 0.0) -> TrainedPolicy:
    """A policy of random weights."""
    return TrainedPolicy(STARTS, Network(STARTS, weights(seed, bias=bias)))


def view(nodes: int, *jobs: tuple[str, int], running: tuple[Running, ...] = (), size: int = 8) -> View:
    """Waiting jobs, each of which may be spread over two or four nodes."""
    free = dict.fromkeys(range(nodes), size)
    for one in running:
        for node in one.nodes:
            free[node] -= one.key.gpus // one.key.nodes
    ways = [
        Candidate(at, Key(model, gpus, width), [frozenset(range(width))], 100.0)
        for at, (model, gpus) in enumerate(jobs)
        for width in (4, 2)
        if gpus % width == 0
    ]
    return View(ways, running, free, dict.fromkeys(range(nodes), size), SensitivityTable(), [range(nodes)])


# -- single starts ------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 8), min_size=4, max_size=4),
    st.sets(st.sampled_from([1, 2, 3, 4, 6, 8, 16, 32, 64]), max_size=3),
)
def test_what_the_mask_allows_fits_and_what_it_forbids_does_not(free: list[int], demands: set[int]) -> None:
    mask = STARTS.mask(free, dict.fromkeys(demands, WIDTHS))
    assert mask.shape == (7 * 8 + 1,) and mask[STARTS.nothing]
    allowed = {STARTS.meaning(answer) for answer in np.flatnonzero(mask[:-1])}
    assert allowed == {
        (gpus, nodes)
        for gpus in demands
        for nodes in STARTS.encoding.sets
        if gpus % len(nodes) == 0 and all(free[node] >= gpus // len(nodes) for node in nodes)
    }


@pytest.mark.parametrize("seed", range(8))
def test_no_start_is_on_nodes_of_two_domains(seed: int) -> None:
    near, far = [0, 2], [1, 3]
    seen = replace(view(4, ("VGG16", 8), ("VGG16", 4)), domains=[near, far])
    starts = policy(seed)(seen)
    assert starts, "where nobody runs, somebody is started"
    assert all(start.nodes <= set(near) or start.nodes <= set(far) for start in starts)


def test_a_job_is_only_spread_as_it_may_be() -> None:
    mask = STARTS.mask([8] * 4, {8: frozenset({4})})
    assert [STARTS.meaning(answer) for answer in np.flatnonzero(mask[:-1])] == [(8, frozenset(range(4)))]


@given(st.integers(0, 2**20), st.permutations(range(4)))
def test_nodes_that_change_places_change_nothing_but_their_places(seed: int, order: list[int]) -> None:
    network = Network(STARTS, weights())
    chooser = np.random.default_rng(seed)
    state = chooser.choice([0.0, 0.5, 1.0], size=(4, 16)).astype(np.float32)
    moved = state.copy()
    moved[:, :8] = state[order, :8]  # the right half is about candidates, not about nodes
    here, there = network.scores(np.stack([state, moved]))
    assert there[-1] == here[-1], "else the kind of processor would choose among nodes that are alike"
    for answer in range(STARTS.nothing):
        gpus, nodes = STARTS.meaning(answer)
        same = STARTS.encoding.sets.index(frozenset(order[node] for node in nodes))
        assert there[answer] == here[same * 8 + gpus // len(nodes) - 1]


# -- the policy ---------------------------------------------------------------------------------------------------


def test_the_start_with_the_highest_score_is_chosen() -> None:
    seen = view(4, ("loud", 2), ("quiet", 8))
    (start,) = policy()(seen)
    state = STARTS.encoding.observe([], [("loud", 2), ("quiet", 8)])
    scores = Network(STARTS, weights()).scores(state[None])[0]
    mask = STARTS.mask([8] * 4, {2: WIDTHS, 8: WIDTHS})
    best = int(np.where(mask[:-1], scores[:-1], -np.inf).argmax())
    assert (start.key.gpus, start.nodes) == STARTS.meaning(best)
    assert start.job == {2: 0, 8: 1}[start.key.gpus]


def test_where_nobody_runs_something_starts_whatever_the_network_says() -> None:
    reluctant = policy(bias=1e6)
    assert len(reluctant(view(4, ("loud", 2)))) == 1
    assert reluctant(view(4, ("loud", 2), running=(Running(Key("quiet", 2, 2), frozenset({0, 1})),))) == []


@pytest.mark.parametrize(("nodes", "size"), [(2, 8), (3, 4), (5, 8), (9, 2), (16, 16), (128, 8)])
def test_on_a_cluster_of_any_size_starts_fit_and_stay_within_a_window(nodes: int, size: int) -> None:
    eager = policy(seed=3, bias=-1e6)
    running: tuple[Running, ...] = ()
    for _ in range(2 * nodes):
        seen = view(nodes, ("loud", 2), ("quiet", 4), running=running, size=size)
        starts = eager(seen)
        if not starts:
            break
        (start,) = starts
        assert len({node // 4 for node in start.nodes}) == 1
        assert all(seen.free[node] >= start.key.gpus // len(start.nodes) for node in start.nodes)
        running = (*running, Running(start.key, start.nodes))
    assert len(running) >= min(nodes // 2, 2)


def test_the_network_alone_starts_what_it_knows_and_the_rule_starts_the_rest() -> None:
    cluster = Cluster(base(table(), SPEEDS, policy(bias=1e6)), gpus=8)
    cluster.submit("first", gpus=4)
    cluster.submit("second", gpus=4)
    assert list(cluster.places) == ["first"], "once one runs, the network wants nothing"
    cluster.submit("single", gpus=1)
    assert list(cluster.places) == ["first", "single"], "the network has no action for it"
    cluster = Cluster(hybrid(table(), SPEEDS, policy(bias=1e6)), gpus=8)
    cluster.submit("first", gpus=4)
    cluster.submit("second", gpus=4)
    assert list(cluster.places) == ["first", "second"], "on nothing, the rule decides"


# -- files --------------------------------------------------------------------------------------------------------


def test_a_policy_that_was_written_is_the_same_when_read() -> None:
    written = content_of(weights(5), LEVELS_OF)
    assert written == content_of(weights(5), LEVELS_OF)
    seen = view(4, ("loud", 2), ("quiet", 8))
    assert policy_of(written)(seen) == policy(5)(seen)


@pytest.mark.parametrize("content", [b"", b"PK nonsense", b"\x80\x04N."])
def test_a_file_that_is_no_policy_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="prefect-gpu train-policy"):
        policy_of(content)


def test_an_array_that_is_missing_is_named() -> None:
    arrays = weights()
    del arrays["rest_b"]
    with pytest.raises(ValueError, match="rest_b"):
        Network(STARTS, arrays)
    assert set(arrays) < set(WEIGHTS)


def test_a_branch_that_was_not_trained_is_refused() -> None:
    with pytest.raises(ValueError, match="branch='Z'"):
        shipped("Z")


@pytest.mark.parametrize("branch", available())
def test_each_branch_has_its_profiles_and_a_record_of_its_training(branch: str) -> None:
    for kind in ("base", "hybrid"):
        assert PROFILES[f"deepshare-{kind}-{branch.lower()}"]().name == f"deepshare-{kind}-{branch.lower()}"
    found = record(branch)
    assert found["w1"] == BRANCHES[branch]
    assert {"mix", "seed", "gamma", "episodes", "versions", "curve", "scores"} <= set(found)
    assert found["weights_at_step"] in [one["steps"] for one in found["validation"]]


def test_a_shipped_policy_needs_none_of_the_packages_that_trained_it() -> None:
    code = """
import json, sys
from prefect_gpu.papers.deepshare.profiles import base
from prefect_gpu.papers.deepshare.contended import draw, predicted_table
from prefect_gpu.papers.deepshare.world import DeepShareWorld
world = DeepShareWorld(draw(1, 12), predicted_table(), "deepshare-base", flaw=False)
world.run()
heavy = ("torch", "stable_baselines3", "sb3_contrib", "gymnasium", "pickle5")
print(json.dumps([len(world.results.unfinished), [name for name in heavy if name in sys.modules]]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250)
    assert json.loads(done.stdout) == [0, []]


def shown_to(*sizes: int, head: float = math.inf) -> list[set[int]]:
    """The GPUs of the jobs that a policy is shown, each time that it is asked; it starts nothing."""
    asked: list[set[int]] = []

    def policy(view: View) -> list[Start]:
        asked.append({one.key.gpus for one in view.candidates})
        return []

    allocation = ContentionAware(SPEEDS, policy, head=head)
    profile = Profile("test", LeastService(), sharing=NoSharing(), allocation=(allocation,), learned=Learned(table()))
    cluster = Cluster(profile)
    cluster.handle(
        ev.Together(
            tuple(
                ev.JobSubmitted(f"{gpus}", Request(gpus=gpus, kind="quiet", spans=True), "q", 0.0, 0.0)
                for gpus in sizes
            )
        )
    )
    return asked


def test_a_policy_may_be_shown_only_the_jobs_that_need_the_least() -> None:
    assert shown_to(1, 2, 4)[0] == {2, 4}, "not the one that fits one node"
    assert shown_to(2, 4, head=1.0)[0] == {2}
    assert shown_to(1, 2, head=1.0)[0] == set(), "another one comes first"
