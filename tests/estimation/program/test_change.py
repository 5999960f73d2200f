"""Where the residuals of a program's runs jump."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prefect_gpu.estimation.program.change import find_change

_NOISE = np.random.default_rng(0).normal(0, 0.05, 40)


def _jump(first: int, factor: float, count: int = 40) -> np.ndarray:
    return _NOISE[:count] + math.log(factor) * (np.arange(count) >= first)


# residuals -> (first run after the change, its factor)
JUMPS: dict[str, tuple[np.ndarray, tuple[int, float] | None]] = {
    "slower": (_jump(25, 2.0), (25, 2.0)),
    "faster": (_jump(10, 0.5), (10, 0.5)),
    "three runs ago": (_jump(37, 2.0), (37, 2.0)),
    "noise": (_NOISE, None),
    "all alike": (np.zeros(40), None),
    "too small to tell": (np.zeros(40) + 0.1 * (np.arange(40) >= 20), None),
    "the newest run": (_jump(39, 2.0), None),
    "one slow run": (_NOISE + 3.0 * (np.arange(40) == 20), None),
    "a slow stretch at a busy hour": (_NOISE + 1.0 * (np.abs(np.arange(40) - 20) <= 1), None),
    "few runs": (_jump(3, 4.0, count=7), None),
    "no run": (np.zeros(0), None),
}


@pytest.mark.parametrize("residuals, expected", JUMPS.values(), ids=JUMPS)
def test_a_jump_that_lasts_is_found_where_it_is(residuals: np.ndarray, expected: tuple[int, float] | None) -> None:
    found = find_change(residuals, [1e9 + at for at in range(len(residuals))], "step_s")
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert abs(found.first - expected[0]) <= 1
        assert (found.at, found.target) == (1e9 + found.first, "step_s")
        assert found.factor == pytest.approx(expected[1], rel=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_change(seed: int) -> None:
    residuals = np.random.default_rng(seed).normal(0, 0.3, 60)
    assert find_change(residuals, [0.0] * 60, "step_s") is None
