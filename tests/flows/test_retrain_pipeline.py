"""The retraining pipeline, in this process and without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

from flows import retrain_pipeline as pipeline
from flows.retrain_pipeline import BATCHES, read, scan
from prefect_gpu.retraining import DataFiles, ModelRegistry, RegistryError


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {"data": str(tmp_path / "data"), "registry": str(tmp_path / "registry"), "where": "here"}


def names(data: str) -> list[str]:
    return list(DataFiles(data, BATCHES).snapshot().names)


def test_a_better_model_becomes_the_champion_and_bad_data_leave_it(settings: dict[str, Any]) -> None:
    models = ModelRegistry(settings["registry"])
    first = pipeline.retrain_pipeline.fn(**settings, deliver=True)
    assert first["promoted"] and first["champion"] == "v0001" and "no model yet" in first["reason"]
    second = pipeline.retrain_pipeline.fn(**settings, deliver=True)
    assert second["promoted"] and second["champion"] == "v0002" and second["p_value"] < 0.05
    assert "share of wrong answers is smaller by 0.0889 on 90 examples" in second["reason"]
    scan(settings["data"], mislabelled=1.0)
    third = pipeline.retrain_pipeline.fn(**settings)
    assert not third["promoted"] and (third["challenger"], third["champion"]) == ("v0003", "v0002")
    assert pipeline.roll_back.fn(settings["registry"], reason="for a test") == "v0001"
    assert models.champion() == models.versions()[0]


def test_the_same_data_are_trained_on_once_unless_that_is_wanted(settings: dict[str, Any]) -> None:
    settings["epochs"] = 2
    pipeline.retrain_pipeline.fn(**settings, deliver=True)
    again = pipeline.retrain_pipeline.fn(**settings)
    assert not again["promoted"] and again["challenger"] is None and again["champion"] == "v0001"
    assert again["reason"].startswith("Nothing new: v0001 was trained on these data")
    forced = pipeline.retrain_pipeline.fn(**settings, again=True)
    assert forced["challenger"] == "v0002" and not forced["promoted"], "it is the same model"


def test_a_run_that_ended_before_its_decision_is_finished_by_the_next(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings["epochs"] = 2
    with monkeypatch.context() as broken:
        broken.setattr(pipeline, "contest", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pipeline.retrain_pipeline.fn(**settings, deliver=True)
    monkeypatch.setattr(pipeline.train_classifier, "fn", lambda **_: pytest.fail("it was trained a second time"))
    assert pipeline.retrain_pipeline.fn(**settings)["champion"] == "v0001"


def test_a_training_whose_end_was_lost_gives_the_version_that_it_made(tmp_path: Path) -> None:
    data, registry = str(tmp_path / "data"), str(tmp_path / "registry")
    scan(data)
    tries = [pipeline.train_classifier.fn(data, names(data), "a", registry, epochs=2) for _ in range(2)]
    assert tries == ["v0001", "v0001"] and len(ModelRegistry(registry).versions()) == 1


def test_a_batch_that_arrives_replaces_none_although_some_were_taken_away(tmp_path: Path) -> None:
    assert [scan(str(tmp_path)) for _ in range(2)] == ["batch-0000.npz", "batch-0001.npz"]
    (tmp_path / "batch-0000.npz").unlink()
    assert scan(str(tmp_path)) == "batch-0002.npz"


def test_the_model_of_a_version_works(tmp_path: Path) -> None:
    data, registry = str(tmp_path / "data"), ModelRegistry(tmp_path / "registry")
    scan(data)
    made = registry.version(pipeline.train_classifier.fn(data, names(data), "a", str(tmp_path / "registry")))
    x, y = read(data, names(data), "held-out")
    assert registry.load(made, joblib.load).score(x, y) > 0.8 and made.metrics["training_loss"] < 1
    assert made.parameters["epochs"] == 40 and made.code_version


def test_without_data_the_remedy_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"data=.* there is no batch-\*.npz yet. Run scan-digits/gpus"):
        pipeline.retrain_pipeline.fn(**settings)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({}, "x is not a file"),
        ({"x": np.zeros((2, 65)), "y": np.zeros(2)}, r"x has the shape \(2, 65\), and y has 2 labels"),
        ({"x": np.zeros((2, 64)), "y": np.zeros(3)}, r"x has the shape \(2, 64\), and y has 3 labels"),
        ({"x": np.full((2, 64), np.nan), "y": np.zeros(2)}, "values are missing"),
        ({"x": np.zeros((2, 64)), "y": np.array(["1", "2"])}, "a label is no digit"),
    ],
)
def test_a_bad_batch_is_named(tmp_path: Path, bad: dict[str, Any], said: str) -> None:
    scan(str(tmp_path))
    np.savez(tmp_path / "batch-0001.npz", **bad)
    with pytest.raises(ValueError, match=f"batch-0001.npz is no batch like the others. .*{said}"):
        read(str(tmp_path), names(str(tmp_path)), "train")


def test_a_registry_that_has_had_a_champion_and_looks_empty_is_refused(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its share is not mounted, say. The new model became the champion, compared with nobody."""
    settings["epochs"] = 1
    pipeline.retrain_pipeline.fn(**settings, deliver=True)
    assert not pipeline.retrain_pipeline.fn(**settings, existing=True)["promoted"], "nothing is new"
    Path(settings["registry"]).rename(f"{settings['registry']}-elsewhere")
    with monkeypatch.context() as patch, pytest.raises(RegistryError, match="is empty, and is said to have had"):
        patch.setattr(pipeline.train_classifier, "fn", lambda **_: pytest.fail("it was trained"))
        pipeline.retrain_pipeline.fn(**settings, existing=True)
    assert pipeline.retrain_pipeline.fn(**settings)["promoted"]


