"""What jobs are expected to come for each kind of device, and what a second on one is worth to them.

The devices of a kind are a queue with several servers. The programs are spread over the kinds so that as few jobs as
possible are in the system on average, which is, by Little's law, the shortest mean completion time. There, a device of
a kind that many gain from has a price: so many seconds do others wait for each second that it is in use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from prefect_gpu.scheduling.model.jobs import Job

ENOUGH = 10
"""Jobs before which nothing is expected."""

_FADES = 0.98  # what a job counts after the next one has come
_MOST_PROGRAMS = 64
_ROUNDS = 60
_FULL = 0.97  # use of the devices from which on there is no steady state, and the formula says nothing

MOST = 3.0
"""Most that others wait for a second, in seconds. Where there is more work than devices, those count who wait already,
and the plan has them. Found better than no bound on the workloads of ``benchmarks.kinds``."""

Factors = tuple[tuple[str, float], ...]


class Demand:
    """Counts the work that comes, by program, in seconds of devices; the newest jobs count most."""

    def __init__(self) -> None:
        self._work: dict[tuple[str, Factors], float] = {}
        self._elapsed_s = 0.0
        self._last_at: float | None = None
        self._seen = 0
        self._made: dict[tuple[int, tuple[tuple[str, int], ...]], dict[str, float]] = {}

    def submitted(self, job: Job, now: float) -> None:
        """A job was seen for the first time."""
        estimate = job.estimate
        if not estimate.by_kind or not estimate.service_s or not job.request.total_gpus:
            return
        if self._last_at is not None:
            self._elapsed_s = self._elapsed_s * _FADES + max(0.0, now - self._last_at)
        self._last_at = now
        self._seen += 1
        self._work = {key: work * _FADES for key, work in self._work.items()}
        factors = tuple((kind, round(factor, 3)) for kind, factor in estimate.by_kind)
        key = (job.request.kind, factors)
        if key not in self._work and len(self._work) >= _MOST_PROGRAMS:
            del self._work[min(self._work, key=lambda one: (self._work[one], one))]
        self._work[key] = self._work.get(key, 0.0) + estimate.service_s * job.request.total_gpus

    def prices(self, devices: Mapping[str, int]) -> dict[str, float]:
        """Seconds that others wait for each second on a device, by kind; 0 before enough is known.

        Args:
            devices: How many there are of each kind.
        """
        if self._seen < ENOUGH or self._elapsed_s <= 0.0:
            return dict.fromkeys(devices, 0.0)
        key = (self._seen, tuple(sorted(devices.items())))
        if key not in self._made:
            self._made = {key: self._prices(devices)}
        return self._made[key]

    def _prices(self, devices: Mapping[str, int]) -> dict[str, float]:
        kinds = sorted(devices)
        servers = np.array([devices[kind] for kind in kinds], dtype=float)
        rates = np.array(list(self._work.values())) / self._elapsed_s
        takes = np.array([[dict(factors).get(kind, math.inf) for kind in kinds] for _, factors in self._work])
        possible = np.isfinite(takes).any(axis=1)
        rates, takes = rates[possible], takes[possible]
        part = np.zeros_like(takes)
        price = np.zeros(len(kinds))
        for turn in range(_ROUNDS):  # Frank and Wolfe's method: a step towards what is best at the prices of now
            best = np.argmin(np.where(np.isfinite(takes), takes, 1e30) * (1.0 + price), axis=1)
            step = 2.0 / (turn + 2.0)
            part *= 1.0 - step
            part[np.arange(len(best)), best] += step
            load = (rates[:, None] * part * np.where(np.isfinite(takes), takes, 0.0)).sum(axis=0)
            price = _waits_for_each(load, servers)
        return dict(zip(kinds, price.tolist(), strict=True))


def _waits_for_each(load: np.ndarray, servers: np.ndarray) -> np.ndarray:
    """By how many the jobs that wait grow with each device more that is in use: the slope of Sakasegawa's formula."""
    power = np.sqrt(2.0 * (servers + 1.0))
    use = np.minimum(load / servers, _FULL)
    slope = use ** (power - 1.0) * (power * (1.0 - use) + use) / (1.0 - use) ** 2 / servers
    return np.minimum(slope, MOST)
