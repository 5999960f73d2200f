"""The five regressions that Liquid compares, and how a single run is asked for quickly."""

from __future__ import annotations

import numpy as np
import pytest

from prefect_gpu.estimation.program.regressors import REGRESSORS, make_regressor, predictor


def _table(rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(0)
    x = chance.normal(size=(rows, 3))
    return x, np.exp(x[:, 0]) + x[:, 1] * x[:, 2]


@pytest.mark.slow
@pytest.mark.parametrize("name", REGRESSORS)
def test_one_row_is_predicted_as_many_are(name: str) -> None:
    x, y = _table()
    regressor = make_regressor(name, runs=60)
    regressor.fit(x[:60], y[:60])
    one = predictor(regressor)
    assert [one(row) for row in x] == pytest.approx(regressor.predict(x), rel=1e-6, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", REGRESSORS)
def test_the_same_seed_and_runs_give_the_same_regressor(name: str) -> None:
    x, y = _table()
    found = []
    for _ in range(2):
        regressor = make_regressor(name, runs=60, seed=3)
        regressor.fit(x[:60], y[:60])
        found.append(regressor.predict(x))
    assert np.array_equal(found[0], found[1])


def test_an_unknown_regressor_is_refused() -> None:
    with pytest.raises(ValueError, match=r"regressor='svm' is none of random-forest, decision-tree, .*linear"):
        make_regressor("svm", runs=10)
