"""Two tuning problems on a data set that ships with scikit-learn: boosted trees, and a small convolutional network.

Digits: 1797 images of 8 x 8 pixels. 60 % are for training, each also shifted by a pixel to each side, as in
scikit-learn's example of a restricted Boltzmann machine: 5,390 images. The validation loss is the log loss on 20 %.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Protocol

STEPS = 81
_ROUNDS = 3
SPACES: dict[str, dict[str, Any]] = {
    # One step is three rounds of boosting of ten trees each, as there are ten digits.
    "boosted": {
        "learning_rate": (0.01, 1.0, "log"),
        "max_depth": (1, 8),
        "subsample": (0.3, 1.0),
        "max_features": (0.05, 1.0, "log"),
        "min_samples_leaf": (1, 50, "log"),
    },
    # One step is one epoch.
    "network": {
        "lr": (1e-4, 1.0, "log"),
        "momentum": (0.0, 0.99),
        "channels": (4, 64, "log"),
        "batch": (16, 256, "log"),
        "decay": (1e-6, 1e-1, "log"),
    },
}


class Problem(Protocol):
    """A training that can be saved and carried on."""

    def step(self, number: int) -> float:
        """One step. Returns the validation loss."""

    def save(self, path: Path) -> None:
        """All that later steps depend on."""

    def load(self, path: Path) -> None:
        """The opposite."""


def _split(image: bool) -> tuple[Any, Any, Any, Any]:
    import numpy
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x = (x / 16.0).astype("float32")
    x, x_rest, y, y_rest = train_test_split(x, y, test_size=0.4, random_state=0, stratify=y)
    x_valid, _, y_valid, _ = train_test_split(x_rest, y_rest, test_size=0.5, random_state=0, stratify=y_rest)
    x, y = _shifted(x.reshape(-1, 8, 8)), numpy.tile(y, 5)
    shape = (-1, 1, 8, 8) if image else (-1, 64)
    return x.reshape(shape), y, x_valid.reshape(shape), y_valid


def _shifted(images: Any) -> Any:
    """The images, then all of them a pixel further down, up, right and left; what is shifted in is empty."""
    import numpy

    found = [images]
    for axis, by in ((1, 1), (1, -1), (2, 1), (2, -1)):
        moved = numpy.roll(images, by, axis=axis)
        edge = 0 if by > 0 else -1
        moved[(slice(None), edge) if axis == 1 else (slice(None), slice(None), edge)] = 0.0
        found.append(moved)
    return numpy.concatenate(found)


class Boosted:
    """scikit-learn's gradient boosting."""

    def __init__(self, **parameters: Any) -> None:
        from sklearn.ensemble import GradientBoostingClassifier

        self._x, self._y, self._x_valid, self._y_valid = _split(image=False)
        self._model = GradientBoostingClassifier(warm_start=True, random_state=0, **parameters)

    def step(self, number: int) -> float:
        """Three rounds."""
        from sklearn.metrics import log_loss

        self._model.set_params(n_estimators=_ROUNDS * (number + 1)).fit(self._x, self._y)
        return float(log_loss(self._y_valid, self._model.predict_proba(self._x_valid)))

    def staged(self, steps: int, seed: int) -> list[float]:
        """The validation loss after each step, of one training from its beginning with another seed."""
        from sklearn.metrics import log_loss

        self._model.set_params(n_estimators=_ROUNDS * steps, random_state=seed).fit(self._x, self._y)
        stages = list(self._model.staged_predict_proba(self._x_valid))
        return [float(log_loss(self._y_valid, stage)) for stage in stages[_ROUNDS - 1 :: _ROUNDS]]

    def save(self, path: Path) -> None:
        """The trees so far."""
        path.write_bytes(pickle.dumps(self._model))

    def load(self, path: Path) -> None:
        """From such a file."""
        self._model = pickle.loads(path.read_bytes())


class Network:
    """Two convolutions and a linear layer in PyTorch, by SGD with momentum."""

    def __init__(self, lr: float, momentum: float, channels: int, batch: int, decay: float) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._torch, self._batch = torch, batch
        self._data = [torch.tensor(part) for part in _split(image=True)]
        self._model = torch.nn.Sequential(
            torch.nn.Conv2d(1, channels, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(channels, channels, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(channels * 16, 10),
        )
        self._sgd = torch.optim.SGD(self._model.parameters(), lr=lr, momentum=momentum, weight_decay=decay)

    def step(self, number: int) -> float:
        """One epoch, in an order of its own."""
        torch, loss_of = self._torch, self._torch.nn.functional.cross_entropy
        x, y, x_valid, y_valid = self._data
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(number))
        for rows in order.split(self._batch):
            self._sgd.zero_grad()
            loss_of(self._model(x[rows]), y[rows]).backward()
            self._sgd.step()
        with torch.no_grad():
            loss = float(loss_of(self._model(x_valid), y_valid))
        return loss if loss < 1e3 else 1e3  # it has diverged, to infinity or to no number

    def save(self, path: Path) -> None:
        """The weights and the optimiser."""
        self._torch.save([self._model.state_dict(), self._sgd.state_dict()], path)

    def load(self, path: Path) -> None:
        """From such a file."""
        model, sgd = self._torch.load(path)
        self._model.load_state_dict(model)
        self._sgd.load_state_dict(sgd)


PROBLEMS: dict[str, Any] = {"boosted": Boosted, "network": Network}
