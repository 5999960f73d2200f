"""What a part of a device is worth to jobs that ask for parts: the duals of a cutting-stock problem.

The devices are to be cut so that as much as possible is used, of no size more than is asked for (Gilmore and Gomory,
1961: the patterns are found one by one, as the best knapsack at the duals so far). A part that only plentiful room is
left for has no value, and one that could still take a size of which more is asked than fits has all of its size.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

WHOLE_MILLI = 1000
STEP_MILLI = 10
"""Sizes are rounded up to it."""
_STEPS = WHOLE_MILLI // STEP_MILLI
_MOST_PATTERNS = 500
_ROUNDING = 1e-6


def device_values(demand: Mapping[int, float], devices: float) -> list[float]:
    """The value of so many :data:`STEP_MILLI` that are left on a device, in thousandths that are used there in the end.

    Args:
        demand: How many devices or parts of each size, in thousandths, are expected.
        devices: How many there are.

    Returns:
        From nothing left to a whole device, rising.
    """
    sizes = sorted(size for size, count in demand.items() if size > 0 and count > 0)
    if not sizes or devices <= 0:
        return [0.0] * (_STEPS + 1)
    patterns = [[WHOLE_MILLI // size if size == this else 0 for size in sizes] for this in sizes]
    for _ in range(_MOST_PATTERNS):
        price, values = _duals(sizes, [demand[size] for size in sizes], patterns, devices)
        best, pattern = _knapsack(sizes, values)
        if best[-1] <= price + _ROUNDING:
            break
        patterns.append(pattern)
    return best


def _duals(
    sizes: list[int], demand: list[float], patterns: list[list[int]], devices: float
) -> tuple[float, list[float]]:
    """Of a device, and of room for each size, where these patterns are cut so that the most is used."""
    from scipy.optimize import linprog  # a third of a second, which only those wait for who expect parts

    cut, used = len(patterns), len(sizes)
    room = np.hstack([-np.array(patterns, dtype=float).T, np.eye(used)])
    whole = np.hstack([np.ones(cut), np.zeros(used)])
    found = linprog(
        np.hstack([np.zeros(cut), -np.array(sizes, dtype=float)]),
        A_ub=np.vstack([whole, room]),
        b_ub=np.hstack([devices, np.zeros(used)]),
        bounds=[(0, None)] * cut + [(0, count) for count in demand],
        method="highs",
    )
    price, *values = (-found.ineqlin.marginals).tolist()
    # A dual may exceed the size where none is cut; the size is one, too.
    return price, [min(value, size) for value, size in zip(values, sizes, strict=True)]


def _knapsack(sizes: list[int], values: list[float]) -> tuple[list[float], list[int]]:
    """The largest value by room, and what fills a whole device to it."""
    weights = [-(-size // STEP_MILLI) for size in sizes]
    best, last = [0.0], [-1]
    for room in range(1, _STEPS + 1):
        value, kind = best[room - 1], -1
        for number, weight in enumerate(weights):
            if weight <= room and best[room - weight] + values[number] > value + _ROUNDING:
                value, kind = best[room - weight] + values[number], number
        best.append(value)
        last.append(kind)
    pattern, room = [0] * len(sizes), _STEPS
    while room > 0:
        if last[room] < 0:
            room -= 1
        else:
            pattern[last[room]] += 1
            room -= weights[last[room]]
    return best, pattern
