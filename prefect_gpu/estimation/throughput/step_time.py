"""How long one step takes: computing, which GPUs share, and synchronising, which they add.

    T = (C^γ + Y^γ)^(1/γ)
    C = k·t·(a + b/g)                              each GPU computes its part of a batch b, and a fixed part
    Y = t·(l·(m/2)^p [m > 1] + r·(n/2)^q [n > 1])  within nodes of m GPUs each, and over n nodes

g is the number of GPUs, b the batch relative to the usual one, k the time of the GPUs' kind relative to others. γ ≥ 1
says how far computing and synchronising overlap: 1 is not at all. The overlap is Pollux' (Qiao et al., OSDI 2021); the
powers are ours. All parameters are logarithms here, so all of them are positive, and a step is never faster than on
one GPU by more than the number of GPUs. In log g both C and Y are convex, so within nodes T falls to one best number
of GPUs and rises behind it, once there are two GPUs or more.
"""

from __future__ import annotations

import numpy as np

from prefect_gpu.estimation.throughput.setups import Columns

TIME, FIXED, LOCAL, LOCAL_POWER, REMOTE, REMOTE_POWER, OVERLAP = range(7)
SHAPE = slice(FIXED, OVERLAP + 1)  # what programs of any size have in common
KINDS = OVERLAP + 1  # from here on: the logarithm of k, one for each kind

_LARGEST = 30.0
_DELTA = 1e-6


def log_step_time(parameters: np.ndarray, columns: Columns) -> np.ndarray:
    """Logarithms of seconds of one step; shape (setups,)."""
    logs = np.clip(parameters, -_LARGEST, _LARGEST)
    each = np.ceil(columns.gpus / columns.nodes)
    powers = np.minimum(np.exp(logs), 8.0)
    overlap = 1.0 + min(np.exp(logs[OVERLAP] - 1.0), 15.0)
    computing = logs[KINDS + columns.kinds] + np.log(np.exp(logs[FIXED]) + columns.batch / columns.gpus)
    local = np.where(each > 1, np.exp(logs[LOCAL]) * (each / 2) ** powers[LOCAL_POWER], 0.0)
    remote = np.where(columns.nodes > 1, np.exp(logs[REMOTE]) * (columns.nodes / 2) ** powers[REMOTE_POWER], 0.0)
    synchronising = np.log(np.maximum(local + remote, 1e-12))
    return np.asarray(parameters[TIME] + np.logaddexp(overlap * computing, overlap * synchronising) / overlap)


def slopes(parameters: np.ndarray, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of step times, and their derivatives by the parameters; shapes (setups,), (setups, parameters)."""
    at = log_step_time(parameters, columns)
    derivatives = np.empty((len(at), len(parameters)))
    for index in range(len(parameters)):
        moved = parameters.copy()
        moved[index] += _DELTA
        derivatives[:, index] = (log_step_time(moved, columns) - at) / _DELTA
    return at, derivatives
