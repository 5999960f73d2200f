"""Train a small convolutional network with PyTorch: a training of one's own, as the pool likes it.

Train in this process, which needs no pool and no server:

    python -c "from flows.torch_training import train_cnn; print(train_cnn.fn('model.pt'))"

or in the pool, from here, with a worker running:

    python flows/torch_training.py

or deploy it with ``prefect deploy --all --prefect-file deployments/prefect.yaml``. To adapt it: put your data into
`load` and your network into `build`. PyTorch is imported only where a model is trained.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import flow

from prefect_gpu import gpu, training_run

if TYPE_CHECKING:
    import torch
    from torch.utils.data import TensorDataset


def load(seed: int = 0) -> tuple[TensorDataset, TensorDataset]:
    """Handwritten digits that ship with scikit-learn, 8 × 8 pixels: 80% to train on, 20% held out."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from torch.utils.data import TensorDataset

    x, y = load_digits(return_X_y=True)
    x_train, x_held_out, y_train, y_held_out = train_test_split(x, y, test_size=0.2, stratify=y, random_state=seed)

    def images(x: object, y: object) -> TensorDataset:
        return TensorDataset(
            torch.as_tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.as_tensor(y, dtype=torch.long)
        )

    return images(x_train, y_train), images(x_held_out, y_held_out)


def build(channels: int) -> torch.nn.Module:
    """Two convolutions and a linear layer, on the CPU: it moves to the device when the run has got it."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(8 * channels, 10),
    )


@gpu(work_pool="gpus", gpus=1, category="cv")
@flow(name="train-cnn", retries=2, persist_result=True)
def train_cnn(
    model_path: str, epochs: int = 15, channels: int = 16, batch_size: int = 64, lr: float = 2e-3, seed: int = 0
) -> float:
    """Train and save a model.

    Args:
        model_path: Where its weights go.
        epochs: Passes over the data.
        channels: Of the first convolution; the second one has twice as many.
        batch_size: Images in a step.
        lr: Learning rate at its highest.
        seed: Of the split, of the weights and of the order of the images.

    Returns:
        The part of the held-out images that it tells right.
    """
    with training_run(batch_size=batch_size, features={"channels": channels}, checkpoint_every=60) as run:
        # Preparing: nothing touches the GPU yet, so that the run before this one may still be training.
        import torch
        from torch.nn.functional import cross_entropy
        from torch.utils.data import DataLoader

        from prefect_gpu.training.callbacks.torch import TorchLoop

        torch.manual_seed(seed)
        train, held_out = load(seed)
        loader = DataLoader(train, batch_size, shuffle=True)
        model = build(channels)
        optimizer = torch.optim.AdamW(model.parameters(), lr)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(loader))
        loop = TorchLoop(run, model, optimizer=optimizer, scheduler=scheduler)
        for x, y in loop.batches(loader, epochs):
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            loop.report(loss, epoch=loop.epoch)
        model.eval()
        with torch.no_grad():
            x, y = loop.to_device(held_out.tensors)
            accuracy = float((model(x).argmax(1) == y).float().mean())
        model.cpu()
    with run.saving():  # the GPU is free: the next run may train on it
        aside = Path(f"{model_path}.partial")
        torch.save(model.state_dict(), aside)
        os.replace(aside, model_path)
    return accuracy


if __name__ == "__main__":
    print(train_cnn.start(model_path=str(Path("model.pt").absolute())).result())
