"""The training of the benchmark of demotion: a real one in PyTorch, which does its steps on core 0."""

from __future__ import annotations

import os
import tempfile

from prefect import flow

from prefect_gpu import training_run

DEVICE_CORE, HOST_CORE = 0, 1


@flow
def fit(lr: float, seed: int, epochs: int) -> float:
    """Trains a small network on scikit-learn's digits; one step is one epoch, and its loss that of all images."""
    import torch
    from sklearn.datasets import load_digits
    from torch.nn.functional import cross_entropy

    with training_run(steps=epochs) as run:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        images, labels = load_digits(return_X_y=True)
        images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr)
        run.ready()
        os.sched_setaffinity(0, {DEVICE_CORE})  # this thread alone: the device is that core
        for _ in run.steps():
            for batch in torch.randperm(len(images)).split(64):
                optimizer.zero_grad()
                cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                loss = float(cross_entropy(model(images), labels))
            run.report(loss=loss)
    os.sched_setaffinity(0, {HOST_CORE})
    with run.saving(), tempfile.TemporaryFile() as file:
        torch.save(model.state_dict(), file)
    return loss
