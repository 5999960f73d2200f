"""Training a policy as the paper does: rounds on a simulated cluster, job sets that are gone through several times.

Three things keep it from going astray: the parallel clusters begin at different stages of their job sets, rewards are
centred (Naik et al., 2024), and the best of the last looks at validation sets counts.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper

from prefect_gpu.papers.deepshare.contended import MIXES, draw
from prefect_gpu.papers.deepshare.gym import MOST_ROUNDS, StartsEnv
from prefect_gpu.papers.deepshare.learning.network import StartPolicy
from prefect_gpu.papers.deepshare.network import NOTHING, Array, Network
from prefect_gpu.papers.deepshare.reward import BRANCHES
from prefect_gpu.simulation.traces import ContentionTable, TraceJob

EPISODES = 200
SETS = 10
_FIRST_RATE, _LAST_RATE = 2.5e-3, 5e-4
_PARALLEL = 32
_STEPS = 64
_LOOK = 4096  # steps from one look at the validation sets to the next
_VALIDATION_SETS = 2
_FORGET = 5e-4  # part of the mean reward that each step of the environment replaces
_PACKAGES = ("gymnasium", "numpy", "sb3-contrib", "stable-baselines3", "torch")


@dataclass(frozen=True)
class Settings:
    """What to train.

    Attributes:
        mix: One of the paper's mixes of models.
        w1: Weight of contention in the reward, 0 to 1.
        seed: Of everything that is random.
        episodes: Episodes in all, by the number of jobs that have ended; the paper has 10 job sets 20 times, 200.
        sets: Different job sets.
        jobs: Jobs of a set.
        gamma: Discount of a step's reward against the one before, from 0 to less than 1. Small ones make it start only
            what is good at once; large ones fill the cluster, and leave for later who is hard to place.
        caution: Added to the score of starting nothing, once trained. Above 0, more GPUs are left idle for jobs to run
            undisturbed; below, fewer. What is learned, and which look counts, does not depend on it.

    Raises:
        ValueError: A setting is out of its range.
    """

    mix: str = "normal"
    w1: float = BRANCHES["B"]
    seed: int = 0
    episodes: int = EPISODES
    sets: int = SETS
    jobs: int = 256
    gamma: float = 0.9
    caution: float = 0.0

    def __post_init__(self) -> None:
        if self.mix not in MIXES:
            raise ValueError(f"mix={self.mix!r} is not known: choose one of {', '.join(MIXES)}.")
        if not 0 <= self.w1 <= 1:
            raise ValueError(f"w1={self.w1} is no weight: give 0 to 1, such as 0.4.")
        if not 0 <= self.gamma < 1:
            raise ValueError(f"gamma={self.gamma} is no discount: give 0 to less than 1, such as 0.9.")
        if not np.isfinite(self.caution):
            raise ValueError(f"caution={self.caution} is no score: give a number, such as 0.5.")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed} is no seed: give a number from 0 to {2**32 - 1}.")
        for name in ("episodes", "sets", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is too few: give at least 1.")


@dataclass
class Trained:
    """What came of a training.

    Attributes:
        weights: Of the network.
        levels: The number that stands for each model in the state.
        chosen_at: Steps after which the network had these weights.
        looks: What it reached on the validation sets, with ``steps``; see :func:`chosen`.
        curve: Of each episode: reward a round, mean completion in seconds, ratio, part of the GPUs in use, jobs ended.
            The first ones have only a part of the jobs.
        settings: What was asked for.
        steps: Steps of the environment.
    """

    weights: dict[str, Array]
    levels: dict[str, float]
    settings: Settings
    steps: int
    chosen_at: int = 0
    looks: list[dict[str, float]] = field(default_factory=list)
    curve: list[dict[str, float]] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """How it was trained, for a JSON file."""
        return {
            **asdict(self.settings),
            "steps": self.steps,
            "weights_at_step": self.chosen_at,
            "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
            "validation": [{name: round(value, 4) for name, value in one.items()} for one in self.looks],
            "curve": [{name: round(value, 4) for name, value in one.items()} for one in self.curve],
        }


def chosen(looks: Sequence[Mapping[str, float]]) -> int:
    """Which look at the validation sets counts: of the last quarter, when steps have become small, the best reward."""
    last = range(len(looks) - max(1, len(looks) // 4), len(looks))
    return max(last, key=lambda at: looks[at]["reward"])


class _Centred(VecEnvWrapper):
    """Takes the mean reward of the latest rounds off each round's reward."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self._rounds = np.zeros(self.num_envs)
        self._sum = self._count = 0.0

    def reset(self) -> Any:
        """See the class."""
        self._rounds[:] = 0
        return self.venv.reset()

    def step_wait(self) -> Any:
        """See the class; what was not taken off is in each info as ``reward``."""
        states, rewards, dones, infos = self.venv.step_wait()
        rounds = np.array([info["rounds"] for info in infos])
        passed = rounds > self._rounds
        self._rounds = np.where(dones, 0, rounds)
        self._sum = (1 - _FORGET) * self._sum + float(rewards.sum())
        self._count = (1 - _FORGET) * self._count + float(passed.sum())
        for info, one in zip(infos, rewards, strict=True):
            info["reward"] = float(one)
        return states, (rewards - passed * self._sum / max(1.0, self._count)).astype(np.float32), dones, infos


