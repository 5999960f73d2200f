"""scikit-learn models that learn batch by batch: a linear classifier, a perceptron, k-means."""

from __future__ import annotations

from typing import Any

from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier

from benchmarks.estimation.programs.common import batch_at, save, table
from prefect_gpu import training_run


def sgd_linear(
    rows: int,
    columns: int,
    batch_size: int,
    steps: int,
    penalty: str,
    loss: str,
    average: bool,
    passes: int,
    alpha: float,
    seed: int,
    **_: Any,
) -> None:
    """A linear classifier; each step goes ``passes`` times over one batch.

    The result explains a quarter of the scores.
    """
    with training_run(steps=steps, batch_size=batch_size, features={"rows": rows, "columns": columns}) as run:
        data, target = table(rows, columns, seed, classes=2)
        model = SGDClassifier(loss=loss, penalty=penalty, alpha=alpha, average=average, random_state=seed)
        for step in run.steps():
            part = batch_at(step, batch_size, rows)
            for _pass in range(passes):
                model.partial_fit(data[part], target[part], classes=[0, 1])
            run.report(loss=1 - model.score(data[part], target[part]))
    with run.saving():
        contributions = data[: rows // 4] * model.coef_.astype("float32")
        save("model.bin", model=model, scores=model.decision_function(data), contributions=contributions)


def sklearn_mlp(
    rows: int,
    columns: int,
    batch_size: int,
    steps: int,
    model: dict[str, int],
    activation: str,
    solver: str,
    learning_rate: float,
    seed: int,
    **_: Any,
) -> None:
    """A perceptron of scikit-learn; a step is 24 updates."""
    with training_run(steps=steps, batch_size=batch_size, features={"rows": rows, "columns": columns}) as run:
        data, target = table(rows, columns, seed, classes=5)
        network = MLPClassifier(
            hidden_layer_sizes=(model["width"],) * model["layers"],
            activation=activation,
            solver=solver,
            batch_size=batch_size,
            learning_rate_init=learning_rate,
            random_state=seed,
        )
        for step in run.steps():
            part = batch_at(step, 24 * batch_size, rows)
            network.partial_fit(data[part], target[part], classes=range(5))
            run.report(loss=network.loss_)
    with run.saving():
        save("model.bin", model=network, probabilities=network.predict_proba(data))


def kmeans(
    rows: int,
    columns: int,
    batch_size: int,
    steps: int,
    clusters: int,
    init: str,
    n_init: int,
    seed: int,
    **_: Any,
) -> None:
    """Clusters, improved with a batch a step; the result is the cluster of every row."""
    with training_run(steps=steps, batch_size=batch_size, features={"rows": rows, "columns": columns}) as run:
        data, _target = table(rows, columns, seed)
        model = MiniBatchKMeans(clusters, init=init, n_init=n_init, batch_size=batch_size, random_state=seed)
        for step in run.steps():
            part = batch_at(step, batch_size, rows)
            model.partial_fit(data[part])
            run.report(loss=-model.score(data[part]) / batch_size)
    with run.saving():
        save("model.bin", model=model, labels=model.predict(data), distances=model.transform(data[: rows // 4]))
