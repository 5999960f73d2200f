"""Keep a model up to date: when data arrive, train in the pool; a challenger that is better becomes the champion.

    prefect --no-prompt deploy --all --prefect-file deployments/prefect.yaml

deploys it to the pool `gpus`, with its schedule and the automation that starts it when data arrive. Then

    prefect deployment run scan-digits/gpus --watch

delivers some data. docs/how-to/retraining.md goes on from there. To adapt it: put your training into
`train_classifier`, and the losses that your models are compared by into `losses`.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import Sequence
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
from prefect_gpu.retraining import (
    AlreadyRegistered,
    DataFiles,
    ModelRegistry,
    announce,
    check_limits,
    contest,
    flow_run_facts,
    history_page,
    mlflow_run,
    origin,
)

DATASET, BATCHES = "digits", "batch-*.npz"
BATCH = 150  # images that arrive at a time
HELD_OUT = 0.3  # share of every batch that no model is trained on


def scan(data: str, seed: int = 0, mislabelled: float = 0.0) -> str:
    """The example's source of data: one more batch of handwritten digits, read by a scanner that ages.

    Each batch is a little brighter and noisier than the one before it, so that an old model becomes worse. When
    all 1797 digits have been seen, the first ones come again, in their new condition.

    Returns:
        The new file's name.
    """
    files = DataFiles(data, BATCHES)
    known = [re.search(r"\d+", name) for name in files.snapshot().names]
    number = 1 + max((int(found[0]) for found in known if found), default=-1)  # some may have been taken away
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    chosen = np.take(order, range(number * BATCH, (number + 1) * BATCH), mode="wrap")
    chance = np.random.default_rng([seed, number])
    noise = chance.normal(0, 0.4 * number, (BATCH, x.shape[1]))
    labels = np.where(chance.random(BATCH) < mislabelled, chance.permutation(y[chosen]), y[chosen])
    content = io.BytesIO()
    np.savez(content, x=x[chosen] * (1 + 0.08 * number) + noise, y=labels)
    files.add(f"batch-{number:04d}.npz", content.getvalue())
    return f"batch-{number:04d}.npz"


def read(data: str, names: Sequence[str], part: Literal["train", "held-out"]) -> tuple[np.ndarray, np.ndarray]:
    """One part of some batches: images and labels.

    Raises:
        ValueError: A batch is none. The message names it: a bad one among hundreds is not to be searched for.
    """
    files, xs, ys = DataFiles(data), list[np.ndarray](), list[np.ndarray]()
    for name in names:
        content = io.BytesIO(files.read(name))
        try:
            with np.load(content) as batch:
                x, y = batch["x"], batch["y"]
            if x.shape != (len(y), xs[0].shape[1] if xs else x.shape[1]):
                raise ValueError(f"x has the shape {x.shape}, and y has {len(y)} labels")
            if not (np.isfinite(x).all() and np.isin(y, range(10)).all()):
                raise ValueError("values are missing, or a label is no digit")
        except Exception as error:
            raise ValueError(f"{data}/{name} is no batch like the others. Correct or remove it: {error}") from error
        cut = round(len(y) * (1 - HELD_OUT))
        rows = slice(None, cut) if part == "train" else slice(cut, None)
        xs.append(x[rows])
        ys.append(y[rows])
    return np.concatenate(xs), np.concatenate(ys)


@flow(name="scan-digits")
def scan_digits(data: str = "data/digits", batches: int = 1, mislabelled: float = 0.0, seed: int = 0) -> str:
    """Deliver data, and say so: the event `dataset.arrived` starts the retraining.

    Args:
        data: Where data are kept: a folder that all runs see, or an address in S3.
        batches: How many batches arrive.
        mislabelled: The share of labels that are wrong, to see what bad data do.
        seed: Of the order of the digits and of the noise.

    Returns:
        The version of the data.
    """
    for _ in range(batches):
        scan(data, seed, mislabelled)
    return announce(DATASET, DataFiles(data, BATCHES)).version


@flow(name="watch-data")
def watch_data(data: str = "data/digits", registry: str = "models/digits") -> bool:
    """Look for data that others have delivered, and say so if there is no model of them yet.

    Args:
        data: Where data are kept.
        registry: Where models are kept.

    Returns:
        Whether there are new data.
    """
    files = DataFiles(data, BATCHES)
    found = files.snapshot()
    if not found.names or ModelRegistry(registry).of_data(found.version):
        return False
    announce(DATASET, files)
    return True


@gpu(work_pool="gpus", gpus=1, category="cv")
@flow(name="train-classifier", retries=2, retry_delay_seconds=30, persist_result=True)  # S3 may be away for a moment
def train_classifier(
    data: str,
    names: list[str],
    data_version: str,
    registry: str,
    epochs: int = 40,
    hidden: int = 64,
    seed: int = 0,
    again: bool = False,
    existing: bool = False,
) -> str:
    """Train on the training part of some batches, and register the model.

    Args:
        data: Where data are kept.
        names: The batches.
        data_version: What they are called together.
        registry: Where models are kept.
        epochs: Passes over the data.
        hidden: Neurons in the hidden layer.
        seed: Of the weights and of the order of the samples.
        again: Whether there may be a model of these data already.
        existing: Whether the registry has had a champion before: an empty one is an error then.

    Returns:
        The name of the model's version.
    """
    parameters = {"epochs": epochs, "hidden": hidden, "seed": seed}
    tags = {"data_version": data_version}
    with training_run(steps=epochs, batch_size=16) as run, mlflow_run(run, parameters, code=__file__, tags=tags) as log:
        x, y = read(data, names, "train")
        scaler = StandardScaler().fit(x)
        x = scaler.transform(x)
        model = run.restore(joblib.load) or MLPClassifier((hidden,), batch_size=16, random_state=seed)
        run.ready()
        for _ in run.steps():
            model.partial_fit(x, y, classes=range(10))
            run.report(loss=model.loss_, checkpoint=partial(joblib.dump, model))
    with run.saving(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.joblib"
        joblib.dump(make_pipeline(scaler, model), path)
        log.log_file(path)
        about: dict[str, Any] = {"metrics": {"training_loss": float(model.loss_)}, "parameters": parameters}
        try:
            return (
                ModelRegistry(registry, existing=existing)
                .register(path, data_version=data_version, again=again, **about, **origin(__file__))
                .name
            )
        except AlreadyRegistered as found:  # by an earlier try of this run, which was lost before its end
            return found.version.name


def losses(model: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """For each example, 1 if the model is wrong and 0 if it is right.

    The log loss would tell small differences better; but where labels are wrong, it prefers models that are never sure.
    """
    return np.asarray(model.predict(x) != y, dtype=float)


@flow(name="retrain-pipeline")
def retrain_pipeline(
    data: str = "data/digits",
    registry: str = "models/digits",
    level: float = 0.05,
    min_gain: float = 0.0,
    recent: int = 3,
    epochs: int = 40,
    seed: int = 0,
    again: bool = False,
    existing: bool = False,
    deliver: bool = False,
    where: Literal["pool", "here"] = "pool",
) -> dict[str, Any]:
    """Train on all data that there are, and make the new model the champion if it is better beyond chance.

    Both models are compared on the held-out part of the newest batches, which neither has seen. If the data are those
    of the last time, nothing is done.

    Args:
        data: Where data are kept: a folder that all runs see, s3://..., or a block's.
        registry: Where models are kept, likewise.
        level: The largest p-value with which a challenger wins.
        min_gain: By how much the share of wrong answers has to fall, 0.01 for one percentage point.
        recent: How many of the newest batches the models are compared on.
        epochs: Passes over the data.
        seed: Of the training.
        again: Train even if these data have been trained on before.
        existing: The registry has had a champion before. One that is empty is then an error, as its share may not be
            mounted; else the new model becomes the champion of it.
        deliver: Let the example's scanner deliver a batch first.
        where: ``pool`` trains in the GPU pool; ``here`` in this process, without a server.

    Returns:
        Whether a challenger was ``promoted``, the ``reason``, the ``challenger``, and the ``champion`` in use.

    Raises:
        ValueError: There are no data, or too little is held out to compare models on. Or ``recent``, ``level`` or
            ``min_gain`` makes no sense.
    """
    if recent < 1:  # said now, and not when the training is over
        raise ValueError(f"recent={recent}: the models are compared on the newest batches: give 1 or more.")
    check_limits(level, min_gain)
    models, files = ModelRegistry(registry, existing=existing), DataFiles(data, BATCHES)
    if deliver:
        scan(data, seed)
    found = files.snapshot()
    if not found.names:
        raise ValueError(f"data={data!r}: there is no {BATCHES} yet. Run scan-digits/gpus, or pass deliver=True.")
    challenger = models.of_data(found.version)
    if challenger is not None and not again and (judged := models.judgement(challenger)):
        reason = f"Nothing new: {challenger.name} was trained on these data ({found.version}) and {judged.action}."
        champion = models.champion()
        return {"promoted": False, "reason": reason, "challenger": None, "champion": champion and champion.name}

    x, y = read(data, found.names[-recent:], "held-out")
    if len(y) < 2:  # likewise: each later run would train, and fail
        raise ValueError(
            f"recent={recent}: the newest batches hold out {len(y)} of their examples, which compares no models: give "
            "more batches, or larger ones."
        )
    if challenger is None or again:
        parameters: dict[str, Any] = {
            "data": files.place.address,
            "names": list(found.names),
            "data_version": found.version,
            "registry": models.place.address,
            "epochs": epochs,
            "seed": seed,
            "again": again,
            "existing": existing,
        }
        train = (
            train_classifier.start(**parameters).result
            if where == "pool"
            else partial(train_classifier.fn, **parameters)
        )
        challenger = models.version(train())
        if challenger.data_version != found.version:  # its number was given by another registry
            raise RuntimeError(
                f"registry={registry!r}: {challenger.name} there is not the model that was just trained. The training "
                "has put it into another folder of this name: let all machines see the same one."
            )
    decision, test, page = contest(
        models,
        challenger,
        load=joblib.load,
        losses=lambda model: losses(model, x, y),
        level=level,
        min_gain=min_gain,
        loss="share of wrong answers",
        **flow_run_facts(),
    )
    if flow_run.id:
        create_markdown_artifact(page, key="retrain-pipeline", description="Champion against challenger")
    return {
        "promoted": decision.action == "promoted",
        "reason": decision.reason,
        "challenger": challenger.name,
        "champion": decision.champion,
        "p_value": test and test.p_value,
    }


@flow(name="roll-back")
def roll_back(registry: str = "models/digits", to: str | None = None, reason: str = "") -> str:
    """Make an earlier version the champion again.

    Args:
        registry: Where models are kept.
        to: The version, such as v0002; left out, the champion before this one.
        reason: Why, for those who read it later.

    Returns:
        The champion's name.
    """
    models = ModelRegistry(registry)
    champion = models.roll_back(to, reason, **flow_run_facts()).champion
    if flow_run.id:
        page = history_page(models.decisions()[-20:])
        create_markdown_artifact(page, key="roll-back", description="What was decided about models")
    return champion


if __name__ == "__main__":
    print(json.dumps(retrain_pipeline(deliver=True), indent=2))
