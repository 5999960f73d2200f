"""The training of the benchmark of elastic runs: small real steps, and the rest of each step's time slept.

``ELASTIC`` in its environment says, as JSON, what it is to be; see :class:`Order`.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from prefect_gpu.training import training_run

VARIABLE = "ELASTIC"
BATCH = 90
_HIDDEN, _CLASSES, _RATE, _MOMENTUM = 16, 10, 0.1, 0.9


@dataclass(frozen=True)
class Order:
    """What one run is to do.

    Attributes:
        step_s: Seconds of a step on 1, 2, 3 … devices; empty: as fast as it goes.
        launching_s: Seconds from the process's own beginning until it trains, at least.
        checkpoint_s: Seconds that saving takes at least.
        result: File for the digest of the trained weights.
        notes: File for a line for each step: its number, the devices, the process.
    """

    steps: int
    seed: int
    result: str
    notes: str
    step_s: tuple[float, ...] = ()
    launching_s: float = 0.0
    checkpoint_s: float = 0.0

    def text(self) -> str:
        """As it is told to a run, in :data:`VARIABLE`."""
        return json.dumps(asdict(self))


class Network:
    """A network of one hidden layer, trained by SGD with momentum: all in numpy, and the same to the last bit."""

    def __init__(self, seed: int) -> None:
        chance = np.random.default_rng(seed)
        images, labels = load_digits(return_X_y=True)
        self._images, self._labels = images / 16.0, labels
        self._seed = seed
        self.weights = [chance.normal(0, 0.1, (64, _HIDDEN)), chance.normal(0, 0.1, (_HIDDEN, _CLASSES))]
        self.speeds = [np.zeros_like(weight) for weight in self.weights]

    def step(self, number: int) -> float:
        """One step of SGD on the batch that belongs to the step's number. Returns the batch's loss."""
        chosen = np.random.default_rng((self._seed, number)).choice(len(self._images), BATCH, replace=False)
        images, labels = self._images[chosen], self._labels[chosen]
        hidden = np.maximum(images @ self.weights[0], 0.0)
        scores = hidden @ self.weights[1]
        scores -= scores.max(axis=1, keepdims=True)
        exp = np.exp(scores)
        likely = exp / exp.sum(axis=1, keepdims=True)
        loss = float(-np.log(likely[np.arange(BATCH), labels]).mean())
        likely[np.arange(BATCH), labels] -= 1.0
        likely /= BATCH
        slopes = [images.T @ ((likely @ self.weights[1].T) * (hidden > 0)), hidden.T @ likely]
        for weight, speed, slope in zip(self.weights, self.speeds, slopes, strict=True):
            speed *= _MOMENTUM
            speed -= _RATE * slope
            weight += speed
        return loss

    def save(self, path: Path) -> None:
        """Write everything that the next step depends on."""
        with path.open("wb") as file:
            np.savez(file, *self.weights, *self.speeds)

    def load(self, path: Path) -> None:
        """Read what :meth:`save` wrote."""
        with np.load(path) as kept:
            arrays = [kept[name] for name in kept.files]
        self.weights, self.speeds = arrays[:2], arrays[2:]

    def digest(self) -> str:
        """SHA-256 of weights and momentum."""
        return hashlib.sha256(b"".join(array.tobytes() for array in (*self.weights, *self.speeds))).hexdigest()


def train(order: Order, began: float) -> None:
    """Do what was ordered; ``began`` is the monotonic time at which the process did."""
    devices = len(json.loads(os.environ.get("PREFECT_GPU_DEVICES", "[0]")))
    step_s = order.step_s[devices - 1] if order.step_s else 0.0
    notes = os.open(order.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with training_run(steps=order.steps) as run:
        network = Network(order.seed)
        run.restore(network.load)

        def save(path: Path) -> None:
            begin = time.monotonic()
            network.save(path)
            _rest(begin + order.checkpoint_s)

        _rest(began + order.launching_s)
        for number in run.steps():
            begin = time.monotonic()
            loss = network.step(number)
            _rest(begin + step_s)
            os.write(notes, (json.dumps([number, devices, os.getpid()]) + "\n").encode())
            run.report(loss=loss, checkpoint=save)
    with run.saving():
        Path(order.result).write_text(network.digest())


def _rest(until: float) -> None:
    time.sleep(max(0.0, until - time.monotonic()))


def main() -> None:
    """Train as the environment says."""
    began = time.monotonic()
    told: dict[str, Any] = json.loads(os.environ[VARIABLE])
    train(Order(**told), began)


if __name__ == "__main__":
    main()
