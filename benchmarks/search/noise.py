"""How far apart are the losses of trainings that differ in nothing but the seed of their draws?

    python -m benchmarks.search.noise

Of each problem two good configurations, each trained to its end with three seeds; a search always has the first of
them. What two searches differ by is to be seen against this. It takes some three minutes of one core.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.search.problems import PROBLEMS, STEPS

CONFIGURATIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "boosted": (
        {"learning_rate": 0.08, "max_depth": 3, "subsample": 0.85, "max_features": 0.4, "min_samples_leaf": 3},
        {"learning_rate": 0.14, "max_depth": 5, "subsample": 0.9, "max_features": 0.45, "min_samples_leaf": 3},
    ),
    "network": (
        {"lr": 0.003, "momentum": 0.06, "channels": 14, "batch": 9, "decay": 1e-4},
        {"lr": 0.002, "momentum": 0.15, "channels": 20, "batch": 10, "decay": 5e-4},
    ),
}
SEEDS = 3


def losses(problem: str, parameters: dict[str, Any], seed: int, steps: int) -> list[float]:
    """The validation loss after each step of a training."""
    training = PROBLEMS[problem](**parameters, seed=seed)
    return [training.step(number) for number in range(steps)]


def main() -> int:
    """Print a line for each training."""
    for problem, some in CONFIGURATIONS.items():
        for parameters in some:
            print(f"{problem}: " + ", ".join(f"{name} {value}" for name, value in parameters.items()))
            for seed in range(SEEDS):
                found = losses(problem, parameters, seed, STEPS)
                print(f"  seed {seed}: best loss {min(found):.4f}, last {found[-1]:.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