def test_a_training_that_sees_another_registry_is_not_taken_for_an_old_version(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine has not mounted the share: its model was v0001 there, and the old v0001 was judged in its place."""
    settings["epochs"] = 1
    pipeline.retrain_pipeline.fn(**settings, deliver=True)
    train = pipeline.train_classifier.fn
    monkeypatch.setattr(
        pipeline.train_classifier, "fn", lambda **given: train(**{**given, "registry": str(tmp_path / "not mounted")})
    )
    with pytest.raises(RuntimeError, match="v0001 there is not the model that was just trained"):
        pipeline.retrain_pipeline.fn(**settings, deliver=True)


@pytest.mark.parametrize("recent", [0, -1])
def test_no_batch_to_compare_on_is_refused_before_the_training(settings: dict[str, Any], recent: int) -> None:
    """As the end of a list, -0 would be all of them, and -(-1) all but the oldest."""
    with pytest.raises(ValueError, match=f"recent={recent}: .* give 1 or more"):
        pipeline.retrain_pipeline.fn(**settings, recent=recent, deliver=True, epochs=1)
    assert names(settings["data"]) == [] and ModelRegistry(settings["registry"]).versions() == []


@pytest.mark.parametrize("limit", [{"level": 0.95}, {"min_gain": -1.0}], ids=str)
def test_limits_that_compare_nothing_are_refused_before_the_training(
    settings: dict[str, Any], limit: dict[str, float]
) -> None:
    """The first model became the champion with them; each later run trained, registered its model, and failed."""
    with pytest.raises(ValueError, match=r"level=0.95 must be between|min_gain=-1.0 must be 0 or more"):
        pipeline.retrain_pipeline.fn(**settings, **limit, deliver=True, epochs=1)
    assert names(settings["data"]) == [] and ModelRegistry(settings["registry"]).versions() == []


def test_batches_that_hold_out_too_little_are_refused_before_the_training(settings: dict[str, Any]) -> None:
    """A batch of one row has no row for the comparison: each night trained, and failed afterwards."""
    scan(settings["data"])
    np.savez(Path(settings["data"]) / "batch-0001.npz", x=np.zeros((1, 64)), y=np.zeros(1))
    with pytest.raises(ValueError, match=r"recent=1: the newest batches hold out 0 of their examples, .*: give more"):
        pipeline.retrain_pipeline.fn(**settings, recent=1, epochs=1)
    assert ModelRegistry(settings["registry"]).versions() == []
    assert pipeline.retrain_pipeline.fn(**settings, recent=2, epochs=1)["promoted"]


def test_the_watcher_announces_data_that_no_model_was_trained_on(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, registry, announced = settings["data"], settings["registry"], []
    monkeypatch.setattr(pipeline, "announce", lambda dataset, files: announced.append((dataset, files.snapshot())))
    assert not pipeline.watch_data.fn(data, registry), "there are none"
    scan(data)
    assert pipeline.watch_data.fn(data, registry)
    assert announced == [("digits", DataFiles(data, BATCHES).snapshot())]
    pipeline.train_classifier.fn(data, names(data), announced[0][1].version, registry, epochs=1)
    assert not pipeline.watch_data.fn(data, registry)


def test_batches_drift_and_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    for place in (a, b):
        for _ in range(3):
            scan(place, seed=1)
    first, _, third = names(a)
    assert np.array_equal(read(a, [third], "train")[0], read(b, [third], "train")[0])
    assert read(a, [third], "train")[0].mean() > read(a, [first], "train")[0].mean()
    assert len(read(a, [first], "train")[1]) + len(read(a, [first], "held-out")[1]) == pipeline.BATCH


def test_data_go_on_after_all_digits_have_been_seen(tmp_path: Path) -> None:
    for _ in range(13):
        newest = scan(str(tmp_path))
    assert newest == "batch-0012.npz" and len(read(str(tmp_path), [newest], "train")[1]) == 105
