"""Train one model on several devices at once, with PyTorch's DistributedDataParallel: a gang.

Train in this process alone, which needs no pool and no server:

    python -c "from flows.distributed_training import train_together as f; print(f.fn('model.pt'))"

or in the pool, from here, with a worker running; its instances may be on different nodes:

    python flows/distributed_training.py

Every instance calls this same function. The first one is the flow run that Prefect knows: it saves checkpoints and the
result. To adapt it: put your data into `load` and your network into `build`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import flow

from prefect_gpu import gpu, training_run

if TYPE_CHECKING:
    import torch


def load(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Handwritten digits that ship with scikit-learn: images and labels to train on, and held-out ones."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x_train, x_held_out, y_train, y_held_out = train_test_split(x / 16, y, test_size=0.2, stratify=y, random_state=seed)
    images = (torch.as_tensor(part, dtype=torch.float32).reshape(-1, 1, 8, 8) for part in (x_train, x_held_out))
    labels = (torch.as_tensor(part, dtype=torch.long) for part in (y_train, y_held_out))
    return (*images, *labels)  # type: ignore[return-value]


def build(channels: int) -> torch.nn.Module:
    """A small convolutional network."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * channels, 10)
    )


def join() -> tuple[int, int]:
    """Meet the other instances. Returns this one's number, and how many there are."""
    import torch
    import torch.distributed as dist

    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if dist.is_initialized():  # by a try of this process that has lost the others: Prefect tries at once again
        dist.destroy_process_group()
    if "RANK" in os.environ:  # set by the pool, as torchrun does
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return dist.get_rank(), dist.get_world_size()


def from_first(value: Any) -> Any:
    """What instance 0 has, for all of them."""
    import torch.distributed as dist

    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


@gpu(work_pool="gpus", gpus=1, workers=2, category="cv", preemptible=True)
@flow(name="train-together", retries=2, persist_result=True)
def train_together(
    model_path: str, epochs: int = 20, channels: int = 16, batch_size: int = 64, lr: float = 5e-3, seed: int = 0
) -> float:
    """Train a model in all instances of the gang, and save it in the first.

    Args:
        model_path: Where its weights go.
        epochs: Passes over the data.
        channels: Of the convolution.
        batch_size: Images in a step of each instance.
        lr: Learning rate.
        seed: Of the split, of the weights and of the order of the images.

    Returns:
        The part of the held-out images that it tells right.
    """
    with training_run(steps=epochs, batch_size=batch_size, features={"channels": channels}) as run:
        import torch
        import torch.distributed as dist
        from torch.nn.functional import cross_entropy
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(seed)
        x, x_held_out, y, y_held_out = load(seed)
        model = build(channels)
        state = run.restore(torch.load)
        run.ready()  # the devices are ours from here on
        rank, count = join()
        device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        optimizer = torch.optim.AdamW(model.to(device).parameters(), lr)
        state = from_first(state)  # so that all carry on from the same
        run.step = state["epoch"] if state else 0
        if state:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        together = DistributedDataParallel(model)

        def save(path: Path) -> None:
            done = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": run.step}
            torch.save(done, path)

        for epoch in run.steps():
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed + epoch))
            own = order[rank::count][: len(x) // count]  # the same number for each: they wait for one another
            for batch in own.split(batch_size):
                loss = cross_entropy(together(x[batch].to(device)), y[batch].to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            run.report(loss=loss.item(), checkpoint=save)
            if from_first(run.stop_requested):
                break
        with torch.no_grad():
            accuracy = float((model(x_held_out.to(device)).argmax(1).cpu() == y_held_out).float().mean())
        dist.destroy_process_group()
    with run.saving():
        if rank == 0:
            aside = Path(f"{model_path}.partial")
            torch.save({name: value.cpu() for name, value in model.state_dict().items()}, aside)
            os.replace(aside, model_path)
    return accuracy


if __name__ == "__main__":
    print(train_together.start(model_path=str(Path("model.pt").absolute())).result())
