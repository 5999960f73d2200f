"""Is it worth trying a program for a few steps on resources that it has not been on, and on which?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from prefect_gpu.estimation.throughput.function import Throughput
from prefect_gpu.estimation.throughput.setups import Setup

_KNOWN_STD = 0.05  # who knows a rate this well learns nothing from a trial


@dataclass(frozen=True)
class Advice:
    """What to try next.

    Attributes:
        setup: Where; None: a trial is worth it nowhere.
        worth_s: Seconds of training that knowing better saves on average, the trial's own time taken off.
        reason: For people.
    """

    setup: Setup | None
    worth_s: float
    reason: str


def worth_a_trial(
    throughput: Throughput,
    current: Setup,
    candidates: Sequence[Setup],
    *,
    steps_left: float,
    trial_s: float,
    device_memory_bytes: float | None = None,
) -> Advice:
    """Whether a trial pays, and where it pays most.

    With a trial the run stays where it is if the candidate turns out slower; without one it goes to the candidate
    if that is faster on average. What the trial is worth is the difference between the two, in expected seconds:
    E[max(0, now − there)] − max(0, E[now − there]), with the time there log-normal.

    Args:
        throughput: What is known of the program.
        current: Where it runs, or would run without a trial.
        candidates: Where it could be tried.
        steps_left: Steps that are still to do.
        trial_s: Seconds that a trial costs: to restart there, a few steps, and to come back.
        device_memory_bytes: Memory of each GPU; candidates that do not hold the program are left out.

    Raises:
        ValueError: ``steps_left`` or ``trial_s`` is negative.
    """
    if not steps_left >= 0:
        raise ValueError(f"steps_left is {steps_left}: give the steps still to do, at least 0")
    if not trial_s >= 0:
        raise ValueError(f"trial_s is {trial_s}: give the seconds that a trial takes, at least 0")
    open_ones = [s for s in candidates if s != current and throughput.fits(s, device_memory_bytes)]
    best = Advice(None, 0.0, "no other resources could be tried")
    if not open_ones:
        return best
    rates, stds = throughput.log_rates([current, *open_ones])
    now_s = steps_left * math.exp(min(-float(rates[0]), 300.0))
    best = Advice(None, 0.0, f"what it could gain is less than the {trial_s:.0f} s of a trial")
    for setup, rate, std in zip(open_ones, rates[1:].tolist(), stds[1:].tolist(), strict=True):
        if std <= _KNOWN_STD:
            continue
        worth = _knowing(now_s, steps_left * math.exp(min(-rate, 300.0)), std) - trial_s
        if worth > best.worth_s:
            best = Advice(setup, worth, f"its speed on {setup.gpus} GPUs is known to a factor of {math.exp(std):.2f}")
    return best


def _knowing(now_s: float, there_s: float, std: float) -> float:
    """What knowing the time there is worth; ``there_s`` is its median, ``std`` that of its logarithm."""
    if not (now_s > 0 and there_s > 0):
        return 0.0
    mean_s = there_s * math.exp(0.5 * std * std)
    far = math.log(now_s / there_s) / std
    normal = NormalDist()
    return now_s * normal.cdf(far) - mean_s * normal.cdf(far - std) - max(0.0, now_s - mean_s)
