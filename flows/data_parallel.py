"""Train one model on several devices at once with NumPy alone: a gang without any framework.

Each instance computes the gradient of its own images; all of them take the same step, with the mean of all gradients.
With PyTorch, take `distributed_training.py` instead: this one shows what happens between the instances.

Train in this process alone, which needs no pool and no server:

    python -c "from flows.data_parallel import train_side_by_side as f; print(f.fn('model.npz'))"

or in the pool, from here, with a worker running; its instances may be on different nodes:

    python flows/data_parallel.py

Every instance calls this same function. The first one is the flow run that Prefect knows: it saves checkpoints and the
result. To adapt it: put your data into `load` and your network into `Network`.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import numpy as np
from prefect import flow

from prefect_gpu import gpu, training_run

_MEETING_S = 120.0  # an instance's node may have to start a container first


def load(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Handwritten digits that ship with scikit-learn: images and labels to train on, and held-out ones."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x_train, x_held_out, y_train, y_held_out = train_test_split(x / 16, y, test_size=0.2, stratify=y, random_state=seed)
    return x_train, x_held_out, y_train, y_held_out


class Network:
    """One hidden layer, its weights in one flat array, so that instances can exchange them in one message."""

    def __init__(self, hidden: int, seed: int) -> None:
        self._shapes = [(64, hidden), (hidden,), (hidden, 10), (10,)]
        self._ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])
        random = np.random.default_rng(seed)
        first, second = random.normal(0, 0.125, self._shapes[0]), random.normal(0, hidden**-0.5, self._shapes[2])
        self.weights = np.concatenate([first.ravel(), np.zeros(hidden), second.ravel(), np.zeros(10)])

    def probabilities(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of the ten digits, and what the hidden layer makes of the images."""
        in_weights, in_bias, out_weights, out_bias = self._parts()
        hidden = np.maximum(x @ in_weights + in_bias, 0)
        scores = hidden @ out_weights + out_bias
        exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
        return exponents / exponents.sum(axis=1, keepdims=True), hidden

    def gradient(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
        """Of the cross-entropy, as flat as the weights; and the cross-entropy itself."""
        probabilities, hidden = self.probabilities(x)
        rows = np.arange(len(y))
        loss = float(-np.log(probabilities[rows, y] + 1e-12).mean())
        error = probabilities.copy()
        error[rows, y] -= 1
        error /= len(y)
        back = (error @ self._parts()[2].T) * (hidden > 0)
        parts = (x.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0))
        return np.concatenate([part.ravel() for part in parts]), loss

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        """The part of the images that it tells right."""
        return float((self.probabilities(x)[0].argmax(axis=1) == y).mean())

    def _parts(self) -> list[np.ndarray]:
        flat = np.split(self.weights, self._ends[:-1])
        return [part.reshape(shape) for part, shape in zip(flat, self._shapes, strict=True)]


