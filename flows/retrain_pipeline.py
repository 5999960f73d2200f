"""Keep a model up to date: take in new data, train in the pool, promote the new model only if it is better.

Run it here, with the training in the pool:

    python flows/retrain_pipeline.py

or deploy it, on a schedule, with ``prefect deploy --all --prefect-file deployments/prefect.yaml``. To adapt it:
replace `collect` by your source of data and `train_classifier` by your training.
"""

from __future__ import annotations

import hashlib
import json
import os
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Literal

import joblib
import numpy as np
from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from prefect_gpu import gpu, training_run

BATCH = 150  # images that arrive at a time
HELD_OUT = 0.3  # share of every batch that no model is trained on


def collect(folder: Path, seed: int = 0) -> Path:
    """Take in the next batch of data: handwritten digits, read by a scanner that ages.

    Each batch is a little brighter and noisier than the one before it, so that an old model becomes worse. When
    all 1797 digits have been seen, the first ones come again, in their new condition.

    Args:
        folder: Where batches are kept, as ``batch-0000.npz`` and so on.
        seed: Of the order of the digits and of the noise.

    Returns:
        The new batch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = len(batches(folder))
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    chosen = np.take(order, range(number * BATCH, (number + 1) * BATCH), mode="wrap")
    noise = np.random.default_rng([seed, number]).normal(0, 0.4 * number, (BATCH, x.shape[1]))
    path = folder / f"batch-{number:04d}.npz"
    partial_path = path.with_suffix(".partial.npz")
    np.savez(partial_path, x=x[chosen] * (1 + 0.08 * number) + noise, y=y[chosen])
    os.replace(partial_path, path)
    return path


def batches(folder: Path) -> list[Path]:
    """All batches so far, oldest first."""
    return sorted(folder.glob("batch-[0-9][0-9][0-9][0-9].npz"))


def read(batch: Path, part: Literal["train", "held-out"]) -> tuple[np.ndarray, np.ndarray]:
    """One part of a batch: images and labels."""
    with np.load(batch) as data:
        cut = round(len(data["y"]) * (1 - HELD_OUT))
        rows = slice(None, cut) if part == "train" else slice(cut, None)
        return data["x"][rows], data["y"][rows]


@gpu(work_pool="gpus", gpus=1, category="cv")
@flow(name="train-classifier", persist_result=True)
def train_classifier(data: str, model_path: str, epochs: int = 40, hidden: int = 64, seed: int = 0) -> float:
    """Train on the training part of all batches and save the model.

    Args:
        data: The folder of batches.
        model_path: Where the model goes (joblib, a scikit-learn pipeline).
        epochs: Passes over the data.
        hidden: Neurons in the hidden layer.
        seed: Of the weights and of the order of the samples.

    Returns:
        The last training loss.
    """
    with training_run(steps=epochs, batch_size=16) as run:
        parts = [read(batch, "train") for batch in batches(Path(data))]
        x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
        scaler = StandardScaler().fit(x)
        x = scaler.transform(x)
        model = run.restore(joblib.load) or MLPClassifier((hidden,), batch_size=16, random_state=seed)
        run.ready()
        for _ in run.steps():
            model.partial_fit(x, y, classes=range(10))
            run.report(loss=model.loss_, checkpoint=partial(joblib.dump, model))
    with run.saving():
        joblib.dump(make_pipeline(scaler, model), model_path)
    return float(model.loss_)


class Registry:
    """A folder of model versions: ``v0001/model.joblib`` with its ``manifest.json``, and a file ``current``.

    ``current`` holds the name of the version in use. It is replaced in one step, so that a reader always finds a
    whole model.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)

    def current(self) -> dict[str, Any] | None:
        """The manifest of the version in use, or None if there is none yet."""
        try:
            version = (self.folder / "current").read_text().strip()
        except FileNotFoundError:
            return None
        return json.loads((self.folder / version / "manifest.json").read_text())

    def load(self, manifest: dict[str, Any]) -> Any:
        """The model of a version.

        Raises:
            ValueError: The file is not the one that was promoted.
        """
        path = self.folder / manifest["version"] / "model.joblib"
        if hashlib.sha256(path.read_bytes()).hexdigest() != manifest["sha256"]:
            raise ValueError(f"{path} was changed after it was promoted: promote a model again.")
        return joblib.load(path)

    def promote(self, model_path: Path, **about: Any) -> dict[str, Any]:
        """Make a model file a new version and the one in use.

        Args:
            model_path: The file; it is moved.
            about: What the manifest shall say about it.

        Returns:
            The manifest.
        """
        numbers = [int(path.name[1:]) for path in self.folder.glob("v[0-9][0-9][0-9][0-9]")]
        version = f"v{max(numbers, default=0) + 1:04d}"
        (self.folder / version).mkdir()
        manifest = {
            "version": version,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "sha256": hashlib.sha256(model_path.read_bytes()).hexdigest(),
            **about,
        }
        model_path.replace(self.folder / version / "model.joblib")
        (self.folder / version / "manifest.json").write_text(json.dumps(manifest, indent=2))
        (self.folder / "current.new").write_text(version)
        os.replace(self.folder / "current.new", self.folder / "current")
        return manifest


