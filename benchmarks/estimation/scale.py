"""A history of 100,000 runs: how long learning takes, how much memory, and how long one estimate.

Runs in a process of its own, so that its peak memory is its own: ``python -m benchmarks.estimation.scale ROWS``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.runs import Known
from prefect_gpu.runtime.learning.learner import MOST_OF_EACH_FLOW, MOST_ROWS, Learner
from prefect_gpu.storage.finished import finished_run
from prefect_gpu.storage.history import History
from prefect_gpu.storage.row import HistoryRow
from prefect_gpu.storage.schema import runs_table

PROGRAMS = 40
ASKED = 500


def measure(rows: int) -> dict[str, float]:
    """The figures, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.estimation.scale", str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def generate(rows: int) -> list[HistoryRow]:
    """Rows of forty programs with ten parameters each; costs are products of powers of some of them, with noise."""
    generator = np.random.default_rng(0)
    powers = generator.uniform(0.2, 1.2, (PROGRAMS, 4))
    found = []
    for number in range(rows):
        program = int(generator.integers(PROGRAMS))
        parameters: dict[str, Any] = {
            "n": int(math.exp(generator.uniform(8, 13))),
            "batch_size": int(2 ** generator.integers(3, 9)),
            "epochs": int(generator.integers(1, 40)),
            "model": {"width": int(2 ** generator.integers(4, 10)), "layers": int(generator.integers(1, 6))},
            "optimizer": str(generator.choice(["adam", "sgd", "lamb"])),
            f"own_{program % 7}": float(generator.uniform()),
            "lr": float(10 ** generator.uniform(-5, -1)),
            "seed": int(generator.integers(10**9)),
            "tag": f"run-{number}",
            "version": 3,
        }
        steps = parameters["epochs"] * math.ceil(parameters["n"] / parameters["batch_size"])
        sizes = np.array([parameters["batch_size"], parameters["model"]["width"], parameters["model"]["layers"], 2.0])
        step_s = 1e-5 * float(np.prod(sizes ** powers[program])) * math.exp(generator.normal(0, 0.1))
        found.append(
            HistoryRow(
                f"run-{number}",
                f"program-{program}",
                "completed" if generator.uniform() < 0.9 else "failed",
                ended_at=float(number),
                parameters=parameters,
                features={"steps": steps, "batch_size": parameters["batch_size"], "gpus": 1, "tags": []},
                requested_gpus=1,
                devices=("GPU-1",),
                device_kind="NVIDIA A100",
                prepared_s=5.0 * math.exp(generator.normal(0, 0.2)),
                trained_s=steps * step_s,
                saved_s=1.0 * math.exp(generator.normal(0, 0.2)),
                steps_done=steps,
                device_util_mean=float(generator.uniform(0.2, 1.0)),
                device_util_std=0.1,
                device_memory_peak_bytes=int(1e9 + 1e6 * sizes[0] * math.sqrt(sizes[1])),
                cpu_mean=float(generator.uniform(1, 8)),
                net_mean_bytes_per_s=float(generator.uniform(1e5, 1e7)),
            )
        )
    return found


async def _learn(history: History) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    learned: asyncio.Future[Any] = loop.create_future()

    def read() -> list[Any]:
        return [
            run
            for run in map(finished_run, history.newest_of_each_flow(MOST_OF_EACH_FLOW, limit=MOST_ROWS))
            if run is not None
        ]

    async def done(estimator: Estimator) -> None:
        learned.set_result(estimator)

    learner = Learner(read, done, logging.getLogger("benchmark"))
    task = asyncio.create_task(learner.run())
    began, late = time.perf_counter(), []
    while not learned.done():  # an event loop that decides every 10 ms, beside the learning
        before = time.perf_counter()
        await asyncio.sleep(0.01)
        late.append(time.perf_counter() - before - 0.01)
    refit_s = time.perf_counter() - began
    task.cancel()
    estimator = learned.result()
    asked = []
    for row in generate(ASKED):
        known = Known(row.flow_name, row.parameters, device_kind=row.device_kind)
        before = time.perf_counter()
        estimator.estimate(known)
        asked.append(time.perf_counter() - before)
    return {
        "rows": history.count(),
        "refit_s": refit_s,
        "estimate_median_ms": 1e3 * float(np.median(asked)),
        "estimate_p99_ms": 1e3 * float(np.quantile(asked, 0.99)),
        "loop_late_median_ms": 1e3 * float(np.median(late)),
        "loop_late_p99_ms": 1e3 * float(np.quantile(late, 0.99)),
        "loop_late_most_ms": 1e3 * max(late),
    }


def main() -> None:
    """Measure in this process."""
    rows = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, History(f"sqlite:///{Path(folder) / 'history.db'}") as history:
        chunk = 5_000
        made = generate(rows)
        with history._writer.begin() as connection:
            for start in range(0, rows, chunk):
                connection.execute(runs_table.insert(), [row.as_columns() for row in made[start : start + chunk]])
        del made
        before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found = asyncio.run(_learn(history))
    found["before_bytes"] = before_bytes  # what making the history took; the peak of learning may lie below it
    found["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(found))


if __name__ == "__main__":
    main()
