"""A training to begin from: replace the data and the model, and keep the calls of `run`."""

from functools import partial

import joblib
from prefect import flow
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from prefect_gpu import gpu, training_run, watch


@gpu(work_pool="$pool", gpus=1)
@flow
def train(lr: float = 0.001, epochs: int = 300) -> float:
    with training_run(steps=epochs, checkpoint_every=60) as run:
        x, y = load_digits(return_X_y=True)  # preparing: the device is not needed yet
        model = run.restore(joblib.load) or MLPClassifier((64,), learning_rate_init=lr, random_state=0)
        for _ in run.steps():  # training
            model.partial_fit(x, y, classes=range(10))
            run.report(loss=model.loss_, checkpoint=partial(joblib.dump, model))
    return float(model.loss_)


if __name__ == "__main__":
    rates = (0.0003, 0.001, 0.003, 0.01)
    futures = [train.submit(lr=lr) for lr in rates]
    watch(futures)  # says what they do until all are over
    for future, lr in zip(futures, rates, strict=True):
        print(f"lr={lr}: loss {future.result():.6f}")
