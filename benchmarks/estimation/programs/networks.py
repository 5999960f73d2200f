"""PyTorch networks on tables and images: a perceptron, a convolutional network, a variational autoencoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.estimation.programs.common import SlowVolume, batch_at, save, table
from prefect_gpu import training_run

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}
OPTIMIZERS = {
    "sgd": lambda weights, lr: torch.optim.SGD(weights, lr=lr),
    "momentum": lambda weights, lr: torch.optim.SGD(weights, lr=lr, momentum=0.9),
    "adam": lambda weights, lr: torch.optim.Adam(weights, lr=lr),
    "adamw": lambda weights, lr: torch.optim.AdamW(weights, lr=lr),
}


def update(optimizer: Any, loss: torch.Tensor) -> float:
    """One step of an optimiser."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def streamed_mlp(
    rows: int,
    columns: int,
    batch_size: int,
    steps: int,
    model: dict[str, int],
    activation: str,
    optimizer: str,
    storage_mb_per_s: float,
    lr: float,
    seed: int,
    **_: Any,
) -> None:
    """A perceptron whose batches come from a volume of limited rate."""
    torch.manual_seed(seed)
    with training_run(steps=steps, batch_size=batch_size, features={"rows": rows, "columns": columns}) as run:
        data, target = table(rows, columns, seed)
        volume = SlowVolume(Path("table.f32"), data, storage_mb_per_s)
        layers: list[nn.Module] = []
        for layer in range(model["layers"]):
            layers += [nn.Linear(model["width"] if layer else columns, model["width"]), ACTIVATIONS[activation]()]
        network = nn.Sequential(*layers, nn.Linear(model["width"], 1))
        improve = OPTIMIZERS[optimizer](network.parameters(), lr)
        for step in run.steps():
            part = batch_at(step, batch_size, rows)
            batch, wanted = torch.from_numpy(volume.read(part)), torch.from_numpy(target[part])
            run.report(loss=update(improve, nn.functional.mse_loss(network(batch)[:, 0], wanted)))
    with run.saving(), torch.no_grad():
        predictions = [network(part) for part in torch.from_numpy(data[: rows // 2]).split(4096)]
        save("model.bin", model=network.state_dict(), state=improve.state_dict(), predictions=predictions)


def cnn(
    images: int,
    image_size: int,
    batch_size: int,
    steps: int,
    model: dict[str, int],
    batch_norm: bool,
    optimizer: str,
    lr: float,
    seed: int,
    **_: Any,
) -> None:
    """An image classifier: blocks of convolutions; the result holds the features of two thousand images."""
    torch.manual_seed(seed)
    features = {"rows": images, "columns": 3 * image_size**2}
    with training_run(steps=steps, batch_size=batch_size, features=features) as run:
        target = torch.randint(0, 10, (images,))
        data = torch.randint(0, 200, (images, 3, image_size, image_size), dtype=torch.uint8)
        data += (target * 5).to(torch.uint8)[:, None, None, None]
        layers: list[nn.Module] = []
        channels = 3
        for block in range(model["blocks"]):
            wider = model["channels"] * 2**block
            layers.append(nn.Conv2d(channels, wider, 3, padding=1))
            layers += [nn.BatchNorm2d(wider)] if batch_norm else []
            layers += [nn.ReLU(), nn.Conv2d(wider, wider, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            channels = wider
        body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        network = nn.Sequential(body, nn.Linear(channels, 10))
        improve = OPTIMIZERS[optimizer](network.parameters(), lr)
        for step in run.steps():
            part = batch_at(step, batch_size, images)
            output = network(data[part].float() / 255)
            run.report(loss=update(improve, nn.functional.cross_entropy(output, target[part])))
    with run.saving(), torch.no_grad():
        found = [body(part.float() / 255) for part in data[:2000].split(100)]
        save("model.bin", model=network.state_dict(), state=improve.state_dict(), features=found)


def streamed_vae(
    rows: int,
    image_size: int,
    batch_size: int,
    steps: int,
    hidden: int,
    latent: int,
    optimizer: str,
    storage_mb_per_s: float,
    lr: float,
    seed: int,
    **_: Any,
) -> None:
    """A variational autoencoder whose images come from a volume of limited rate; the result is their embeddings."""
    torch.manual_seed(seed)
    pixels = image_size**2
    with training_run(steps=steps, batch_size=batch_size, features={"rows": rows, "columns": pixels}) as run:
        data, _target = table(rows, pixels, seed)
        volume = SlowVolume(Path("images.f32"), data, storage_mb_per_s)
        encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        spread = nn.Linear(hidden, 2 * latent)
        decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, pixels))
        weights = [*encoder.parameters(), *spread.parameters(), *decoder.parameters()]
        improve = OPTIMIZERS[optimizer](weights, lr)
        for step in run.steps():
            batch = torch.from_numpy(volume.read(batch_at(step, batch_size, rows)))
            mean, log_var = spread(encoder(batch)).chunk(2, dim=1)
            again = decoder(mean + torch.randn_like(mean) * (log_var / 2).exp())
            divergence = (mean**2 + log_var.exp() - 1 - log_var).mean()
            run.report(loss=update(improve, nn.functional.mse_loss(again, batch) + 0.1 * divergence))
    with run.saving(), torch.no_grad():
        embeddings = [spread(encoder(part)) for part in torch.from_numpy(data).split(4096)]
        save("model.bin", model=[encoder.state_dict(), decoder.state_dict()], embeddings=embeddings)
