"""A contention-aware policy's input and output as arrays (§IV): how a cluster looks to a network, and what it answers.

The training environment and a scheduler with a trained policy both use this, so what was learned is what is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from prefect_gpu.scheduling.interference.sensitivity import Key, Running, SensitivityTable

MOST_NODES = 8

Observation = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


class Encoding:
    """State ⟨nodes, 2 × GPUs per node⟩ and actions of one cluster shape.

    State. Left half: for each GPU of each node, the profile of the job on it; 0 where there is none. Right half: a
    candidate that can be split as 2^i nodes × j GPUs has its profile at (i, j−1). The candidates are the first jobs of
    the queue with different numbers of GPUs, at most ``candidates``, fewer GPUs first. All numbers are from 0 to 1.

    Action. For each candidate a number: 0 … sets−1 is the set of nodes to start it on, ``sets`` is nothing. The sets
    are all those of 2, 4, 8 … nodes: on four nodes the six pairs and all four, so there are eight answers.

    Args:
        nodes: Number of nodes, 2 to 8: beyond that there are too many sets for a network to choose from.
        gpus_per_node: GPUs of each.
        profiles: The number that stands for a model, above 0 and at most 1; see :func:`profiles`. Any other is 1.
        candidates: How many candidates there are at most (the paper's K).

    Raises:
        ValueError: A count is out of its range.
    """

    def __init__(self, nodes: int, gpus_per_node: int, profiles: Mapping[str, float], candidates: int = 3) -> None:
        if not 2 <= nodes <= MOST_NODES:
            raise ValueError(f"nodes is {nodes}: give 2 to {MOST_NODES}, or use the greedy rule on other clusters")
        for name, value in (("gpus_per_node", gpus_per_node), ("candidates", candidates)):
            if value < 1:
                raise ValueError(f"{name} is {value}: give at least 1")
        self.nodes = nodes
        self.gpus_per_node = gpus_per_node
        self.candidates = candidates
        self.sets: tuple[frozenset[int], ...] = tuple(
            frozenset(chosen)
            for width in (2**power for power in range(1, nodes.bit_length()))
            for chosen in combinations(range(nodes), width)
        )
        self.profiles = dict(profiles)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the state."""
        return self.nodes, 2 * self.gpus_per_node

    @property
    def nothing(self) -> int:
        """The answer that starts nothing."""
        return len(self.sets)

    def profile(self, model: str) -> float:
        """The number that stands for a model."""
        return self.profiles.get(model, 1.0)

    def choose(self, jobs: Iterable[tuple[str, int]]) -> list[int]:
        """Which of the waiting jobs are the candidates: places in ``jobs``, fewer GPUs first.

        Args:
            jobs: (model, GPUs) of each, in the order of the queue.
        """
        first: dict[int, int] = {}
        for at, (_, gpus) in enumerate(jobs):
            first.setdefault(gpus, at)
            if len(first) == self.candidates:
                break
        return [first[gpus] for gpus in sorted(first)]

    def observe(self, running: Iterable[Running], candidates: Sequence[tuple[str, int]]) -> Observation:
        """The state: float32 of shape :attr:`shape`.

        Args:
            running: The running jobs, in the order of their starts.
            candidates: (model, GPUs) of each candidate.
        """
        state = np.zeros(self.shape, dtype=np.float32)
        filled = [0] * self.nodes
        for job in running:
            each = job.key.gpus // job.key.nodes
            for node in sorted(job.nodes):
                state[node, filled[node] : min(filled[node] + each, self.gpus_per_node)] = self.profile(job.key.model)
                filled[node] += each
        for model, gpus in candidates:
            for row in range(min(self.nodes, gpus.bit_length())):
                each, rest = divmod(gpus, 2**row)
                if not rest and 2**row <= self.nodes and each <= self.gpus_per_node:
                    state[row, self.gpus_per_node + each - 1] = self.profile(model)
        return state

    def mask(self, free: Sequence[int], candidates: Sequence[int]) -> Mask:
        """Which answers can be carried out: bool of shape (candidates, sets + 1), each candidate by itself.

        Args:
            free: GPUs free on each node.
            candidates: GPUs of each candidate.
        """
        mask = np.zeros((self.candidates, len(self.sets) + 1), dtype=np.bool_)
        mask[:, -1] = True
        for row, gpus in enumerate(candidates):
            for at, chosen in enumerate(self.sets):
                each, rest = divmod(gpus, len(chosen))
                mask[row, at] = not rest and all(free[node] >= each for node in chosen)
        return mask


def profiles(models: Iterable[str], table: SensitivityTable, gpus: int = 8, nodes: int = 4) -> dict[str, float]:
    """A number for each model, above 0 and at most 1: the more it suffers from others and they from it, the larger.

    Args:
        models: The models.
        table: How much jobs suffer from each other.
        gpus: Size at which they are compared.
        nodes: Spread at which they are compared.
    """
    keys = {model: Key(model, gpus, nodes) for model in sorted(set(models))}
    harm = {
        model: sum(table.ratio(key, other) + table.ratio(other, key) for other in keys.values())
        for model, key in keys.items()
    }
    ranked = sorted(keys, key=lambda model: (-harm[model], model))
    return {model: (rank + 1) / len(ranked) for rank, model in enumerate(ranked)}
