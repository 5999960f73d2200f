"""The trainings that the kit runs, each in a process of its own: ``python -m benchmarks.gpu.trainings ORDER``.

Small convolutional networks and NeuMF-like recommenders, as in Liquid's evaluation, on data made up from a seed. They
use the GPU that they were given, or the CPU. Each writes down when it did what.
"""

from __future__ import annotations

from benchmarks.gpu.plain_channel import provide

provide()  # before anything looks for the channel's package

import gzip  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from prefect_gpu.training import training_run  # noqa: E402
from prefect_gpu.training.protocol import ENV_MEMORY  # noqa: E402

Step = Callable[[int], float]


class Marks:
    """What a training writes down, in Unix seconds: processes of one machine share that clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: dict[str, Any] = {"began": time.time(), "step_s": [], "step_at": [], "losses": []}

    def note(self, what: str) -> None:
        """Now."""
        self.said.setdefault(what, time.time())

    def write(self) -> None:
        """In one step."""
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.said))
        temporary.replace(self.path)


def _torch() -> tuple[Any, Any]:
    """PyTorch with one thread, and the device that this run was given."""
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        return torch, torch.device("cpu")
    torch.use_deterministic_algorithms(True, warn_only=True)  # so that losses can be compared bit for bit
    return torch, torch.device("cuda")


def _data(rows: int, columns: int, seed: int) -> Any:
    """Made-up data, normalised as real data would be: this is the work of launching."""
    import numpy as np

    x = np.random.default_rng(seed).normal(size=(rows, columns)).astype("float32")
    return (x - x.mean(0)) / x.std(0)


def _train(
    marks: Marks,
    steps: int | None,
    prepare: Callable[[], tuple[Step, Any]],
    save_mib: int,
    seconds: float = float("inf"),
) -> None:
    with training_run(steps=steps) as run:
        fit, model = prepare()
        marks.note("prepared")
        run.ready()
        for number in run.steps():
            began = time.time()
            marks.note("first_step")
            loss = fit(number)
            marks.said["step_at"].append(began)
            marks.said["step_s"].append(time.time() - began)
            marks.said["losses"].append(loss)
            run.report(loss=loss)
            if time.time() > marks.said["first_step"] + seconds:
                break
        marks.note("trained")
        marks.said["device_bytes"] = _device_bytes()
    with run.saving():
        _save(marks.path.with_suffix(".model"), model, save_mib)
    marks.note("saved")
    marks.write()


def _device_bytes() -> int | None:
    """Most bytes that PyTorch has held of the GPU; None without one."""
    torch, device = _torch()
    return int(torch.cuda.max_memory_reserved()) if device.type == "cuda" else None


def _descend(torch: Any, model: Any) -> None:
    """A step of gradient descent. PyTorch's own optimisers import its compiler first, for seconds."""
    with torch.no_grad():
        torch._foreach_add_(list(model.parameters()), [one.grad for one in model.parameters()], alpha=-0.05)


def _save(path: Path, model: Any, mebibytes: int) -> None:
    """The model, compressed, and an optimiser's usual ballast: written, flushed, and removed again."""
    import io

    import torch

    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    with path.open("wb") as file:
        file.write(gzip.compress(buffer.getvalue(), 1))
        for _ in range(mebibytes):
            file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


def cnn(
    marks: Marks, *, steps: int, batches: int, batch: int, width: int, rows: int, seed: int = 0, save_mib: int = 8
) -> None:
    """A small convolutional network on 32 x 32 pictures; one step is so many batches."""
    _train(marks, steps, lambda: _cnn(batches, batch, width, rows, seed), save_mib)


def _cnn(batches: int, batch: int, width: int, rows: int, seed: int) -> tuple[Step, Any]:
    torch, device = _torch()
    torch.manual_seed(seed)
    pictures = torch.from_numpy(_data(rows, 3 * 32 * 32, seed)).reshape(-1, 3, 32, 32)
    labels = (pictures.mean((1, 2, 3)) > 0).long()
    layers: list[Any] = []
    for number in range(3):
        before, after = (3 if number == 0 else width << (number - 1)), width << number
        layers += [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(16 * (width << 2), 2)).to(device)

    def fit(step: int) -> float:
        total = 0.0
        for number in range(step * batches, (step + 1) * batches):
            chosen = torch.arange(number * batch, (number + 1) * batch) % len(pictures)
            model.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(pictures[chosen].to(device)), labels[chosen].to(device))
            loss.backward()
            _descend(torch, model)
            total += loss.item()  # waits for the GPU
        return total / batches

    return fit, model


def neumf(
    marks: Marks, *, steps: int, batches: int, batch: int, users: int, width: int, seed: int = 0, save_mib: int = 8
) -> None:
    """A recommender in the manner of NeuMF: a product of embeddings beside a small network, on made-up ratings."""
    _train(marks, steps, lambda: _neumf(batches, batch, users, width, seed), save_mib)


