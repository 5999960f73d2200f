"""Finished runs of programs that do not exist, whose costs are known exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from prefect_gpu.estimation.runs import (
    CPU_CORES,
    LAUNCHING_S,
    MEMORY_BYTES,
    SAVING_S,
    STEP_S,
    TRAINING_S,
    UTILISATION,
    FinishedRun,
    Known,
)


def made_run(
    at: int,
    parameters: Mapping[str, Any],
    *,
    program: str = "train",
    factor: float = 1.0,
    extra: Mapping[str, Any] | None = None,
) -> FinishedRun:
    """A completed run with ``n``, ``batch_size``, ``epochs`` and ``width``; a ``factor`` on the time of its steps."""
    n, batch, epochs, width = (parameters[name] for name in ("n", "batch_size", "epochs", "width"))
    steps = epochs * math.ceil(n / batch)
    step_s = factor * (1e-3 * batch**0.8 * width**0.6 + 5e-3)
    measured = {
        LAUNCHING_S: 1.0 + n * 1e-5,
        STEP_S: step_s,
        TRAINING_S: step_s * steps,
        SAVING_S: 0.5,
        MEMORY_BYTES: 2e8 + 1e5 * batch * width**0.8,
        UTILISATION: min(1.0, 0.2 + 0.08 * math.log(batch)),
        CPU_CORES: 1.0,
    }
    declared = {"steps": steps, "batch_size": batch}
    known = Known(program, {**parameters, **(extra or {})}, declared)
    return FinishedRun(f"{program}-{at}", known, measured, ended_at=float(at), steps=steps)


def runs_of(
    count: int, program: str = "train", *, seed: int = 0, noise: float = 0.05, speed: float = 1.0
) -> list[FinishedRun]:
    """Completed runs with random sizes; the noise is the standard deviation of the logarithm of a step's time."""
    chance = np.random.default_rng(seed)
    made = []
    for at in range(count):
        parameters = {
            "n": int(math.exp(chance.uniform(10, 12))),
            "batch_size": int(2 ** chance.integers(3, 9)),
            "epochs": int(chance.integers(1, 30)),
            "width": int(2 ** chance.integers(3, 9)),
        }
        made.append(made_run(at, parameters, program=program, factor=speed * math.exp(noise * chance.normal())))
    return made


def asked(run: FinishedRun, **changed: Any) -> Known:
    """What is known before a run like this one starts, with some parameters changed or added."""
    return replace(run.known, parameters={**run.known.parameters, **changed}, declared={})


def measured_otherwise(run: FinishedRun, **changed: float) -> FinishedRun:
    """The run as if some targets had been measured otherwise."""
    return replace(run, measured={**run.measured, **changed})
