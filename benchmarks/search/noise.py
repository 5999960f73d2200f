"""How far apart are final losses of the boosted trees that differ in nothing but the seed of their draws?

    python -m benchmarks.search.noise

Two configurations near the best that searches find, each trained to its end with five seeds; a search always has the
first of them. What two searches differ by is to be seen against this. It takes two minutes of one core.
"""

from __future__ import annotations

import sys

from benchmarks.search.problems import STEPS, Boosted

CONFIGURATIONS = (
    {"learning_rate": 0.2, "max_depth": 7, "subsample": 0.5, "max_features": 0.08, "min_samples_leaf": 10},
    {"learning_rate": 0.14, "max_depth": 8, "subsample": 0.7, "max_features": 0.1, "min_samples_leaf": 8},
)
SEEDS = 5


def best_and_last(parameters: dict[str, float], seed: int, steps: int) -> tuple[float, float]:
    """The smallest validation loss of a training, and that of its last step."""
    losses = Boosted(**parameters).staged(steps, seed)
    return min(losses), losses[-1]


def main() -> int:
    """Print a line for each training."""
    for parameters in CONFIGURATIONS:
        print(", ".join(f"{name} {value}" for name, value in parameters.items()))
        for seed in range(SEEDS):
            best, last = best_and_last(parameters, seed, STEPS)
            print(f"  seed {seed}: best loss {best:.4f}, last {last:.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
