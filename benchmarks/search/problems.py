"""Two tuning problems on the photographs that ship with scikit-learn: boosted trees, and a small convolutional network.

Both take noise out of a picture. The photographs are made grey, and each pixel is changed by normal noise. Patches from
the left two thirds of both are for training, those from the right third for validation. The loss is the part of the
noise's variance that is left: 1 for who changes nothing.

There are many patches, so that trainings that differ in nothing but their seed end within six per cent of each other
(``python -m benchmarks.search.noise``). Parameters make a factor of two and a half of the trees' loss, and of more
than five of the network's: a search of them is no lottery.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Protocol

STEPS = 81
_ROUNDS = 4
_NOISE = 0.1  # of a picture from 0 to 1
SPACES: dict[str, dict[str, Any]] = {
    # One step is four rounds of boosting.
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
        "channels": (4, 48, "log"),
        "batch": (8, 128, "log"),
        "decay": (1e-6, 1e-1, "log"),
    },
}


class Problem(Protocol):
    """A training that can be saved and carried on."""

    def __init__(self, *, seed: int = 0, **parameters: Any) -> None:
        """Of some parameters; the seed is that of the training's own draws, and not of the data."""

    def step(self, number: int) -> float:
        """One step. Returns the validation loss."""

    def save(self, path: Path) -> None:
        """All that later steps depend on."""

    def load(self, path: Path) -> None:
        """The opposite."""


def patches(side: int, train: int, valid: int) -> tuple[Any, Any, Any, Any]:
    """Square patches: noisy and clean ones for training, then noisy and clean ones for validation.

    Args:
        side: Pixels.
        train, valid: How many; half from each photograph.
    """
    import numpy
    from sklearn.datasets import load_sample_images

    chance = numpy.random.default_rng(0)
    clean = [photo.astype("float32").mean(axis=2) / 255.0 for photo in load_sample_images().images]
    noisy = [photo + chance.normal(0.0, _NOISE, photo.shape).astype("float32") for photo in clean]
    found = []
    for first, last, count in ((0.0, 0.66, train), (0.68, 1.0, valid)):
        places = []
        for photo in clean:
            height, width = photo.shape
            rows = chance.integers(0, height - side, count // 2)
            places.append((rows, chance.integers(int(first * width), int(last * width) - side, count // 2)))
        for photos in (noisy, clean):
            windows = [numpy.lib.stride_tricks.sliding_window_view(photo, (side, side)) for photo in photos]
            found.append(numpy.concatenate([some[at] for some, at in zip(windows, places, strict=True)]))
    return found[0], found[1], found[2], found[3]


class Boosted:
    """scikit-learn's gradient boosting: the middle of 7 x 7 pixels, from all of them."""

    def __init__(self, *, seed: int = 0, **parameters: Any) -> None:
        from sklearn.ensemble import GradientBoostingRegressor

        around, clean, valid, clean_valid = patches(7, 4_000, 4_000)
        self._x, self._y = around.reshape(len(around), -1), clean[:, 3, 3]
        self._x_valid, self._y_valid = valid.reshape(len(valid), -1), clean_valid[:, 3, 3]
        self._model = GradientBoostingRegressor(warm_start=True, random_state=seed, **parameters)

    def step(self, number: int) -> float:
        """Four rounds."""
        self._model.set_params(n_estimators=_ROUNDS * (number + 1)).fit(self._x, self._y)
        return float(((self._model.predict(self._x_valid) - self._y_valid) ** 2).mean() / _NOISE**2)

    def save(self, path: Path) -> None:
        """The trees so far."""
        path.write_bytes(pickle.dumps(self._model))

    def load(self, path: Path) -> None:
        """From such a file."""
        self._model = pickle.loads(path.read_bytes())


class Network:
    """Three convolutions in PyTorch that find the noise of 12 x 12 pixels, by SGD with momentum."""

    def __init__(self, lr: float, momentum: float, channels: int, batch: int, decay: float, seed: int = 0) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self._torch, self._batch, self._seed = torch, batch, seed
        self._data = [torch.tensor(part)[:, None] for part in patches(12, 480, 480)]
        self._model = torch.nn.Sequential(
            torch.nn.Conv2d(1, channels, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(channels, channels, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(channels, 1, 3, padding=1),
        )
        self._sgd = torch.optim.SGD(self._model.parameters(), lr=lr, momentum=momentum, weight_decay=decay)

    def step(self, number: int) -> float:
        """One epoch, in an order of its own."""
        x, y, x_valid, y_valid = self._data
        order = self._torch.Generator().manual_seed(1000 * self._seed + number)
        for rows in self._torch.randperm(len(x), generator=order).split(self._batch):
            self._sgd.zero_grad()
            self._left(x[rows], y[rows]).backward()
            self._sgd.step()
        with self._torch.no_grad():
            loss = float(self._left(x_valid, y_valid))
        return loss if loss < 1e3 else 1e3  # it has diverged, to infinity or to no number

    def _left(self, noisy: Any, clean: Any) -> Any:
        """The part of the noise's variance that is left."""
        return self._torch.nn.functional.mse_loss(noisy + self._model(noisy), clean) / _NOISE**2

    def save(self, path: Path) -> None:
        """The weights and the optimiser."""
        self._torch.save([self._model.state_dict(), self._sgd.state_dict()], path)

    def load(self, path: Path) -> None:
        """From such a file."""
        model, sgd = self._torch.load(path)
        self._model.load_state_dict(model)
        self._sgd.load_state_dict(sgd)


PROBLEMS: dict[str, Any] = {"boosted": Boosted, "network": Network}
