"""Training: the same network in torch and numpy, the same policy from the same seed, and something is learned."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="the extra rl is not installed")

import torch

from prefect_gpu.scheduling.policies.network import WEIGHTS, Network
from prefect_gpu.scheduling.profiles.trained import content_of, policy_of
from prefect_gpu.simulation.gym import StartsEnv
from prefect_gpu.simulation.learning.evaluate import score, unseen_sets
from prefect_gpu.simulation.learning.network import StartNet
from prefect_gpu.simulation.learning.train import Settings, Trained, train
from prefect_gpu.simulation.workloads.contended import predicted_table

TINY = Settings(episodes=33, sets=2, jobs=4, seed=7)


def test_torch_and_numpy_give_the_same_scores() -> None:
    torch.manual_seed(1)
    starts = StartsEnv().starts
    net = StartNet(starts)
    with torch.no_grad():
        for name in WEIGHTS:
            getattr(net, name).normal_()
    states = (np.random.default_rng(2).integers(0, 7, size=(5, 4, 16)) / 6).astype(np.float32)
    arrays = {name: getattr(net, name).detach().numpy() for name in WEIGHTS}
    with torch.no_grad():
        expected = net.forward_actor(torch.from_numpy(states)).numpy()
    assert Network(starts, arrays).scores(states) == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_policy_and_tells_how_it_went() -> None:
    kept: list[Trained] = []
    told: list[dict[str, float]] = []
    first = train(TINY, tell=told.append, keep=kept.append)
    second = train(TINY)
    assert all((first.weights[name] == second.weights[name]).all() for name in WEIGHTS)
    assert first.curve == second.curve == told
    assert len(told) >= TINY.episodes and {one["ended"] for one in told} == {4.0}
    assert kept and kept[0].steps == 0
    assert any((kept[0].weights[name] != first.weights[name]).any() for name in WEIGHTS)
    assert set(first.record()["versions"]) >= {"torch", "sb3-contrib", "stable-baselines3", "gymnasium", "numpy"}
    policy = policy_of(content_of(first.weights, first.levels))
    found = score(policy, unseen_sets("normal", 1, 8), predicted_table())
    assert found["unfinished"] == 0 and 0 < found["used"] <= 1


@pytest.mark.parametrize(
    ("wrong", "said"), [({"mix": "odd"}, "mix='odd'"), ({"w1": 1.5}, "w1=1.5"), ({"episodes": 0}, "episodes=0")]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings(**wrong)  # type: ignore[arg-type]


def test_unseen_job_sets_are_none_of_those_that_are_trained_on() -> None:
    from prefect_gpu.simulation.workloads.contended import draw

    trained_on = [draw(seed * 1000 + at) for seed in range(3) for at in range(10)]
    assert not any(jobs in trained_on for jobs in unseen_sets("normal"))
