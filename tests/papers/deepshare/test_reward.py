"""What DeepShare's networks are trained by."""

from __future__ import annotations

import pytest

from prefect_gpu.papers.deepshare.reward import BRANCHES, reward


def test_the_reward_weighs_contention_against_use() -> None:
    assert BRANCHES == {"A": 0.3, "B": 0.4, "C": 0.5, "D": 0.6, "E": 0.7}
    assert reward([1.0, 0.5], [1.0, 0.5, 0.0, 0.5], 0.4) == pytest.approx(-0.4 * 1.5 + 0.6 * 0.5)
    assert reward([], [0.0], 0.4) == 0.0
    assert reward([], [], 0.4) == 0.0
    # The more contention weighs, the less an idle cluster costs.
    assert reward([0.5], [1.0], 0.3) > reward([1.0], [0.5], 0.3)
    assert reward([0.5], [1.0], 0.7) < reward([1.0], [0.5], 0.7)


def test_a_weight_is_a_part() -> None:
    with pytest.raises(ValueError, match=r"w1 is 1\.5"):
        reward([], [], 1.5)
