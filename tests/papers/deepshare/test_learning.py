"""Training: the same network in torch and numpy, the same policy from the same seed, and something is learned."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from prefect_gpu.papers.deepshare.contended import predicted_table
from prefect_gpu.papers.deepshare.gym import StartsEnv
from prefect_gpu.papers.deepshare.network import NOTHING, WEIGHTS, Network
from prefect_gpu.papers.deepshare.shipped import content_of, policy_of

pytestmark = pytest.mark.needs("rl")

if find_spec("sb3_contrib"):  # without, the tests are still found, and left out by name
    import torch

    from prefect_gpu.papers.deepshare.learning.evaluate import score, unseen_sets
    from prefect_gpu.papers.deepshare.learning.network import StartNet
    from prefect_gpu.papers.deepshare.learning.train import Settings, Trained, chosen, play, train

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


def test_the_same_seed_gives_the_same_policy_and_tells_how_it_went() -> None:
    kept: list[Trained] = []
    told: list[dict[str, float]] = []
    first = train(TINY, tell=told.append, keep=kept.append)
    second = train(TINY)
    assert all((first.weights[name] == second.weights[name]).all() for name in WEIGHTS)
    assert first.curve == second.curve == told
    assert {one["ended"] for one in told[:16]} == {1.0, 2.0}, "not all clusters are at the same stage"
    assert told[-1]["ended"] == 4.0
    assert kept and kept[0].steps == kept[0].chosen_at == 0
    assert [one["steps"] for one in first.looks] == [0, first.steps]
    assert first.record()["weights_at_step"] == first.looks[chosen(first.looks)]["steps"]
    assert set(first.record()["versions"]) >= {"torch", "sb3-contrib", "stable-baselines3", "gymnasium", "numpy"}
    policy = policy_of(content_of(first.weights, first.levels))
    found = score(policy, unseen_sets("normal", 1, 8), predicted_table())
    assert found["unfinished"] == 0 and 0 < found["used"] <= 1


def test_caution_is_added_to_the_score_of_starting_nothing_and_changes_nothing_else() -> None:
    bold, careful = train(TINY), train(replace(TINY, caution=0.75))
    assert bold.curve == careful.curve, "what is learned does not depend on it"
    alike = [name for name in WEIGHTS if (bold.weights[name] == careful.weights[name]).all()]
    assert alike == [name for name in WEIGHTS if name != NOTHING]
    assert careful.weights[NOTHING] == pytest.approx(bold.weights[NOTHING] + 0.75)


def test_of_the_last_quarter_the_best_reward_is_chosen() -> None:
    rewards = [0.5, 0.1, 0.4, 0.2, 0.3, 0.2, 0.3, 0.25]
    assert chosen([{"reward": one} for one in rewards]) == 6
    assert chosen([{"reward": one} for one in rewards[:7]]) == 6
    assert chosen([{"reward": 0.5}]) == 0


def test_a_network_is_played_as_the_profile_plays_it() -> None:
    torch.manual_seed(3)
    env = StartsEnv()
    net = StartNet(env.starts)
    with torch.no_grad():
        net.start_w.normal_()
    weights = {name: getattr(net, name).detach().numpy() for name in WEIGHTS}
    # Nobody is slowed down so much that he is stopped.
    sets = [[job for job in unseen_sets("low", 1, 64)[0] if job.model not in ("FSDP", "MoE", "Transformer-XL")]]
    found = play(weights, sets, None, 0.4)
    told = score(policy_of(content_of(weights, env.encoding.profiles)), sets, predicted_table())
    assert found["completion_s"] > 3600
    for name in ("running_s", "completion_s", "makespan_s", "ratio", "used"):
        assert found[name] == pytest.approx(told[name], rel=1e-6)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mix": "odd"}, "mix='odd'"),
        ({"w1": 1.5}, "w1=1.5"),
        ({"episodes": 0}, "episodes=0"),
        ({"gamma": 1.0}, "gamma=1"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**32}, "seed=4294967296"),
        ({"caution": float("nan")}, "caution=nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings(**wrong)  # type: ignore[arg-type]


def test_unseen_job_sets_are_none_of_those_that_are_trained_on() -> None:
    from prefect_gpu.papers.deepshare.contended import draw

    trained_on = [draw(seed * 1000 + at) for seed in range(3) for at in range(10)]
    assert not any(jobs in trained_on for jobs in unseen_sets("normal"))
