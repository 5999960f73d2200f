"""What a gang asks for, and what the nodes have left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Container:
    """One instance of a job, and what it asks of the one node that holds it.

    Attributes:
        gpus: Whole GPUs.
        cpus: Cores.
        role: ``ps`` (a parameter server) or ``worker``.
    """

    gpus: int = 0
    cpus: int = 0
    role: Literal["ps", "worker"] = "worker"


Gang: TypeAlias = tuple[Container, ...]
"""The containers of one job: all of them are placed, or none."""

Plan: TypeAlias = tuple[int, ...]
"""The node's number for each container of a gang, in the gang's order."""


@dataclass(eq=False)
class Free:
    """What is free on each node; changed by `take` only.

    Attributes:
        gpus: Free GPUs, shape (nodes,).
        cpus: Free cores, shape (nodes,); all 0 if not given, so that only containers that ask for none fit.

    Raises:
        ValueError: Shapes differ, or something is negative.
    """

    gpus: Ints
    cpus: Ints

    def __init__(self, gpus: Sequence[int] | Ints, cpus: Sequence[int] | Ints | None = None) -> None:
        self.gpus = per_node("gpus", gpus, None)
        self.cpus = per_node("cpus", cpus, len(self.gpus))

    def copy(self) -> Free:
        """A copy that can be changed on its own."""
        twin = object.__new__(Free)  # what was checked once need not be checked again: this is called often
        twin.gpus, twin.cpus = self.gpus.copy(), self.cpus.copy()
        return twin

    def fits(self, container: Container) -> Mask:
        """The nodes that can hold a container, shape (nodes,)."""
        fits = self.gpus >= container.gpus
        if container.cpus:
            fits &= self.cpus >= container.cpus
        return fits

    def take(self, gang: Gang, plan: Plan) -> None:
        """Take what a gang asks for, at the nodes of its plan.

        Raises:
            ValueError: A node would be overloaded; nothing is taken then.
        """
        if len(gang) != len(plan):
            raise ValueError(f"plan names {len(plan)} nodes for {len(gang)} containers: name one for each")
        left = self.copy()
        for container, node in zip(gang, plan, strict=True):
            left.take_one(container, node)
        short = [node for node in set(plan) if min(left.gpus[node], left.cpus[node]) < 0]
        if short:
            raise ValueError(f"plan puts more on node {min(short)} than it has free: make the plan from these arrays")
        self.gpus, self.cpus = left.gpus, left.cpus

    def take_one(self, container: Container, node: int) -> None:
        """Take what one container asks for, without a check: for placers, which have just made it."""
        self.gpus[node] -= container.gpus
        self.cpus[node] -= container.cpus


def per_node(name: str, values: Sequence[int] | Ints | None, nodes: int | None) -> Ints:
    """An array of its own with one number per node; zeros for None.

    Raises:
        ValueError: Not one row of whole numbers, not as many as there are nodes, or one is negative.
    """
    if values is None:
        return np.zeros(nodes or 0, dtype=np.int64)
    given = np.asarray(values)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"{name} has shape {given.shape} and type {given.dtype}: give one whole number per node")
    if nodes is not None and len(given) != nodes:
        raise ValueError(f"{name} has {len(given)} entries for {nodes} nodes: give one per node")
    if given.size and given.min() < 0:
        node = int(given.argmin())
        raise ValueError(f"{name} of node {node} is {given[node]}: give 0 or more")
    return np.array(given, dtype=np.int64)
