"""The world of FGD's simulator: pods arrive one by one, are placed or lost, and never leave.

A pod fits on a node that has the cores and the memory, a model that it accepts, and as many devices as it asks for with
as much left on each. Where time passes nothing, a policy is judged by how much is allocated when so much was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from prefect_gpu.papers.fgd.tables import MOST_DEVICES, WHOLE_MILLI, Machine, Shape
from prefect_gpu.simulation.results import Results

Whole = npt.NDArray[np.int64]
Truth = npt.NDArray[np.bool_]
_STEPS = 100  # parts of all devices by which figures are given


class Cluster:
    """What is left on each node. Where nodes are equal, the first is to be taken.

    Args:
        machines: In the order in which equal ones are taken.

    Attributes:
        cpu: Thousandths of cores that are left, by node.
        memory: MiB that are left, by node.
        milli: Thousandths that are left, by node and device; 0 where there is no device.
        changes: The nodes that were given pods, one by one.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = tuple(machines)
        self.cpu: Whole = np.array([one.cpu_milli for one in machines], dtype=np.int64)
        self.memory: Whole = np.array([one.memory_mib for one in machines], dtype=np.int64)
        self.milli: Whole = np.zeros((len(machines), MOST_DEVICES), dtype=np.int64)
        for number, one in enumerate(machines):
            self.milli[number, : one.gpus] = WHOLE_MILLI
        self.changes: list[int] = []
        self.suits = cache(self._suits)

    def _suits(self, spec: str) -> Truth:
        models = Shape(0, 0, 0, 0, spec).models
        return np.array([not models or one.model in models for one in self.machines], dtype=np.bool_)

    def fitting(self, shape: Shape) -> Whole:
        """Numbers of the nodes that could take a pod now, ascending."""
        fits = (self.cpu >= shape.cpu_milli) & (self.memory >= shape.memory_mib)
        if shape.gpus:
            fits &= self.suits(shape.spec)
            fits &= (self.milli >= shape.milli).sum(axis=1) >= shape.gpus
        return np.flatnonzero(fits)

    def devices(self, node: int, shape: Shape) -> tuple[int, ...]:
        """Where a pod goes on a node if nobody says otherwise: the fullest device for a part, the first whole ones."""
        left = self.milli[node].tolist()
        fitting = [device for device in range(MOST_DEVICES) if left[device] >= shape.milli]
        if shape.gpus == 1:
            return (min(fitting, key=lambda device: (left[device], device)),)
        return tuple(fitting[: shape.gpus])

    def take(self, node: int, shape: Shape, devices: Sequence[int]) -> None:
        """Give a pod what it asks for.

        Raises:
            RuntimeError: It is not there.
        """
        self.cpu[node] -= shape.cpu_milli
        self.memory[node] -= shape.memory_mib
        for device in devices:
            self.milli[node, device] -= shape.milli
        self.changes.append(node)
        fits = self.cpu[node] >= 0 and self.memory[node] >= 0 and self.milli[node].min() >= 0
        if not fits or len({*devices}) != shape.gpus or (shape.gpus and not self.suits(shape.spec)[node]):
            raise RuntimeError(f"the policy gives {shape} what there is not: node {node}, devices {devices}")


class Policy(Protocol):
    """Where a pod goes."""

    def arrives(self, shape: Shape, cluster: Cluster) -> None:
        """Called with every pod, also with those that fit nowhere, before it is placed."""
        ...

    def place(self, shape: Shape, cluster: Cluster, fitting: Whole) -> tuple[int, tuple[int, ...]]:
        """The node and the devices for a pod.

        Args:
            cluster: Must not be changed.
            fitting: The nodes that could take it; at least one.
        """
        ...


class FgdWorld:
    """Places pods under a policy.

    Args:
        machines: In the order in which equal ones are taken.
        shapes: What arrives, in order.
        policy: Who decides where.
        progress: Called with the number of pods that have arrived, now and then.

    Attributes:
        allocated: In per cent of all devices, after each arrival.
        asked: In per cent of all devices: what was asked for, lost pods included, after each arrival.
        lost: How many pods fitted nowhere.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        shapes: Iterable[Shape],
        policy: Policy,
        *,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.cluster = Cluster(machines)
        self.shapes = list(shapes)
        self.lost = 0
        self.results = Results(sum(one.gpus for one in machines))
        self._policy, self._progress = policy, progress
        self.asked: list[float] = []
        self.allocated: list[float] = []

    def run(self) -> Results:
        """Let all pods arrive."""
        began = time.perf_counter()
        cluster, percent = self.cluster, self.results.devices * WHOLE_MILLI / _STEPS
        asked = allocated = 0
        for number, shape in enumerate(self.shapes, 1):
            asked += shape.total_milli
            since = time.perf_counter()
            self._policy.arrives(shape, cluster)
            fitting = cluster.fitting(shape)
            if len(fitting):
                node, devices = self._policy.place(shape, cluster, fitting)
                cluster.take(node, shape, devices)
                allocated += shape.total_milli
            else:
                self.lost += 1
            self.results.decided(time.perf_counter() - since)
            self.asked.append(asked / percent)
            self.allocated.append(allocated / percent)
            self._progress(number)
        self.results.wall_s = time.perf_counter() - began
        self.results.placed = {"pods": len(self.shapes), "lost": self.lost, **self._summary()}
        return self.results

    def allocated_at(self) -> dict[int, float]:
        """Per cent of all devices that were allocated while so many per cent had been asked for, as FGD counts it."""
        found: dict[int, list[float]] = {}
        for asked, allocated in zip(self.asked, self.allocated, strict=True):
            found.setdefault(round(asked), []).append(round(allocated, 2))
        return {step: sum(values) / len(values) for step, values in found.items()}

    def _summary(self) -> dict[str, Any]:
        steps = self.allocated_at()
        figures = {f"allocated_at_{step}_fraction": steps[step] / _STEPS for step in (100, 130) if step in steps}
        return {**figures, "allocated_fraction": self.allocated[-1] / _STEPS if self.allocated else 0.0}
