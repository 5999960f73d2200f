"""A model whose tables fit on a page, in the form of Pollux' traces.

A step of b samples on each of n GPUs takes 0.1 + 0.01 · b + 0.02 · (n − 1) seconds, of which 0.02 · (n − 1) is waiting.
An epoch is 100 steps of the initial batch of 10, or as many as asked for. The noise is such that a batch of twice the
size brings 1.5 times as much.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

EPOCHS, STEPS, INITIAL = 3, 100, 10


def step_s(gpus: int, local: int) -> float:
    """Seconds of a step."""
    return 0.1 + 0.01 * local + 0.02 * (gpus - 1)


def write_tables(folder: Path, name: str = "tiny", steps: int = STEPS) -> Path:
    """Write the tables of one model; returns the folder of all models."""
    model = folder / name
    model.mkdir(parents=True)
    rows = [
        f"{placement},{local},{step_s(sum(map(int, placement)), local)},{0.02 * (sum(map(int, placement)) - 1)}"
        for length in (1, 2, 3, 4)
        for placement in map("".join, product("1234", repeat=length))
        if placement == min(placement[at:] + placement[:at] for at in range(length))
        for local in (5, 10, 20)
    ]
    _write(model / "placements.csv", "placement,local_bsz,step_time,sync_time", rows)
    rows = [
        f"{nodes},{gpus},{local},{step_s(gpus, local)},{0.02 * (gpus - 1)}"
        for nodes in (6, 8, 16)
        for gpus in (nodes, 2 * nodes, 4 * nodes)
        for local in (5, 10, 20)
    ]
    _write(model / "scalability.csv", "num_nodes,num_replicas,local_bsz,step_time,sync_time", rows)
    for batch in (10, 20, 40, 80):
        # progress, steps, metric, sqr, var: (2 + 1) / (2 / 2 + 1) = 1.5
        rows = [f"{steps * epoch},{steps * epoch * INITIAL // batch},0,1,2" for epoch in range(1, EPOCHS + 1)]
        _write(model / f"validation-{batch}.csv", "progress,iteration,metric,grad_sqr,grad_var", rows)
    return folder


def write_workload(path: Path, *rows: str) -> Path:
    """name, time, application, GPUs and batch size of each job."""
    return _write(path, "name,time,application,num_replicas,batch_size", rows)


def _write(path: Path, header: str, rows: list[str] | tuple[str, ...]) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path
