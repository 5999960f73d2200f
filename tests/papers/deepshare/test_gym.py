"""The training environment keeps gymnasium's rules and the paper's."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from prefect_gpu.papers.deepshare.contended import draw
from prefect_gpu.papers.deepshare.gym import ContentionEnv, StartsEnv
from prefect_gpu.papers.deepshare.reward import BRANCHES


def small(**options: Any) -> ContentionEnv:
    """Episodes of 24 jobs."""
    return ContentionEnv(lambda generator: draw(int(generator.integers(1000)), 24), **options)


def play(env: ContentionEnv, seed: int) -> tuple[list[float], dict[str, Any]]:
    """An episode of possible answers at random: (rewards, last info)."""
    _, info = env.reset(seed=seed)
    chooser = np.random.default_rng(seed)
    rewards = []
    while True:
        answers = np.array([chooser.choice(np.flatnonzero(row)) for row in info["action_mask"]])
        _, worth, over, cut, info = env.step(answers)
        rewards.append(worth)
        if over or cut:
            return rewards, info


@pytest.mark.parametrize("shape", [{}, {"nodes": 2, "gpus_per_node": 4}, {"nodes": 8, "candidates": 2}])
def test_gymnasium_has_nothing_to_complain_about(shape: dict[str, int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(small(**shape), skip_render_check=True)


def test_the_spaces_are_the_paper_s() -> None:
    env = ContentionEnv()
    assert env.observation_space.shape == (4, 16)
    assert [frozenset(chosen) for chosen in env.encoding.sets[6:]] == [frozenset(range(4))]
    assert len(env.encoding.sets) + 1 == 8, "six pairs, all four, nothing"
    assert list(env.action_space.nvec) == [8, 8, 8]  # type: ignore[attr-defined]


def test_an_episode_ends_with_its_last_job_and_is_the_same_again() -> None:
    first, second, third = (play(small(), seed) for seed in (5, 5, 6))
    assert first[0] == second[0] != third[0]
    assert first[1]["ended"] == 24


def test_starting_nothing_for_ever_is_cut_off() -> None:
    env = small(most_rounds=3)
    env.reset(seed=1)
    nothing = np.array([7, 7, 7])
    assert [env.step(nothing)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


def test_the_mask_says_what_fits_and_nothing_always_does() -> None:
    env = small()
    _, info = env.reset(seed=2)
    mask = info["action_mask"]
    assert mask.shape == (3, 8)
    assert mask[:, 7].all()
    assert mask[0].tolist() == [True] * 6 + [False, True], "two GPUs cannot go on four nodes"
    assert env.action_masks().tolist() == mask.reshape(-1).tolist()
    for _ in range(8):
        _, _, _, _, info = env.step(np.array([0, 0, 0]))
        for row, job in zip(info["action_mask"], env._candidates, strict=True):
            fits = [env.cluster.fits(job.gpus, nodes) and job.gpus >= len(nodes) for nodes in env.encoding.sets]
            assert row[:-1].tolist() == fits


def test_the_reward_weighs_contention_as_the_branch_says() -> None:
    rewards = {}
    for branch in BRANCHES:
        env = small(branch=branch)
        env.reset(seed=3)
        rewards[branch] = env.step(np.array([0, 6, 6]))[1]
    used, slow = env.cluster.used[0], np.mean([1 / job.ratio for job in env.cluster.running])
    for branch, w1 in BRANCHES.items():
        assert rewards[branch] == pytest.approx(-w1 * slow + (1 - w1) * used)


def test_the_state_shows_who_is_where_and_who_could_be() -> None:
    env = small()
    state, _ = env.reset(seed=4)
    assert not state[:, :8].any(), "nobody runs"
    demands = {(row, column - 7) for row, column in zip(*np.nonzero(state), strict=True)}
    # 2 GPUs: 1 × 2, 2 × 1; 4: 1 × 4, 2 × 2, 4 × 1; 8: 1 × 8, 2 × 4, 4 × 2. Rows are powers of two of the nodes.
    assert demands == {(0, 2), (1, 1), (0, 4), (1, 2), (2, 1), (0, 8), (1, 4), (2, 2)}
    state = env.step(np.array([0, 7, 7]))[0]
    assert np.count_nonzero(state[:, :8], axis=1).tolist() == [1, 1, 0, 0]


def test_a_branch_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="branch='Z'"):
        small(branch="Z")
    with pytest.raises(ValueError, match="nodes is 9"):
        small(nodes=9)


# -- one start a step ---------------------------------------------------------------------------------------------


def by_starts(**options: Any) -> StartsEnv:
    """Episodes of 24 jobs, one start a step."""
    return StartsEnv(lambda generator: draw(int(generator.integers(1000)), 24), **options)


@pytest.mark.needs("rl")
def test_gymnasium_and_stable_baselines_have_nothing_to_complain_about_with_one_start_a_step() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(by_starts(), skip_render_check=True)
    checker = import_module("stable_baselines3.common.env_checker")
    checker.check_env(by_starts(), warn=True)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_mask_allows_can_be_done_and_a_round_s_rewards_sum_up_to_its_own(seed: int) -> None:
    env = by_starts()
    env.reset(seed=seed)
    chooser = np.random.default_rng(seed)
    over = cut = False
    paid = 0.0
    while not (over or cut):
        mask = env.action_masks()
        assert mask.any()
        assert mask[-1] or not env.cluster.running
        answer = int(chooser.choice(np.flatnonzero(mask)))
        waiting, whole, rounds = len(env._queue), env._worth(), len(env.cluster.used)
        _, worth, over, cut, info = env.step(answer)
        paid += worth
        if info["rounds"] > rounds:
            assert answer == env.starts.nothing and paid == pytest.approx(whole)
            paid = 0.0
        elif answer == env.starts.nothing:
            assert worth == 0.0
        else:
            assert len(env._queue) == waiting - 1
    assert over and info["ended"] == 24


def test_one_candidate_after_the_other_is_asked_about_and_each_start_begins_anew() -> None:
    env = by_starts()
    env.reset(seed=1)

    def asked() -> set[int]:
        answers = np.flatnonzero(env.action_masks()[:-1])
        return {env.starts.meaning(answer)[0] for answer in answers}

    assert asked() == {2} and not env.action_masks()[-1], "nobody runs, so something must start"
    env.step(int(env.action_masks().argmax()))
    assert asked() == {2}
    env.step(env.starts.nothing)
    assert asked() == {4}
    env.step(int(env.action_masks().argmax()))
    assert asked() == {2}
    for size in (4, 8):
        env.step(env.starts.nothing)
        assert asked() == {size} and env.cluster.now == 0
    env.step(env.starts.nothing)
    assert asked() == {2} and env.cluster.now == 300


def test_an_answer_that_the_mask_forbids_changes_nothing() -> None:
    env = by_starts()
    before, _ = env.reset(seed=1)
    after, worth, *_ = env.step(env.starts.nothing - 1)  # no job has 32 GPUs
    assert worth == 0.0 and (before == after).all() and not env.cluster.running
