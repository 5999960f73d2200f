"""The small network of a trained contention-aware policy, in numpy: it wants no framework to decide with.

It gives each start that a state shows a score, and one to starting nothing. A start's score depends on what the nodes
of its set hold, on all nodes, and on the candidate, with the same weights for each set: so nodes can change their
places without changing what is done. Training has the same network in torch
(:mod:`prefect_gpu.papers.deepshare.learning.network`); a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from prefect_gpu.papers.deepshare.observation import Encoding, Mask

LEVELS = 6
"""Profiles are told apart at so many places between 0 and 1; one in between is partly this and partly that."""

DECIMALS = 6
"""Scores that are equal in so many decimals are equal."""

Array = npt.NDArray[np.floating[Any]]

WEIGHTS = ("set_w", "cell_w", "all_w", "start_b", "start_w", "node_w", "node_b", "demand_w", "rest_w", "rest_b")
"""Names of the arrays."""
NOTHING = "rest_b"
"""Of these, the constant part of the score of starting nothing."""


class Starts:
    """The single starts among which a policy chooses, one after another, until it chooses nothing.

    The paper's action names nodes for each candidate at once; here, each step starts one, so that one start cannot make
    another impossible. A step is a set of nodes and the GPUs on each: as candidates have different numbers of GPUs,
    this says which of them it is, and the state has its profile at that place of its right half.

    Args:
        encoding: The cluster shape.

    Attributes:
        nothing: The answer that ends the round's starts; all others are below it.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.each = encoding.gpus_per_node
        self.nothing = len(encoding.sets) * self.each
        self._sets: dict[int, list[tuple[int, list[int]]]] = {}  # by width: (number before its first answer, nodes)
        for at, nodes in enumerate(encoding.sets):
            self._sets.setdefault(len(nodes), []).append((at * self.each - 1, sorted(nodes)))

    def meaning(self, answer: int) -> tuple[int, frozenset[int]]:
        """(GPUs of the candidate, nodes to start it on) of an answer other than nothing."""
        at, each = divmod(int(answer), self.each)
        nodes = self.encoding.sets[at]
        return (each + 1) * len(nodes), nodes

    def mask(self, free: Array | list[int], widths: Mapping[int, frozenset[int]]) -> Mask:
        """Which answers can be carried out: bool of shape (nothing + 1,). Nothing always can.

        Args:
            free: GPUs free on each node.
            widths: For the GPUs of each candidate, the numbers of nodes that it may be spread over.
        """
        mask = np.zeros(self.nothing + 1, dtype=np.bool_)
        mask[-1] = True
        asked = {
            width: [gpus // width for gpus, allowed in widths.items() if width in allowed and gpus % width == 0]
            for width in self._sets
        }
        for width, sets in self._sets.items():
            wanted = asked[width]
            if not wanted:
                continue
            for first, nodes in sets:
                room = min(self.each, *[free[node] for node in nodes])
                for each in wanted:
                    if each <= room:
                        mask[first + each] = True
        return mask


class Network:
    """A trained network.

    Args:
        starts: What it chooses among.
        weights: Its arrays by their names, :data:`WEIGHTS`.

    Raises:
        ValueError: An array is missing.
    """

    def __init__(self, starts: Starts, weights: Mapping[str, Array]) -> None:
        missing = [name for name in WEIGHTS if name not in weights]
        if missing:
            raise ValueError(
                f"weights have no {', '.join(missing)}: give a file that `prefect-gpu train-policy` wrote."
            )
        self._weights = {name: np.asarray(weights[name], dtype=np.float64) for name in WEIGHTS}
        self._slots = starts.each
        self._member = membership(starts.encoding)
        self._row = np.log2(self._member.sum(axis=1)).astype(np.int64)

    def scores(self, states: Array) -> Array:
        """The score of each answer in each state, of shape (states, answers); the highest is the best.

        How processors add up differs in the last digits, and nodes that are alike have equal scores: without rounding,
        the kind of processor would choose among them.

        Args:
            states: Of shape (states, nodes, 2 × GPUs per node).
        """
        w, slots, states = self._weights, self._slots, np.asarray(states, dtype=np.float64)
        nodes = node_features(states[:, :, :slots])  # (B, N, F)
        demand = basis(states[:, :, slots:])  # (B, N, G, L)
        everywhere = nodes.mean(axis=1)
        inside = nodes[:, None] * self._member[None, :, :, None]
        sets = np.concatenate(
            [inside.sum(axis=2) / self._member.sum(axis=1)[None, :, None], inside.max(axis=2)], axis=2
        )
        hidden_sets = sets @ w["set_w"] + (everywhere @ w["all_w"])[:, None]  # (B, S, H)
        # A place (2^i nodes × j GPUs): the candidate's profile there, and which place it is.
        cells = demand @ w["cell_w"] + w["start_b"]  # (B, N, G, H); start_b: (N, G, H)
        hidden = np.maximum(hidden_sets[:, :, None] + cells[:, self._row], 0.0)  # (B, S, G, H)
        starts = (hidden @ w["start_w"])[..., 0].reshape(len(states), -1)
        asked = demand.reshape(len(states), -1) @ w["demand_w"]
        rest = np.maximum(nodes @ w["node_w"] + asked[:, None] + w["node_b"], 0.0).mean(axis=1)
        nothing = rest @ w["rest_w"] + w["rest_b"]
        return np.round(np.concatenate([starts, nothing], axis=1), DECIMALS)


def membership(encoding: Encoding) -> Array:
    """Which nodes belong to which set: 1 or 0, of shape (sets, nodes)."""
    member = np.zeros((len(encoding.sets), encoding.nodes), dtype=np.float32)
    for at, nodes in enumerate(encoding.sets):
        member[at, sorted(nodes)] = 1.0
    return member


def basis(values: Array) -> Array:
    """How much of each level is in each value; one more axis. 0 has none."""
    levels = np.arange(1, LEVELS + 1, dtype=np.float32)
    found: Array = np.maximum(0.0, 1.0 - np.abs(values[..., None] * LEVELS - levels))
    return found


def node_features(left: Array) -> Array:
    """Of each node: the part of its GPUs with jobs of each level, and whether there are any."""
    parts = basis(left).mean(axis=2)
    found: Array = np.concatenate([parts, np.minimum(1.0, parts * left.shape[2])], axis=2)
    return found
