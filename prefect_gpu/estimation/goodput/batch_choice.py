"""Which batch makes a training fastest on which devices: Pollux' goodput (Qiao et al., 2021, §3), of one run.

goodput(devices, batch) = batches per second(devices, batch) × steps with the smallest batch that one is worth(batch).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from prefect_gpu.estimation.goodput.noise import gain
from prefect_gpu.estimation.goodput.step_time import StepTime
from prefect_gpu.estimation.throughput.speeds import LEAST_STEPS, MOST_DEVICES

NOISE = "noise"
"""Beside what a run has measured of its speeds is kept, under this: [its gradient's noise scale, at which step]."""
_CANDIDATES = 17  # sizes from the smallest to the largest: with 64 to 1,024 samples, each is a fifth larger
_APART = 2  # nodes that stand for several
_MEASURED = re.compile(r"(\d{1,5})(?:/(\d{1,5}))?@(\d{1,15})")  # devices, nodes, samples: see `place_of`


@dataclass
class BatchChoice:
    """What one run has measured, and what follows for devices and batches that it has not tried.

    Args:
        least, most: Samples of the smallest and of the largest batch, of all devices together.
        steps: How long a step takes.
        noise_scale: The gradient's, in samples; None: unknown, and then no batch is larger than it must be.
    """

    least: int
    most: int
    steps: StepTime = field(default_factory=StepTime)
    noise_scale: float | None = None

    @classmethod
    def of(cls, sizes: tuple[int, int], kept: object) -> BatchChoice:
        """From what a run keeps of its speeds; it may come from a file, and so be anything."""
        found = cls(*sizes)
        for name, total in kept.items() if isinstance(kept, Mapping) else ():
            if not (isinstance(name, str) and _is_pair(total)):
                continue
            place = _MEASURED.fullmatch(name)
            if name == NOISE and total[0] >= 0:
                found.noise_scale = float(total[0])
            elif place is not None and total[0] >= LEAST_STEPS and total[1] > 0:
                devices, nodes, batch = (int(one or 1) for one in place.groups())
                if 1 <= devices <= min(MOST_DEVICES, batch):
                    sync_s = 0.0 if devices == 1 else None
                    found.steps.report(nodes, devices, batch // devices, total[1] / total[0], sync_s)
        return found

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self.steps.known

    def best(self, devices: int, nodes: int) -> int:
        """The batch for so many devices on so many nodes; a multiple of the devices.

        The smallest that can be divided among them, as long as nothing was measured.
        """
        locals_ = self._locals(devices)
        if not len(locals_):
            return -(-self.least // devices) * devices
        if not self.known:
            return int(locals_[0]) * devices
        return int(locals_[self._goodput(nodes, devices, locals_).argmax()]) * devices

    def speeds(self, most: int, *, apart: bool = False, here: tuple[int, int, int] | None = None) -> tuple[float, ...]:
        """Progress per second on 1, 2, … devices, each with its best batch; 0 where none can be divided among them.

        Args:
            apart: On several nodes, and not on one.
            here: The devices that the run has, their nodes, and its batch: only a change of the devices changes that.
        """
        each = [self._locals(devices) for devices in range(1, most + 1)]
        devices = np.repeat(np.arange(1, most + 1), [len(one) for one in each])
        found = np.zeros(most)
        goodput = self._goodput(np.minimum(devices, _APART if apart else 1), devices, np.concatenate(each))
        np.maximum.at(found, devices - 1, goodput)
        if here is not None and here[0] <= most and (here[1] > 1) == (apart and here[0] > 1):
            [found[here[0] - 1]] = self._goodput(here[1], here[0], np.array([here[2] / here[0]]))
        return tuple(found.tolist())

    def _goodput(self, nodes: int | np.ndarray, devices: int | np.ndarray, locals_: np.ndarray) -> np.ndarray:
        step_s, _ = self.steps.predict(nodes, devices, locals_)
        return np.asarray(self._worth(locals_ * devices) / step_s)

    def _worth(self, batch: np.ndarray) -> np.ndarray:
        if self.noise_scale is None:
            return np.ones(len(batch))
        return gain(np.array(1.0), np.array(self.noise_scale / self.least), batch / self.least)

    def _locals(self, devices: int) -> np.ndarray:
        """Samples of each device that may be tried, ascending."""
        least, most = -(-self.least // devices), self.most // devices
        if least > most:
            return np.array([], dtype=int)
        if self.noise_scale is None:
            return np.array([least])
        return np.unique(np.ceil(np.geomspace(least, most, _CANDIDATES) - 1e-9).astype(int))


def _is_pair(total: object) -> bool:
    return (
        isinstance(total, Sequence)
        and len(total) == 2
        and all(isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) for one in total)
    )
