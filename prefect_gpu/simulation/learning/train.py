"""Training a policy as the paper does: rounds on a simulated cluster, job sets that are gone through several times."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from prefect_gpu.scheduling.policies.contention import BRANCHES
from prefect_gpu.scheduling.policies.network import Array
from prefect_gpu.simulation.gym import MOST_ROUNDS, StartsEnv
from prefect_gpu.simulation.learning.network import StartPolicy
from prefect_gpu.simulation.traces import ContentionTable, TraceJob
from prefect_gpu.simulation.workloads.contended import MIXES, draw

EPISODES = 200
SETS = 10
_FIRST_RATE, _LAST_RATE = 2.5e-3, 2e-4
_PARALLEL = 32
_STEPS = 32
_PACKAGES = ("gymnasium", "numpy", "sb3-contrib", "stable-baselines3", "torch")


@dataclass(frozen=True)
class Settings:
    """What to train.

    Attributes:
        mix: One of the paper's mixes of models.
        w1: Weight of contention in the reward, 0 to 1.
        seed: Of everything that is random.
        episodes: Episodes in all; the paper has 10 job sets 20 times, 200.
        sets: Different job sets.
        jobs: Jobs of a set.

    Raises:
        ValueError: A setting is out of its range.
    """

    mix: str = "normal"
    w1: float = BRANCHES["B"]
    seed: int = 0
    episodes: int = EPISODES
    sets: int = SETS
    jobs: int = 256

    def __post_init__(self) -> None:
        if self.mix not in MIXES:
            raise ValueError(f"mix={self.mix!r} is not known: choose one of {', '.join(MIXES)}.")
        if not 0 <= self.w1 <= 1:
            raise ValueError(f"w1={self.w1} is no weight: give 0 to 1, such as 0.4.")
        for name in ("episodes", "sets", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is too few: give at least 1.")


@dataclass
class Trained:
    """What came of a training.

    Attributes:
        weights: Of the network.
        levels: The number that stands for each model in the state.
        curve: Of each episode: reward a round, mean completion in seconds, ratio, part of the GPUs in use.
        settings: What was asked for.
        steps: Steps of the environment.
    """

    weights: dict[str, Array]
    levels: dict[str, float]
    settings: Settings
    steps: int
    curve: list[dict[str, float]] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """How it was trained, for a JSON file."""
        return {
            **asdict(self.settings),
            "steps": self.steps,
            "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
            "curve": [{name: round(value, 4) for name, value in one.items()} for one in self.curve],
        }


class _Counting(BaseCallback):
    """Notes each episode that ends, and stops when there were enough."""

    def __init__(
        self,
        episodes: int,
        tell: Callable[[dict[str, float]], None] | None,
        keep: Callable[[int, list[dict[str, float]]], None],
    ) -> None:
        super().__init__()
        self._episodes, self._tell, self._keep = episodes, tell, keep
        self.curve: list[dict[str, float]] = []
        self.ended = 0.0  # episodes, in parts
        self._sums = np.zeros(_PARALLEL)

    def _on_rollout_start(self) -> None:
        self._keep(self.num_timesteps, self.curve)

    def _on_step(self) -> bool:
        self._sums += self.locals["rewards"]
        jobs = self.training_env.get_attr("jobs_in_all")
        under_way = sum(
            info["ended"] / count
            for info, count, done in zip(self.locals["infos"], jobs, self.locals["dones"], strict=True)
            if not done
        )
        for at in np.flatnonzero(self.locals["dones"]):
            info = self.locals["infos"][at]
            one = {
                "reward": float(self._sums[at]) / info["rounds"],
                "completion_s": info["mean_completion_s"],
                "ratio": info["ratio"],
                "used": info["used"],
                "ended": float(info["ended"]),
            }
            self._sums[at] = 0.0
            self.curve.append(one)
            if self._tell is not None:
                self._tell(one)
        self.ended = len(self.curve) + under_way
        return len(self.curve) < self._episodes


def train(
    settings: Settings,
    table: ContentionTable | None = None,
    sets: Sequence[Sequence[TraceJob]] = (),
    tell: Callable[[dict[str, float]], None] | None = None,
    keep: Callable[[Trained], None] | None = None,
) -> Trained:
    """Train a policy with MaskablePPO. The same settings and versions give the same policy.

    Args:
        settings: What to train.
        table: Speeds and ratios; None predicts them.
        sets: Job sets to train on; none: they are drawn from the mix.
        tell: Called with the curve's entry of each episode as it ends.
        keep: Called with what was learned so far, after each update.
    """
    torch.set_num_threads(1)
    torch.distributions.Distribution.set_default_validate_args(False)  # a third of the time that a step takes
    known = list(sets) or [
        draw(settings.seed * 1000 + one, settings.jobs, settings.mix) for one in range(settings.sets)
    ]

    def environment(at: int) -> StartsEnv:
        turn = iter(range(at, 2**31, _PARALLEL))  # each goes through all sets in turn, starting at another

        def jobs(_: np.random.Generator) -> Sequence[TraceJob]:
            return known[next(turn) % len(known)]

        return StartsEnv(jobs, table, w1=settings.w1)

    makers = [lambda at=at: environment(at) for at in range(_PARALLEL)]
    counting = _Counting(
        settings.episodes, tell, lambda steps, curve: keep(so_far(steps, curve)) if keep is not None else None
    )

    def rate(_: float) -> float:
        left = max(0.0, 1 - counting.ended / settings.episodes)
        return _LAST_RATE + (_FIRST_RATE - _LAST_RATE) * left

    model = MaskablePPO(
        StartPolicy,
        DummyVecEnv(makers),  # type: ignore[arg-type]
        learning_rate=rate,
        n_steps=_STEPS,
        batch_size=256,
        n_epochs=3,
        gamma=0.95,
        gae_lambda=0.9,
        ent_coef=0.003,
        clip_range=0.2,
        max_grad_norm=1.0,
        seed=settings.seed,
        device="cpu",
        policy_kwargs={"starts": StartsEnv(table=table).starts},
    )
    levels = dict(StartsEnv(table=table).encoding.profiles)

    def so_far(steps: int, curve: list[dict[str, float]]) -> Trained:
        return Trained(model.policy.arrays(), levels, settings, steps, list(curve))  # type: ignore[operator]

    model.learn(settings.episodes * MOST_ROUNDS * settings.jobs, callback=counting)
    return so_far(model.num_timesteps, counting.curve)