def decide(candidate: float, current: float | None, min_gain: float) -> tuple[bool, str]:
    """Whether to promote a candidate, and why, from the accuracies of both on the new held-out data."""
    if current is None:
        return True, f"There is no model yet; this one gets {candidate:.1%} of the new data right."
    gain = candidate - current
    compared = f"{candidate:.1%} of the new data right against {current:.1%} by the current model"
    if gain >= min_gain:
        return True, f"{compared}: {gain:+.1%}, at least the {min_gain:.1%} asked for."
    return False, f"{compared}: {gain:+.1%}, less than the {min_gain:.1%} asked for."


@flow(name="retrain-pipeline")
def retrain_pipeline(
    data: str = "data/digits",
    registry: str = "models/digits",
    min_gain: float = 0.0,
    epochs: int = 40,
    seed: int = 0,
    where: Literal["pool", "here"] = "pool",
) -> dict[str, Any]:
    """Take in new data, train on all of it, and promote the new model if it is good enough.

    Both models are compared on the held-out part of the newest batch, which neither has seen. The first model is
    always promoted.

    Args:
        data: The folder of batches. In the pool, a folder that all runs see.
        registry: The folder of models, likewise.
        min_gain: Accuracy that a new model must gain on the current one, 0.01 for one percentage point.
        epochs: Passes over the data.
        seed: Of the data's order and noise and of the training.
        where: ``pool`` trains in the GPU pool; ``here`` in this process, without a server.

    Returns:
        ``promoted``, ``reason``, both accuracies and the ``version`` in use.
    """
    folder, models = Path(data).absolute(), Registry(Path(registry))
    newest = collect(folder, seed)
    model_path = models.folder / f"candidate-{newest.stem}.joblib"
    parameters: dict[str, Any] = {"data": str(folder), "model_path": str(model_path), "epochs": epochs, "seed": seed}
    if where == "pool":
        train_classifier.start(**parameters).result()
    else:
        train_classifier.fn(**parameters)

    x, y = read(newest, "held-out")
    candidate = float(joblib.load(model_path).score(x, y))
    current = models.current()
    current_accuracy = float(models.load(current).score(x, y)) if current else None
    promoted, reason = decide(candidate, current_accuracy, min_gain)
    if promoted:
        current = models.promote(model_path, accuracy=candidate, reason=reason, data=newest.name, seed=seed)
    else:
        model_path.unlink()
    assert current is not None  # the first candidate was promoted
    if flow_run.id:
        create_markdown_artifact(
            f"# {'Promoted' if promoted else 'Rejected'}\n\n{reason}\n\nIn use: {current['version']}, "
            f"trained on data up to {current['data']}. New data: {newest.name}.",
            key="retrain-pipeline",
            description="The decision on the newest model",
        )
    return {
        "promoted": promoted,
        "reason": reason,
        "candidate_accuracy": candidate,
        "current_accuracy": current_accuracy,
        "version": current["version"],
    }


if __name__ == "__main__":
    print(json.dumps(retrain_pipeline(), indent=2))
