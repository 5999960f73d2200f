"""Flows that a person would write for a GPU, each of them small. PyTorch is imported when they run."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from prefect import flow

from prefect_gpu import training_run

_SIDE = 32
_LATER_S = 0.05  # a step takes at least so long, so that there is time to disturb it


class _Marks:
    """Lines of JSON in a file, with Unix seconds."""

    def __init__(self, file: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: str, **more: object) -> None:
        line = {"what": what, "at": time.time(), "pid": os.getpid()} | more
        os.write(self._file, (json.dumps(line) + "\n").encode())


def _network(torch: Any, device: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Conv2d(32, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(32 * (_SIDE // 2) ** 2, 10),
    ).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def _device(torch: Any) -> Any:
    """The GPU of this run, with algorithms that give the same sums each time."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@flow(retries=1)
def fit(steps: int, marks: str, batch: int = 64, step_s: float = _LATER_S) -> str:
    """A CNN with dropout, batch normalisation and Adam. Returns the SHA-256 of all that it has trained."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    device, said = _device(torch), _Marks(marks)
    with training_run(steps=steps) as run:
        model, optimiser = _network(torch, device)
        kept = run.restore()
        if kept is not None:
            state = torch.load(kept, map_location="cpu", weights_only=True)
            model.load_state_dict(state["model"])
            optimiser.load_state_dict(state["optimiser"])
        said.note("begins", restored=kept is not None)

        def save(path: Path) -> None:
            torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, path)

        for step in run.steps():
            began = time.time()
            torch.set_num_threads(1)  # the pool may have given it another core, and more threads make other sums
            torch.manual_seed(step)  # what dropout draws
            chance = torch.Generator().manual_seed(step)
            inputs = torch.randn(batch, 3, _SIDE, _SIDE, generator=chance).to(device)
            labels = torch.randint(10, (batch,), generator=chance).to(device)
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            value = loss.item()
            said.note("step", at=began, step=step, loss=value)
            time.sleep(max(0.0, began + step_s - time.time()))
            run.report(loss=value, checkpoint=save)
        said.note("trained")
    with run.saving():
        digest = hashlib.sha256()
        for name, value in sorted(model.state_dict().items()):
            digest.update(name.encode() + value.cpu().numpy().tobytes())
        said.note("result", digest=digest.hexdigest())
    return digest.hexdigest()


@flow(retries=1)
def hungry(mebibytes: int, marks: str, framework: str = "torch") -> None:
    """Wants so much memory of its device at once, in the framework named."""
    said = _Marks(marks)
    with training_run(steps=3) as run:
        for step in run.steps():
            if step == 1:
                try:
                    kept = _take(framework, mebibytes)
                except Exception as error:
                    said.note("refused", framework=framework, error=f"{type(error).__name__}: {error}"[:300])
                    raise
                said.note("got", framework=framework, mebibytes=mebibytes)
                time.sleep(1.0)
                del kept
            time.sleep(0.3)
            run.report(loss=1.0 / (step + 1))


def _take(framework: str, mebibytes: int) -> Any:
    if framework == "cuda":  # past every framework's allocator: only the driver can refuse it
        import ctypes

        library = ctypes.CDLL("libcuda.so.1")
        context, address = ctypes.c_void_p(), ctypes.c_uint64()
        library.cuInit(0)
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        library.cuCtxSetCurrent(context)
        code = library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mebibytes << 20))
        if code:
            raise RuntimeError(f"cuMemAlloc answered {code}: out of memory" if code == 2 else f"cuMemAlloc: {code}")
        return address
    if framework == "jax":
        import jax.numpy as jnp

        return jnp.ones((mebibytes, 1 << 18), dtype="float32").block_until_ready()
    if framework == "cupy":
        import cupy

        return cupy.ones((mebibytes, 1 << 18), dtype="float32")
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.ones((mebibytes, 1 << 18), dtype=torch.float32, device=device)


@flow
def loads(steps: int, marks: str, processes: int = 4) -> None:
    """Batches come from processes of a DataLoader, into pinned memory."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    said = _Marks(marks)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = TensorDataset(torch.randn(64 * steps, 256), torch.randn(64 * steps, 1))
    loader = DataLoader(rows, 64, num_workers=processes, pin_memory=device.type == "cuda", persistent_workers=True)
    model = torch.nn.Linear(256, 1).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    with training_run(steps=steps) as run:
        for _, (inputs, labels) in zip(run.steps(), loader, strict=False):
            loss = (model(inputs.to(device, non_blocking=True)) - labels.to(device)).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            run.report(loss=loss.item())
    said.note("result")
