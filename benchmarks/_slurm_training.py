"""A short real training: as a script, one task of a Slurm job array; as a flow, a run of the pool. The same work.

``python benchmarks/_slurm_training.py ROUNDS NOTES`` trains for so many rounds, and adds a line to the notes: number,
node, when it was prepared, begin, end and loss. Of several ROUNDS with commas between them, it takes those of its task.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable

FEATURES, ROWS = 20, 4000


def fit(rounds: int, ready: Callable[[], object], each: Callable[[float], object]) -> float:
    """Boost trees on one core; what is imported is part of the work, as in any script.

    Args:
        rounds: How many trees.
        ready: Called once everything is there, before the first tree.
        each: Called after each tree with the loss.
    """
    import numpy
    import xgboost
    from sklearn.datasets import make_classification
    from sklearn.model_selection import train_test_split

    x, y = make_classification(ROWS, FEATURES, n_informative=10, random_state=1)
    x, held_out, y, truth = train_test_split(x, y, random_state=1)
    train = xgboost.DMatrix(x, label=y, nthread=1)
    test = xgboost.DMatrix(held_out, label=truth, nthread=1)
    model = xgboost.Booster({"objective": "binary:logistic", "max_depth": 6, "nthread": 1, "seed": 1}, [train])
    loss = 0.0
    ready()
    for number in range(rounds):
        model.update(train, number)
        if number % 10 == 0 or number == rounds - 1:
            predicted = numpy.clip(model.predict(test), 1e-7, 1 - 1e-7)
            loss = float(-numpy.mean(truth * numpy.log(predicted) + (1 - truth) * numpy.log(1 - predicted)))
        each(loss)
    return loss


def note(path: str, number: int, prepared: float, begin: float, end: float, loss: float) -> None:
    """Add a line of a training, in one write."""
    with open(path, "a") as notes:
        notes.write(f"{number} {socket.gethostname()} {prepared} {begin} {end} {loss!r}\n")


def main() -> None:
    """One task of the array: as people do today, without Prefect."""
    number, notes = int(os.environ.get("SLURM_ARRAY_TASK_ID", 0)), sys.argv[2]
    rounds = int(sys.argv[1].split(",")[number])
    begun: list[float] = []
    loss = fit(rounds, lambda: begun.append(time.time()), lambda loss: None)
    note(notes, number, begun[0], begun[0], time.time(), loss)


if __name__ == "__main__":
    main()
else:
    from prefect import flow

    from prefect_gpu import training_run

    @flow
    def boost(number: int, rounds: int, notes: str) -> float:
        """The same in the pool. It reports, and waits at the gate while the run before it trains."""
        prepared: list[float] = []
        begun: list[float] = []
        with training_run(steps=rounds) as run:

            def ready() -> None:
                prepared.append(time.time())
                run.ready()
                begun.append(time.time())

            loss = fit(rounds, ready, lambda loss: run.report(loss=loss))
            end = time.time()
            with run.saving():  # its device is free from here on
                note(notes, number, prepared[0], begun[0], end, loss)
        return loss
