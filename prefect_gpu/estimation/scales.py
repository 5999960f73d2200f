"""On which scale each target is learned, and back. Times and sizes as logarithms: they are products, never below 0."""

from __future__ import annotations

import math

from prefect_gpu.estimation import runs as r

_LEAST = {
    r.LAUNCHING_S: 1e-3,
    r.STEP_S: 1e-9,
    r.TRAINING_S: 1e-3,
    r.SAVING_S: 1e-3,
    r.MEMORY_BYTES: 1e3,
    r.NETWORK_BYTES_PER_S: 1.0,
}  # logarithms are taken of these targets, of this value at least
_MOST = {r.UTILISATION: 1.0, r.UTILISATION_STD: 1.0, r.CPU_CORES: 1e6}  # and 0 at least
_HUGE = math.log(1e18)


def to_scale(target: str, value: float) -> float:
    """A measured value on the scale that is learned."""
    least = _LEAST.get(target)
    return min(max(value, 0.0), _MOST[target]) if least is None else math.log(max(value, least))


def from_scale(target: str, value: float) -> float:
    """The value itself again: positive and finite, or within what the target can be."""
    if target in _LEAST:
        return math.exp(min(max(value, math.log(_LEAST[target])), _HUGE))
    return min(max(value, 0.0), _MOST[target])


def is_logarithmic(target: str) -> bool:
    """Whether a distance on the scale is a factor."""
    return target in _LEAST
