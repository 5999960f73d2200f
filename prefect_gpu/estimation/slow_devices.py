"""Which devices are persistently slower than others of their kind, by the steps of the runs that were on them.

A run's step is compared with those of the same program, with the same parameters, on other devices of the same kind.
What is left is noise, unless the device is slow. A device is called slow if its runs are slower by a part that matters,
and if a t-test says that chance makes it look so less than once in a thousand times for all devices together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import NamedTuple

from scipy import stats

LEAST_RUNS = 6
"""Runs on a device before anything is said of it."""

SLOWER = 1.10
"""The least factor that matters."""

CHANCE = 0.001
"""How often chance may call some device slow."""

_NEWEST = 40  # runs on each device: a device that was mended is soon believed
_LEAST_NOISE = 0.01  # of a step's logarithm: fewer differences than a clock can show would make anything significant


class StepSample(NamedTuple):
    """One run on one device.

    Attributes:
        device: Its id.
        alike: What makes runs comparable: program, parameters, kind of the device.
        step_s: Mean seconds of a step.
    """

    device: str
    alike: str
    step_s: float


class SlowDevice(NamedTuple):
    """A device that is slower than its like.

    Attributes:
        factor: Its step over that of others.
        runs: Which have shown it.
        p: How often chance would show as much, were it like the others.
    """

    device: str
    factor: float
    runs: int
    p: float


def slow_devices(samples: Iterable[StepSample]) -> list[SlowDevice]:
    """The devices that are slow, the slowest first.

    Args:
        samples: The oldest first. Runs beside others on their device are none: these slow each other down.

    Example:
        >>> runs = [StepSample(d, "p", 0.1 * (1.3 if d == "a" else 1.0) + 0.001 * n) for n in range(9) for d in "abc"]
        >>> [(one.device, round(one.factor, 1)) for one in slow_devices(runs)]
        [('a', 1.3)]
    """
    by_device: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for one in samples:
        if one.step_s > 0 and math.isfinite(one.step_s):
            by_device[one.device].append((one.alike, math.log(one.step_s)))
    newest = {device: runs[-_NEWEST:] for device, runs in by_device.items()}
    found = []
    for device, runs in newest.items():
        away = _away(device, runs, newest)
        if len(away) < LEAST_RUNS:
            continue
        p = _p_value(away)
        factor = math.exp(fmean(away))
        if factor >= SLOWER and p * len(newest) <= CHANCE:
            found.append(SlowDevice(device, factor, len(away), p))
    return sorted(found, key=lambda one: -one.factor)


def _away(device: str, runs: Sequence[tuple[str, float]], all_runs: dict[str, list[tuple[str, float]]]) -> list[float]:
    """How far each run's step is from that of like runs elsewhere, as a logarithm.

    Each other device counts once, and the middle one of them: one that is slow, too, does not hide this one.
    """
    elsewhere: dict[str, list[float]] = {}
    for alike in {alike for alike, _ in runs}:
        means = [
            fmean(steps)
            for other, others in all_runs.items()
            if other != device and (steps := [step for one, step in others if one == alike])
        ]
        if means:
            elsewhere[alike] = means
    return [step - median(elsewhere[alike]) for alike, step in runs if alike in elsewhere]


def _p_value(away: Sequence[float]) -> float:
    spread = max(_LEAST_NOISE, math.sqrt(sum((one - fmean(away)) ** 2 for one in away) / (len(away) - 1)))
    return float(stats.t.sf(fmean(away) / (spread / math.sqrt(len(away))), len(away) - 1))
