"""What runs will declare, deduced from their parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prefect_gpu.estimation.program.declared import fill, learn_rules
from prefect_gpu.estimation.program.features import Value

_CHANCE = np.random.default_rng(1)
_SIZES = [
    {
        "n": float(_CHANCE.integers(5_000, 60_000)),
        "model.batch": float(2 ** _CHANCE.integers(3, 7)),
        "epochs": float(_CHANCE.integers(1, 30)),
        "lr": float(_CHANCE.uniform(1e-4, 1e-2)),
    }
    for _ in range(12)
]


def _with(steps: list[Value], runs: list[dict[str, float]] = _SIZES) -> list[dict[str, Value]]:
    return [{**run, "@steps": value} for run, value in zip(runs, steps, strict=True)]


# what steps are -> (the rule in words, the steps of n=10000, batch=100, epochs=7)
RULES: dict[str, tuple[list[Value], str, float]] = {
    "epochs times batches": (
        [run["epochs"] * math.ceil(run["n"] / run["model.batch"]) for run in _SIZES],
        "epochs × ⌈n ÷ model.batch⌉",
        700.0,
    ),
    "epochs times full batches": (
        [run["epochs"] * math.floor(run["n"] / run["model.batch"]) for run in _SIZES],
        "epochs × n ÷ model.batch",
        700.0,
    ),
    "a parameter": ([run["epochs"] for run in _SIZES], "epochs", 7.0),
    "a multiple of one": ([run["epochs"] * 100 for run in _SIZES], "100 × epochs", 700.0),
    "batches": ([math.ceil(run["n"] / run["model.batch"]) * 1.0 for run in _SIZES], "⌈n ÷ model.batch⌉", 100.0),
    "constant": ([500.0 for _ in _SIZES], "500", 500.0),
}


@pytest.mark.parametrize("steps, words, expected", RULES.values(), ids=RULES)
def test_steps_are_deduced(steps: list[Value], words: str, expected: float) -> None:
    rule = learn_rules(_with(steps))["@steps"]
    assert rule.describe() == words
    filled = fill({"n": 1e4, "model.batch": 100.0, "epochs": 7.0}, {"@steps": rule})
    assert filled["@steps"] == pytest.approx(expected, rel=0.02)


def test_no_rule_where_steps_follow_nothing() -> None:
    assert learn_rules(_with([float(value) for value in np.random.default_rng(2).integers(1, 1000, 12)])) == {}
    assert learn_rules(_with([("many", 3.0)[at % 2] for at in range(12)])) == {}
    assert learn_rules([]) == {}


def test_a_value_that_never_varied_is_taken_from_the_parameter_that_equals_it() -> None:
    runs: list[dict[str, Value]] = [{"size": 32.0, "batch_size": 32.0, "@batch_size": 32.0}] * 3
    rules = learn_rules(runs)
    assert fill({"size": 8.0, "batch_size": 64.0}, rules)["@batch_size"] == 64.0


def test_what_a_run_declared_itself_stays() -> None:
    rules = learn_rules(_with([run["epochs"] for run in _SIZES]))
    assert fill({"epochs": 7.0, "@steps": 3.0}, rules) == {"epochs": 7.0, "@steps": 3.0}


@pytest.mark.parametrize("epochs", [None, 0.0, -1.0, "seven"])
def test_nothing_is_deduced_from_parameters_that_make_no_sense(epochs: Value | None) -> None:
    rules = learn_rules(_with([run["epochs"] for run in _SIZES]))
    run = {} if epochs is None else {"epochs": epochs}
    assert fill(run, rules) == run


def test_a_size_beyond_all_bounds_is_no_error() -> None:
    rules = learn_rules(_with([math.ceil(run["n"] / run["model.batch"]) * 1.0 for run in _SIZES]))
    assert "n" in fill({"n": 1e308, "model.batch": 5e-324}, rules)


def test_with_few_batches_in_an_epoch_it_matters_that_the_last_is_not_full() -> None:
    runs: list[dict[str, Value]] = [
        {"n": n, "batch": batch, "epochs": epochs, "@steps": epochs * math.ceil(n / batch)}
        for n, batch, epochs in ((100.0, 64.0, 3.0), (130.0, 32.0, 7.0), (70.0, 64.0, 5.0), (200.0, 48.0, 2.0))
    ]
    rule = learn_rules(runs)["@steps"]
    assert rule.describe() == "epochs × ⌈n ÷ batch⌉"
    assert rule.apply({"n": 129.0, "batch": 64.0, "epochs": 10.0}) == pytest.approx(30.0)
