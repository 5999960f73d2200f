"""What each instance of a gang runs: ``python -m benchmarks._gangs.trainings ORDER``.

Data-parallel training over gloo: each step computes, then averages the gradient with the other instances. Forward and
backward pass are real, on a tiny batch; beside them a step sleeps, in place of a GPU that would compute, for eight of
which two cores cannot stand.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from prefect_gpu.training import training_run

ENV_NAMESPACE = "PREFECT_GPU_BENCHMARK_NAMESPACE"
_NEW_NET = 0x40000000
_TIMEOUT_S = 120.0
_LETS_GO_S = 0.1
_WIDTH = 512


def enter(namespace: str) -> None:
    """Move this thread, and so all that it starts from now on, into a network namespace.

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(namespace, os.O_RDONLY)
    try:
        if libc.setns(file, _NEW_NET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    finally:
        os.close(file)


def network_of(gradient_bytes: int) -> Any:
    """A small perceptron whose gradient has about so many bytes (float32)."""
    import torch

    torch.manual_seed(1)
    middle = max(1, round(gradient_bytes / 4 / (_WIDTH + 1)))
    return torch.nn.Sequential(torch.nn.Linear(_WIDTH, middle), torch.nn.Tanh())


def train(gradient_bytes: int, compute_s: float, steps: int, saves: bool = False) -> dict[str, Any]:
    """Train, and say how long each step took, in seconds.

    Args:
        gradient_bytes: Size of what is averaged after each step.
        compute_s: Seconds for which a GPU would compute in each step.
        saves: Whether it offers checkpoints, and carries on from the newest.
    """
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    with training_run(steps=steps) as run:
        network = network_of(gradient_bytes)
        if saves:
            run.restore(lambda path: network.load_state_dict(torch.load(path, weights_only=True)))
        distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=_TIMEOUT_S))
        model = DistributedDataParallel(network, gradient_as_bucket_view=True)
        parameters = list(model.parameters())
        x = torch.randn(4, _WIDTH)

        def save(path: Path) -> None:
            torch.save(network.state_dict(), path)

        times = []
        run.ready()
        for _ in run.steps():
            began = time.perf_counter()
            time.sleep(compute_s)
            loss = model(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for parameter in parameters:
                    assert parameter.grad is not None
                    parameter.add_(parameter.grad, alpha=-0.01)
            times.append(time.perf_counter() - began)
            run.report(loss=float(loss), checkpoint=save if saves else None)
    # PyTorch 2.13 can hang where the model is what last holds its process group: freeing it waits, with the
    # interpreter's lock, for gloo's thread, which may still want that lock to let go of the last exchange.
    time.sleep(_LETS_GO_S)
    distributed.destroy_process_group()
    return {"step_s": times}


def main() -> None:
    """The command."""
    if namespace := os.environ.get(ENV_NAMESPACE):
        enter(namespace)
    order = json.loads(sys.argv[1])
    began, spent = time.time(), time.process_time()
    said = train(order["gradient_bytes"], order["compute_s"], order["steps"], order["saves"])
    if os.environ.get("RANK", "0") == "0":
        path = Path(order["marks"])
        said |= {"began": began, "ended": time.time(), "cpu_s": time.process_time() - spent}
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(said))
        temporary.replace(path)


if __name__ == "__main__":
    main()