def _neumf(batches: int, batch: int, users: int, width: int, seed: int) -> tuple[Step, Any]:
    torch, device = _torch()
    torch.manual_seed(seed)
    nn = torch.nn

    class NeuMF(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item = nn.Embedding(users, 2 * width), nn.Embedding(users, 2 * width)
            self.mlp = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
            self.out = nn.Linear(2 * width, 1)

        def forward(self, user: Any, item: Any) -> Any:
            (gu, mu), (gi, mi) = self.user(user).chunk(2, -1), self.item(item).chunk(2, -1)
            return self.out(torch.cat([gu * gi, self.mlp(torch.cat([mu, mi], -1))], -1)).squeeze(-1)

    known = torch.from_numpy(_data(users, 8, seed))
    model = NeuMF().to(device)
    generator = torch.Generator().manual_seed(seed)

    def fit(step: int) -> float:
        total = 0.0
        for _ in range(batches):
            pairs = torch.randint(users, (2, batch), generator=generator)
            liked = ((known[pairs[0]] * known[pairs[1]]).sum(-1) > 0).float().to(device)
            model.zero_grad()
            said = model(pairs[0].to(device), pairs[1].to(device))
            loss = nn.functional.binary_cross_entropy_with_logits(said, liked)
            loss.backward()
            _descend(torch, model)
            total += loss.item()
        return total / batches

    return fit, model


def greedy(marks: Marks, *, steps: int, at: int, mebibytes: int, capped: bool = True, **network: Any) -> None:
    """A small network that takes so much memory all of a sudden.

    Args:
        at: The step in which it does.
        capped: Otherwise it behaves as if nobody had told it what it was granted.
    """
    if not capped:
        os.environ.pop(ENV_MEMORY, None)
    taken: list[Any] = []

    def prepare() -> tuple[Step, Any]:
        fit, model = _cnn(**network, seed=1)
        torch, device = _torch()

        def step(number: int) -> float:
            if number == at:
                taken.append(torch.ones(mebibytes << 18, device=device))
            return fit(number)

        return step, model

    _train(marks, steps, prepare, 1)


def growing(marks: Marks, *, steps: int, batch: int, layers: int = 8) -> None:
    """A network whose memory is its batch: what each layer gives is kept until the way back."""

    def prepare() -> tuple[Step, Any]:
        torch, device = _torch()
        model = torch.nn.ParameterList([torch.nn.Parameter(torch.rand(1024, device=device)) for _ in range(layers)])

        def step(number: int) -> float:
            x = torch.ones(batch, 1024, device=device)
            for weights in model:
                x = torch.tanh(x * weights)
            loss = x.mean()
            loss.backward()
            return float(loss.item())

        return step, model

    _train(marks, steps, prepare, 1)


def pipeline(marks: Marks, *, seconds: float, loaders: int, batch: int, work: int, width: int) -> None:
    """A small network behind a ``DataLoader`` whose processes decode and distort pictures: cores decide its speed.

    Args:
        seconds: How long it trains.
        loaders: Processes of the loader.
        work: How often each picture is distorted.
    """
    import zlib

    import numpy as np

    torch, _ = _torch()
    rng = np.random.default_rng(0)
    files = [zlib.compress(rng.integers(0, 64, (3, 64, 64), dtype=np.uint8).tobytes(), 1) for _ in range(64)]

    class Pictures(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 1 << 30

        def __getitem__(self, number: int) -> Any:
            for _ in range(work):
                flat = np.frombuffer(zlib.decompress(files[number % len(files)]), np.uint8).astype("float32")
                picture = flat.reshape(3, 64, 64)[:, 16:48, 16:48]
                picture = (picture - picture.mean()) / (picture.std() + 1e-6)
            return np.ascontiguousarray(picture)

    def prepare() -> tuple[Step, Any]:
        _, device = _torch()
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, width, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        ).to(device)
        loader = torch.utils.data.DataLoader(Pictures(), batch, num_workers=loaders, prefetch_factor=2)
        batches = iter(loader)

        def step(number: int) -> float:
            model.zero_grad()
            loss = model(next(batches).to(device)).square().mean()
            loss.backward()
            return float(loss.item())

        return step, model

    _train(marks, None, prepare, 1, seconds)


PROGRAMS: dict[str, Callable[..., None]] = {one.__name__: one for one in (cnn, neumf, greedy, growing, pipeline)}


def main() -> None:
    """Run the training that the command line orders."""
    order = json.loads(sys.argv[1])
    PROGRAMS[order["program"]](Marks(Path(order["marks"])), **order["parameters"])


if __name__ == "__main__":
    main()
