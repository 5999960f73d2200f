"""What the how-to shows side by side is run: the script with plain Optuna, and the flow that it becomes."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import optuna
from prefect import flow
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier

from prefect_gpu import gpu, training_run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sweeps.md"
X, Y = load_digits(return_X_y=True)


def build(lr: float) -> MLPClassifier:
    return MLPClassifier((16,), learning_rate_init=lr, random_state=0)


def fit_one(model: MLPClassifier) -> float:
    model.partial_fit(X[:200], Y[:200], classes=range(10))
    return float(log_loss(Y[200:300], model.predict_proba(X[200:300])))


def columns(heading: str) -> tuple[str, str]:
    """The two halves of the block below a heading; the second begins where its first line does."""
    text = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("```text\n")[2].partition("```")[0]
    at = text.index("# now")
    lines = [line.ljust(at) for line in text.splitlines()]
    return tuple(
        textwrap.dedent("\n".join(half)) for half in zip(*((one[:at], one[at:]) for one in lines), strict=True)
    )  # type: ignore[return-value]


def test_a_script_with_plain_optuna_becomes_a_flow_that_trains_as_it_did() -> None:
    before, now = columns("From plain Optuna")
    asked: list[tuple[Any, ...]] = []

    def sweep(*given: Any, **named: Any) -> None:  # tests/live has real ones
        asked.append((*given, named))

    known: dict[str, Any] = {"build": build, "fit_one": fit_one, "optuna": optuna}
    old, new = dict(known), {**known, "flow": flow, "gpu": gpu, "sweep": sweep, "training_run": training_run}
    exec(before, old)
    exec(now, new)
    assert len(old["study"].trials) == 20 and old["study"].best_value < 2.0
    [(train, space, named)] = asked
    assert train is new["train"] and list(space) == ["lr"] and named["trials"] == 20
    assert train.fn(lr=0.01) == old["objective"](optuna.trial.FixedTrial({"lr": 0.01}))
