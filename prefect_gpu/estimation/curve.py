"""f_M(R) of a run that is submitted (F-scheduling): its speed on other numbers of GPUs, from what was tried."""

from __future__ import annotations

from dataclasses import replace

from prefect_gpu.estimation.program import ProgramModel
from prefect_gpu.estimation.runs import STEP_S, Known
from prefect_gpu.estimation.scales import from_scale
from prefect_gpu.estimation.throughput import NO_PRIOR, Setup, Throughput, Tried


def throughput_of(model: ProgramModel, known: Known, max_gpus: int) -> tuple[float, ...]:
    """Steps per second on 1, 2, … ``max_gpus`` GPUs, with the parameters of one run.

    For each number of GPUs that runs of the program had, the program's model says what this run's steps would take
    there; the form of f_M is fitted to that. Empty if nothing was measured.
    """
    counts = sorted({int(run.known.gpus) for run in model.runs if STEP_S in run.measured and run.known.gpus >= 1})
    if STEP_S not in model.models or not counts:
        return ()
    tried = []
    for gpus in counts:
        row, facts, _ = model.row(replace(known, gpus=gpus))
        step = model.predict(row, facts)[STEP_S]
        tried.append(Tried(Setup(gpus), 1.0 / max(step.base + from_scale(STEP_S, step.mean), 1e-9)))
    return Throughput(tried, NO_PRIOR).as_tuple(max_gpus)
