"""Train one model with parameter servers: workers compute gradients, servers keep the weights. A gang, too.

No worker waits for the others within an epoch: each pushes the gradient of its batch and gets the weights as they are
then. That is for workers of unequal speed, and for models of which the servers' memory holds more than a device's.

Train in this process alone, which needs no pool and no server:

    python -c "from flows.parameter_server import train_with_servers as f; print(f.fn('model.pt'))"

or in the pool, from here, with a worker running; its instances may be on different nodes:

    python flows/parameter_server.py

Every instance calls this same function, workers and servers. The first worker is the flow run that Prefect knows: it
saves checkpoints and the result. To adapt it: put your data into `load` and your network into `build`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import flow

from prefect_gpu import gpu, training_run

if TYPE_CHECKING:
    import torch

_GRADIENT, _GOODBYE = 0.0, 1.0  # the last number of each message to a server says what it is


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


class Weights:
    """A model's weights as a worker sees them: on the servers, to equal parts; without servers, in this process.

    Args:
        first: What they are to begin with. Only the first worker's count.
        lr: Learning rate, with which each gradient is taken off them.
    """

    def __init__(self, first: torch.Tensor, lr: float) -> None:
        import torch.distributed as dist

        self._lr = lr
        self._alone = first
        self._servers = servers_of_the_gang()
        if self._servers:
            if dist.get_rank() == 0:
                for server, part in zip(self._servers, self._parts(first), strict=True):
                    dist.send(part.contiguous(), dst=server)
            dist.barrier()  # nobody pushes anything before the weights are there

    def push(self, gradient: torch.Tensor) -> torch.Tensor:
        """Give the servers a gradient; returns the weights as they are then. Both are flat, on the CPU."""
        import torch
        import torch.distributed as dist

        if not self._servers:
            self._alone = self._alone - self._lr * gradient
            return self._alone
        parts = self._parts(gradient)
        messages = [torch.cat([part, torch.tensor([_GRADIENT])]) for part in parts]
        sent = [dist.isend(message, dst=server) for server, message in zip(self._servers, messages, strict=True)]
        weights = [torch.empty_like(part) for part in parts]
        for server, part in zip(self._servers, weights, strict=True):
            dist.recv(part, src=server)
        for one in filter(None, sent):
            one.wait()
        return torch.cat(weights)

    def leave(self) -> None:
        """Tell the servers that this worker is done."""
        import torch
        import torch.distributed as dist

        for server, part in zip(self._servers, self._parts(self._alone), strict=True):
            dist.send(torch.cat([torch.zeros_like(part), torch.tensor([_GOODBYE])]), dst=server)

    def _parts(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return flat.tensor_split(len(self._servers)) if self._servers else ()


def serve(weights: torch.Tensor, lr: float) -> None:
    """Be a parameter server: keep one's part of the weights until every worker is done.

    Args:
        weights: All weights of the model, flat; their values do not matter.
        lr: Learning rate.
    """
    import torch
    import torch.distributed as dist

    servers = servers_of_the_gang()
    own = weights.tensor_split(len(servers))[dist.get_rank() - servers[0]].clone()
    dist.recv(own, src=0)
    dist.barrier()
    message = torch.empty(len(own) + 1)
    left = servers[0]  # the workers' ranks come first
    while left:
        sender = dist.recv(message)  # from whoever is first
        if message[-1] == _GOODBYE:
            left -= 1
        else:
            own -= lr * message[:-1]
            dist.send(own, dst=sender)


def servers_of_the_gang() -> range:
    """The ranks of the parameter servers; there are none without the pool."""
    workers = int(os.environ.get("PREFECT_GPU_WORKERS", "1"))
    return range(workers, workers + int(os.environ.get("PREFECT_GPU_SERVERS", "0")))


@gpu(work_pool="gpus", gpus=1, workers=2, ps=1, category="cv", preemptible=True)
@flow(name="train-with-servers", retries=2, persist_result=True)
def train_with_servers(
    model_path: str, epochs: int = 20, channels: int = 16, batch_size: int = 32, lr: float = 0.1, seed: int = 0
) -> float:
    """Train a model with workers and parameter servers, and save it in the first worker.

    Args:
        model_path: Where its weights go.
        epochs: Passes over the data, each worker over its part of them.
        channels: Of the convolution.
        batch_size: Images in a step of each worker.
        lr: Learning rate.
        seed: Of the split, of the weights and of the order of the images.

    Returns:
        The part of the held-out images that it tells right; 0 in a server, where nobody asks.

    Raises:
        ValueError: There are several workers and no server.
    """
    with training_run(steps=epochs, batch_size=batch_size, features={"channels": channels}) as run:
        import torch
        import torch.distributed as dist
        from torch.nn.functional import cross_entropy
        from torch.nn.utils import parameters_to_vector, vector_to_parameters

        torch.manual_seed(seed)
        model = build(channels)
        if dist.is_initialized():  # by a try of this process that has lost the others: Prefect tries at once again
            dist.destroy_process_group()
        if (
            "RANK" in os.environ
        ):  # set by the pool, as torchrun does; servers have no GPU, so that NCCL cannot join them
            dist.init_process_group("gloo")
        else:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        rank, workers = dist.get_rank(), dist.get_world_size() - len(servers_of_the_gang())
        if workers > 1 and not servers_of_the_gang():
            raise ValueError("ps=0: several workers need a parameter server, or each would train a model of its own.")
        together = dist.new_group(list(range(workers)))
        if os.environ.get("PREFECT_GPU_ROLE") == "server":
            serve(parameters_to_vector(model.parameters()).detach(), lr)
            dist.barrier()
            dist.destroy_process_group()
            return 0.0

        x, x_held_out, y, y_held_out = load(seed)
        state = run.restore(torch.load)
        run.ready()  # the device is ours from here on
        device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        if state:
            model.load_state_dict(state["model"])
        box = [state["epoch"] if state else 0]
        dist.broadcast_object_list(box, src=0, group=together)  # all carry on from where the first one does
        run.step = box[0]
        weights = Weights(parameters_to_vector(model.parameters()).detach(), lr)
        model.to(device)

        def use(flat: torch.Tensor) -> None:
            vector_to_parameters(flat.to(device), model.parameters())

        def save(path: Path) -> None:
            torch.save({"model": model.state_dict(), "epoch": run.step}, path)

        use(weights.push(torch.zeros_like(parameters_to_vector(model.parameters()).cpu())))
        for epoch in run.steps():
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed + epoch))
            for batch in order[rank::workers].split(batch_size):
                loss = cross_entropy(model(x[batch].to(device)), y[batch].to(device))
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                use(weights.push(parameters_to_vector(gradients).cpu()))
            run.report(loss=loss.item(), checkpoint=save)
            stop = [run.stop_requested]
            dist.broadcast_object_list(stop, src=0, group=together)
            if stop[0]:
                break
        dist.barrier(group=together)  # what the others have pushed belongs to the result
        use(weights.push(torch.zeros_like(parameters_to_vector(model.parameters()).cpu())))
        weights.leave()
        with torch.no_grad():
            accuracy = float((model(x_held_out.to(device)).argmax(1).cpu() == y_held_out).float().mean())
        dist.barrier()  # nobody hangs up on another
        dist.destroy_process_group()
    with run.saving():
        if rank == 0:
            aside = Path(f"{model_path}.partial")
            torch.save({name: value.cpu() for name, value in model.state_dict().items()}, aside)
            os.replace(aside, model_path)
    return accuracy


if __name__ == "__main__":
    print(train_with_servers.start(model_path=str(Path("model.pt").absolute())).result())
