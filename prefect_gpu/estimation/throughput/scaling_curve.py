"""f_M(N) of a run that is submitted (F-scheduling, Seo, 2020, §4.1): its speed on any number of GPUs of a node.

The thesis takes f for granted (§3: it may be learned from earlier runs, or tried). Here it is learned from the history.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prefect_gpu.estimation.program.model import ProgramModel
from prefect_gpu.estimation.runs import STEP_S, Known
from prefect_gpu.estimation.scales import from_scale
from prefect_gpu.estimation.throughput import NO_PRIOR, Setup, Throughput, Tried
from prefect_gpu.estimation.throughput.speeds import bounded


@dataclass(frozen=True)
class Speed:
    """A run's speed on one number of devices.

    Attributes:
        gpus: Devices.
        steps_per_s: What the scheduler is told: where it was not measured, a lower quantile of what is likely.
        runs: Earlier runs of the program that have trained on so many; 0: it follows from the form of f_M.
    """

    gpus: int
    steps_per_s: float
    runs: int


_APART = 2  # nodes that stand for several


def speeds_on(model: ProgramModel, known: Known, max_gpus: int, *, apart: bool = False) -> tuple[Speed, ...]:
    """A run's speed on 1, 2, … ``max_gpus`` GPUs, with its parameters.

    For each number of GPUs on which runs of the program have ended, the program's model says what this run's steps
    would take there. Runs that were resized tell how much faster they were on one number than on another, whatever
    their parameters. The form of f_M is fitted to both; with a single number of GPUs known, the shape is the prior's
    (cautiously: about 0.86 of linear on twice, 0.63 on four times one GPU). A program that was measured to be no
    faster on more GPUs is not promised to be so beyond them.

    Args:
        apart: On several nodes. For the form, these are two; what was measured on one node and on several tells both.

    Returns:
        Nothing if no run of the program has told, or ``max_gpus`` is below 1.
    """
    ended: dict[int, int] = {}
    spread: dict[int, int] = {}  # of those, how many were on several nodes
    for run in model.runs:
        if STEP_S in run.measured and run.known.gpus >= 1:
            ended[int(run.known.gpus)] = ended.get(int(run.known.gpus), 0) + 1
            spread[int(run.known.gpus)] = spread.get(int(run.known.gpus), 0) + (run.nodes > 1 and bool(run.apart))
    if STEP_S not in model.models or not ended or max_gpus < 1:
        return ()
    at = {gpus: _rate(model, replace(known, gpus=gpus)) for gpus in sorted(ended)}
    tried = [Tried(_setup(gpus, 2 * spread[gpus] > ended[gpus]), rate, ended[gpus]) for gpus, rate in at.items()]
    told = {one.setup.gpus: ended[one.setup.gpus] for one in tried if apart == (one.setup.nodes > 1)}
    for run in model.runs:
        own = {(gpus, False): speed for gpus, speed in run.speeds.items()}
        own |= {(gpus, True): speed for gpus, speed in run.apart.items()}
        last = int(run.known.gpus), run.nodes > 1 and bool(run.apart)
        base = last if last in own else next((place for place in own if place[0] in at), None)
        if base is None or base[0] not in at:
            continue
        for (gpus, wide), speed in own.items():
            if (gpus, wide) != base:
                tried.append(Tried(_setup(gpus, wide), at[base[0]] * speed / own[base]))
                if wide == apart:
                    told[gpus] = told.get(gpus, 0) + 1
    fitted = Throughput(tried, NO_PRIOR)
    measured = {one.setup.gpus: one.steps_per_s for one in fitted.tried if apart == (one.setup.nodes > 1)}
    curve = bounded(fitted.as_tuple(max_gpus, _APART if apart else 1), measured)
    return tuple(Speed(gpus, rate, told.get(gpus, 0)) for gpus, rate in enumerate(curve, 1))


def throughput_of(model: ProgramModel, known: Known, max_gpus: int, *, apart: bool = False) -> tuple[float, ...]:
    """:func:`speeds_on` as :class:`.Estimate` has it: steps per second on 1, 2, … GPUs."""
    return tuple(speed.steps_per_s for speed in speeds_on(model, known, max_gpus, apart=apart))


def _setup(gpus: int, apart: bool) -> Setup:
    return Setup(gpus, min(gpus, _APART) if apart else 1)


def _rate(model: ProgramModel, known: Known) -> float:
    row, facts, _ = model.row(known)
    step = model.predict(row, facts)[STEP_S]
    return 1.0 / max(step.base + from_scale(STEP_S, step.mean), 1e-9)
