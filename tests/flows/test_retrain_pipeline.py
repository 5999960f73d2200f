"""The retraining pipeline, in this process and without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

from flows import retrain_pipeline as pipeline
from flows.retrain_pipeline import Registry, batches, collect, decide, read


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {"data": str(tmp_path / "data"), "registry": str(tmp_path / "registry"), "epochs": 8, "where": "here"}


def test_the_training_function_runs_without_prefect(tmp_path: Path) -> None:
    collect(tmp_path)
    loss = pipeline.train_classifier.fn(str(tmp_path), str(tmp_path / "model"))
    x, y = read(batches(tmp_path)[0], "held-out")
    assert joblib.load(tmp_path / "model").score(x, y) > 0.8 and loss < 1


def test_the_first_model_is_promoted_and_a_better_one_replaces_it(settings: dict[str, Any]) -> None:
    first = pipeline.retrain_pipeline.fn(**settings)
    assert first["promoted"] and first["version"] == "v0001" and "no model yet" in first["reason"]
    second = pipeline.retrain_pipeline.fn(**settings, min_gain=-1.0)
    assert second["promoted"] and second["version"] == "v0002"
    assert second["current_accuracy"] is not None
    assert Registry(Path(settings["registry"])).current()["accuracy"] == second["candidate_accuracy"]  # type: ignore[index]


def test_a_model_that_gains_too_little_is_rejected_with_the_reason(settings: dict[str, Any]) -> None:
    pipeline.retrain_pipeline.fn(**settings)
    outcome = pipeline.retrain_pipeline.fn(**settings, min_gain=1.0)
    assert not outcome["promoted"] and outcome["version"] == "v0001"
    assert "less than the 100.0% asked for" in outcome["reason"]
    assert not list(Path(settings["registry"]).glob("candidate-*"))


@pytest.mark.parametrize(
    ("candidate", "current", "min_gain", "promoted"),
    [(0.1, None, 0.5, True), (0.9, 0.9, 0.0, True), (0.9, 0.89, 0.02, False), (0.8, 0.9, 0.0, False)],
)
def test_decisions(candidate: float, current: float | None, min_gain: float, promoted: bool) -> None:
    decision, reason = decide(candidate, current, min_gain)
    assert decision is promoted and f"{candidate:.1%}" in reason


def test_batches_drift_and_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        for _ in range(3):
            collect(tmp_path / folder, seed=1)
    first, _, third = batches(tmp_path / "a")
    assert np.array_equal(read(third, "train")[0], read(batches(tmp_path / "b")[2], "train")[0])
    assert read(third, "train")[0].mean() > read(first, "train")[0].mean()
    assert len(read(first, "train")[1]) + len(read(first, "held-out")[1]) == pipeline.BATCH


def test_data_goes_on_after_all_digits_have_been_seen(tmp_path: Path) -> None:
    for _ in range(13):
        newest = collect(tmp_path)
    assert newest.name == "batch-0012.npz" and len(read(newest, "train")[1]) == 105


def test_a_model_changed_after_its_promotion_is_not_used(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    joblib.dump("model", tmp_path / "candidate")
    manifest = registry.promote(tmp_path / "candidate", accuracy=1.0)
    assert registry.load(manifest) == "model"
    joblib.dump("another", tmp_path / "v0001" / "model.joblib")
    with pytest.raises(ValueError, match="changed after it was promoted"):
        registry.load(manifest)


def test_a_promotion_cut_short_leaves_the_old_model_in_use(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    joblib.dump("model", tmp_path / "candidate")
    registry.promote(tmp_path / "candidate")
    (tmp_path / "v0002").mkdir()  # killed before the pointer moved
    assert json.dumps(registry.current()) and registry.current()["version"] == "v0001"  # type: ignore[index]
    joblib.dump("newer", tmp_path / "candidate")
    assert registry.promote(tmp_path / "candidate")["version"] == "v0003"