class Gang:
    """The instances of this run. They meet at the first; without the pool there is one, and nobody to meet.

    Attributes:
        rank: This one's number.
        size: How many there are.
    """

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))  # set by the pool, as torchrun does
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self._peers: list[socket.socket] = []
        if self.size > 1:
            address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            self._peers = [self._reach(address)] if self.rank else self._gather(address)

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.close()

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean of what all instances have; each must ask for it.

        Raises:
            ConnectionError: Another instance has ended.
        """
        if self.rank:
            self._peers[0].sendall(values.tobytes())
            return self._receive(self._peers[0], values)
        total = values.copy()
        for peer in self._peers:
            total += self._receive(peer, values)
        return self.from_first(total / self.size)

    def from_first(self, values: np.ndarray) -> np.ndarray:
        """What the first instance has, for all of them; each must ask for it, with an array of the same shape.

        Raises:
            ConnectionError: Another instance has ended.
        """
        if self.rank:
            return self._receive(self._peers[0], values)
        for peer in self._peers:
            peer.sendall(values.tobytes())
        return values

    def _gather(self, address: tuple[str, int]) -> list[socket.socket]:
        with socket.create_server(address) as server:
            server.settimeout(_MEETING_S)
            return [self._set_up(server.accept()[0]) for _ in range(self.size - 1)]

    def _reach(self, address: tuple[str, int]) -> socket.socket:
        """The first instance may start later than this one."""
        end = time.monotonic() + _MEETING_S
        while True:
            try:
                return self._set_up(socket.create_connection(address, timeout=10))
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    @staticmethod
    def _set_up(peer: socket.socket) -> socket.socket:
        peer.settimeout(_MEETING_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer

    @staticmethod
    def _receive(peer: socket.socket, like: np.ndarray) -> np.ndarray:
        message = bytearray()
        while len(message) < like.nbytes:
            part = peer.recv(like.nbytes - len(message))
            if not part:
                raise ConnectionError("Another instance of the gang has ended.")
            message += part
        return np.frombuffer(bytes(message), dtype=like.dtype).reshape(like.shape)


@gpu(work_pool="gpus", gpus=1, workers=2, category="cv")
@flow(name="train-side-by-side", flow_run_name="digits {hidden} side by side", retries=3, persist_result=True)
def train_side_by_side(
    model_path: str,
    epochs: int = 40,
    hidden: int = 64,
    batch_size: int = 32,
    lr: float = 0.1,
    seed: int = 0,
    least_epoch_s: float = 0.0,
    checkpoint_every: float = 10.0,
) -> float:
    """Train a model in all instances of the gang, and save it in the first.

    Args:
        model_path: Where its weights go (NumPy's format).
        epochs: Passes over the data.
        hidden: Neurons in the hidden layer.
        batch_size: Images in a step of each instance.
        lr: Learning rate.
        seed: Of the split, of the weights and of the order of the images.
        least_epoch_s: Seconds that an epoch takes at least, for those who want to watch.
        checkpoint_every: Seconds between two checkpoints.

    Returns:
        The part of the held-out images that it tells right.
    """
    with training_run(steps=epochs, batch_size=batch_size, checkpoint_every=checkpoint_every) as run:
        x, x_held_out, y, y_held_out = load(seed)
        network = Network(hidden, seed)
        velocity = np.zeros_like(network.weights)
        state = run.restore(lambda path: np.load(path / "state.npz"))
        run.ready()  # the devices are ours from here on

        def save(path: Path) -> None:
            path.mkdir()
            np.savez(path / "state.npz", weights=network.weights, velocity=velocity, epoch=run.step)

        with Gang() as gang:
            if state is not None:
                network.weights, velocity = state["weights"], state["velocity"]
            # All carry on from where the first one does.
            network.weights, velocity = gang.from_first(network.weights), gang.from_first(velocity)
            run.step = int(gang.from_first(np.array([int(state["epoch"]) if state is not None else 0]))[0])
            for epoch in run.steps():
                began = time.monotonic()
                order = np.random.default_rng([seed, epoch]).permutation(len(x))
                own = order[gang.rank :: gang.size][: len(x) // gang.size]  # as many for each: all wait for all
                losses = []
                for start in range(0, len(own), batch_size):
                    batch = own[start : start + batch_size]
                    gradient, loss = network.gradient(x[batch], y[batch])
                    velocity = 0.9 * velocity - lr * gang.mean(gradient)
                    network.weights = network.weights + velocity
                    losses.append(loss)
                time.sleep(max(0.0, least_epoch_s - (time.monotonic() - began)))
                run.report(loss=float(np.mean(losses)), checkpoint=save)
                if gang.from_first(np.array([run.stop_requested]))[0]:
                    break
    with run.saving():
        if gang.rank == 0:
            aside = Path(f"{model_path}.partial")
            with aside.open("wb") as file:
                np.savez(file, weights=network.weights, hidden=hidden)
            os.replace(aside, model_path)
    return network.accuracy(x_held_out, y_held_out)


if __name__ == "__main__":
    print(train_side_by_side.start(model_path=str(Path("model.npz").absolute())).result())
