"""What DeepShare's networks are trained by: little contention, and GPUs in use (Ryu & Eo, 2023, eq. 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BRANCHES: Mapping[str, float] = {"A": 0.3, "B": 0.4, "C": 0.5, "D": 0.6, "E": 0.7}
"""W1, the weight of contention in the reward, of each branch (§VI); W2 is the rest."""


def reward(ratios: Sequence[float], utilisation: Sequence[float], w1: float = BRANCHES["B"]) -> float:
    """−W1·CS + W2·Util: the mean sensitivity of the running jobs against the mean utilisation of the GPUs.

    Args:
        ratios: Throughput ratio of each running job, 1 ÷ its sensitivity CS (§III); without any, CS counts as 0.
        utilisation: Of each GPU of the cluster, 0 to 1.
        w1: Weight of contention, 0 to 1; W2 = 1 − W1.
    """
    if not 0 <= w1 <= 1:
        raise ValueError(f"w1 is {w1}: give a weight from 0 to 1, such as a value of BRANCHES")
    contention = sum(1 / ratio for ratio in ratios) / len(ratios) if ratios else 0.0
    used = sum(utilisation) / len(utilisation) if utilisation else 0.0
    return -w1 * contention + (1 - w1) * used