class _Counting(BaseCallback):
    """Notes each episode that ends, looks at the validation sets, and stops when there were enough episodes."""

    def __init__(
        self,
        settings: Settings,
        tell: Callable[[dict[str, float]], None] | None,
        look: Callable[[int], None],
    ) -> None:
        super().__init__()
        self._settings, self._tell, self._look = settings, tell, look
        self.curve: list[dict[str, float]] = []
        self.ended = 0.0  # episodes, in parts
        self._jobs_ended = 0
        self._sums = np.zeros(_PARALLEL)

    def _on_rollout_start(self) -> None:
        if self.num_timesteps % _LOOK == 0:
            self._look(self.num_timesteps)

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        self._sums += [info["reward"] for info in infos]
        for at in np.flatnonzero(self.locals["dones"]):
            info = infos[at]
            one = {
                "reward": float(self._sums[at]) / info["rounds"],
                "completion_s": info["mean_completion_s"],
                "ratio": info["ratio"],
                "used": info["used"],
                "ended": float(info["ended"]),
            }
            self._sums[at] = 0.0
            self._jobs_ended += info["ended"]
            self.curve.append(one)
            if self._tell is not None:
                self._tell(one)
        under_way = sum(info["ended"] for info, done in zip(infos, self.locals["dones"], strict=True) if not done)
        self.ended = (self._jobs_ended + under_way) / self._settings.jobs
        return self.ended < self._settings.episodes


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
        keep: Called with what was learned so far, after each look at the validation sets.
    """
    torch.set_num_threads(1)
    torch.distributions.Distribution.set_default_validate_args(False)  # a third of the time that a step takes
    known = list(sets) or [
        draw(settings.seed * 1000 + one, settings.jobs, settings.mix) for one in range(settings.sets)
    ]
    validation = [draw(-1001 - at, settings.jobs, settings.mix) for at in range(_VALIDATION_SETS)]

    def environment(at: int) -> StartsEnv:
        turn = iter(range(at, 2**31, _PARALLEL))  # each goes through all sets in turn, starting at another
        first = iter([max(1, settings.jobs * (at + 1) // _PARALLEL)])

        def jobs(_: np.random.Generator) -> Sequence[TraceJob]:
            return known[next(turn) % len(known)][: next(first, None)]

        return StartsEnv(jobs, table, w1=settings.w1)

    makers = [lambda at=at: environment(at) for at in range(_PARALLEL)]
    looks: list[dict[str, float]] = []
    networks: list[dict[str, Array]] = []

    def look(steps: int) -> None:
        networks.append(model.policy.arrays())  # type: ignore[operator]
        looks.append({"steps": steps, **play(networks[-1], validation, table, settings.w1)})
        if keep is not None:
            keep(so_far(steps))

    counting = _Counting(settings, tell, look)

    def rate(_: float) -> float:
        left = max(0.0, 1 - counting.ended / settings.episodes)
        return _LAST_RATE + (_FIRST_RATE - _LAST_RATE) * left

    model = MaskablePPO(
        StartPolicy,
        _Centred(DummyVecEnv(makers)),  # type: ignore[arg-type]
        learning_rate=rate,
        n_steps=_STEPS,
        batch_size=256,
        n_epochs=5,
        gamma=settings.gamma,
        gae_lambda=0.9,
        ent_coef=0.003,
        clip_range=0.2,
        max_grad_norm=1.0,
        seed=settings.seed,
        device="cpu",
        policy_kwargs={"starts": StartsEnv(table=table).starts},
    )
    levels = dict(StartsEnv(table=table).encoding.profiles)

    def so_far(steps: int) -> Trained:
        at = chosen(looks)
        weights = {**networks[at], NOTHING: networks[at][NOTHING] + np.float32(settings.caution)}
        return Trained(weights, levels, settings, steps, int(looks[at]["steps"]), list(looks), list(counting.curve))

    model.learn(settings.episodes * MOST_ROUNDS * settings.jobs, callback=counting)
    if looks[-1]["steps"] != model.num_timesteps:
        look(model.num_timesteps)
    return so_far(model.num_timesteps)


def play(
    weights: Mapping[str, Array], sets: Sequence[Sequence[TraceJob]], table: ContentionTable | None, w1: float
) -> dict[str, float]:
    """What a network alone reaches, always choosing the best answer: the mean over the job sets of the reward a round,
    running time and completion in seconds, makespan, ratio and part of the GPUs in use.
    """
    left = iter(sets)
    env = StartsEnv(lambda _: next(left), table, w1=w1)
    network = Network(env.starts, weights)
    found = []
    for _ in sets:
        state, info = env.reset(seed=0)
        total, over, cut = 0.0, False, False
        while not (over or cut):
            scores = np.where(env.action_masks(), network.scores(state[None])[0], -np.inf)
            state, worth, over, cut, info = env.step(int(scores.argmax()))
            total += worth
        jobs = env.cluster.jobs
        found.append(
            {
                "reward": total / info["rounds"],
                "running_s": fmean(job.ran_s for job in jobs),
                "completion_s": info["mean_completion_s"],
                "makespan_s": info["now_s"],
                "ratio": info["ratio"],
                "used": info["used"],
            }
        )
    return {name: fmean(one[name] for one in found) for name in found[0]}
