"""The gang with NumPy alone: its instances are real processes that meet as they do in the pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.data_parallel import Gang, Network, train_side_by_side
from tests.flows.gangs import BREAKS, SAYS_WHERE, gang, run_together

FLOW = ("data_parallel", "train_side_by_side")


def test_alone_it_learns(tmp_path: Path) -> None:
    assert train_side_by_side.fn(str(tmp_path / "model.npz"), epochs=15) > 0.9
    with np.load(tmp_path / "model.npz") as model:
        assert model["hidden"] == 64 and len(model["weights"]) == 64 * 64 + 64 + 64 * 10 + 10


def test_its_gradient_is_that_of_its_loss() -> None:
    network, random = Network(hidden=5, seed=1), np.random.default_rng(2)
    x, y = random.normal(size=(7, 64)), random.integers(0, 10, 7)
    gradient, _ = network.gradient(x, y)
    for at in random.choice(len(gradient), 20, replace=False):
        losses = []
        for change in (1e-5, -2e-5):
            network.weights[at] += change
            losses.append(network.gradient(x, y)[1])
        network.weights[at] += 1e-5
        assert gradient[at] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-3, abs=1e-7)


def test_without_the_pool_there_is_nobody_to_meet() -> None:
    with Gang() as alone:
        assert (alone.rank, alone.size) == (0, 1)
        assert alone.mean(np.array([1.0, 2.0])).tolist() == [1.0, 2.0]


@pytest.mark.slow
async def test_a_broken_instance_ends_all_and_the_next_try_carries_on_with_one_more_in_equal_steps(
    tmp_path: Path,
) -> None:
    parameters = {"model_path": str(tmp_path / "model.npz"), "epochs": 5, "checkpoint_every": 0.001}
    report, told, lines = await run_together(tmp_path, gang(2), FLOW, [SAYS_WHERE, BREAKS], **parameters)
    assert report.returncode != 0 and told == {} and "begins in 0" in lines, lines
    report, told, lines = await run_together(tmp_path, gang(3), FLOW, [SAYS_WHERE], **parameters)
    assert report.returncode == 0 and sorted(told) == [0, 1, 2], lines
    assert told[0]["result"] == told[1]["result"] == told[2]["result"] > 0.5
    assert "begins in 2" in lines or "begins in 3" in lines, lines
