"""The Gaussian process of one program's runs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad

from prefect_gpu.estimation.program import gaussian_process


def _table(runs: int = 30, noise: float = 0.02, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two columns that matter, one of two numbers that does not."""
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(runs, 4))
    return x, 2.0 * x[:, 0] - x[:, 1] + noise * chance.normal(size=runs), np.array([0, 1, 2, 2])


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_the_loss(seed: int) -> None:
    x, y, groups = _table(12, seed=seed)
    chance = np.random.default_rng(seed)
    centre = np.zeros(6)
    at = chance.normal(size=6) - np.array([0, 0, 0, 0, 2, 2])
    away = check_grad(
        lambda logs: gaussian_process._loss(logs, x, y, groups, centre)[0],
        lambda logs: gaussian_process._loss(logs, x, y, groups, centre)[1],
        at,
    )
    assert away < 1e-4 * np.linalg.norm(gaussian_process._loss(at, x, y, groups, centre)[1])


def test_a_plane_is_found_and_continued() -> None:
    x, y, groups = _table()
    mean, std = gaussian_process.fit(x, y, groups).predict(np.array([[2.0, -2.0, 0.0, 0.0], [0.0, 0.0, 3.0, -3.0]]))
    assert mean == pytest.approx([6.0, 0.0], abs=0.2)
    assert np.all(std < 0.2)


def test_columns_that_say_nothing_are_faded_out() -> None:
    x, y, groups = _table()
    shares = gaussian_process.fit(x, y, groups).relevance(groups)
    assert shares.sum() == pytest.approx(1.0)
    assert shares[0] > shares[1] > 20 * shares[2]


def test_what_is_left_out_is_predicted_from_the_others() -> None:
    x, y, groups = _table(20)
    model = gaussian_process.fit(x, y, groups)
    # The same process without its third run: it keeps the weights, so that only the run itself is missing.
    others = np.arange(20) != 2
    covariance = gaussian_process._kernel(x, x, model._weights, model._trend, model._bend)
    covariance += (model._noise + gaussian_process._JITTER) * np.eye(20)
    known = np.linalg.solve(covariance[np.ix_(others, others)], (y - y.mean())[others])
    assert model.left_out[2] == pytest.approx((y - y.mean())[2] - covariance[2, others] @ known, rel=1e-6)


def test_more_runs_are_more_certain() -> None:
    x, y, groups = _table(60, noise=0.1)
    at = np.array([[1.0, 1.0, 1.0, 1.0]])
    stds = [float(gaussian_process.fit(x[:count], y[:count], groups).predict(at)[1][0]) for count in (1, 3, 10, 60)]
    assert stds == sorted(stds, reverse=True) and stds[0] > 3 * stds[-1]


@pytest.mark.parametrize("runs", [1, 2, 5, 9])
def test_it_is_defined_where_there_is_next_to_nothing(runs: int) -> None:
    """All runs alike, or no column at all: a finite mean, and a spread above nothing."""
    for x in (np.zeros((runs, 2)), np.zeros((runs, 0))):
        groups = np.arange(x.shape[1])
        model = gaussian_process.fit(x, np.full(runs, 3.0), groups)
        mean, std = model.predict(x[:1])
        assert mean == pytest.approx([3.0]) and np.all(np.isfinite(std)) and std[0] > 0
        assert np.all(np.isfinite(model.left_out)) and np.all(model.left_out_std > 0)


def test_predictions_stay_near_what_was_measured() -> None:
    x, y, groups = _table()
    mean, std = gaussian_process.fit(x, y, groups).predict(np.array([[1e6, 0.0, 0.0, 0.0]]))
    assert abs(mean[0] - y.mean()) <= 5 * y.std() + 1e-9 and std[0] > y.std()


def test_the_nearest_runs_are_those_alike_in_what_matters() -> None:
    x, y, groups = _table()
    order, away = gaussian_process.fit(x, y, groups).nearest(x[7], 3)
    assert order[0] == 7 and away[0] == pytest.approx(0.0) and list(away) == sorted(away)
