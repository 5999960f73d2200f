"""Whether gangs of given sizes fit on nodes together, counted by how many nodes have how many free GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


class Packing:
    """Free GPUs, without saying on which node: nodes alike are counted, so a gang is packed in constant time.

    A gang that fits on the largest node goes whole to the fullest node that fits. A wider one takes as many wholly free
    nodes of the largest kind as it can fill, and its rest goes to the fullest other node that fits.

    Args:
        node_gpus: GPUs of each node, all free.

    Example:
        >>> packing = Packing([8, 8])
        >>> packing.take(12), packing.take(4), packing.take(1)
        (True, True, False)
    """

    __slots__ = ("_nodes", "_width", "free")

    def __init__(self, node_gpus: Sequence[int]) -> None:
        if any(count < 0 for count in node_gpus):
            raise ValueError(f"node_gpus is {list(node_gpus)!r}: give at least 0 for each node.")
        self._nodes = Counter(node_gpus)
        self._width = max(node_gpus, default=0)
        self.free = sum(node_gpus)

    def copy(self) -> Packing:
        """The same free GPUs, to be taken independently."""
        twin = Packing(())
        twin._nodes, twin._width, twin.free = self._nodes.copy(), self._width, self.free
        return twin

    def take(self, gpus: int) -> bool:
        """Takes the GPUs of one gang; False, and nothing taken, where they do not fit."""
        return self.take_many(gpus, 1) == 1

    def take_many(self, gpus: int, gangs: int) -> int:
        """Takes the GPUs of as many gangs as fit, at most `gangs`, and returns how many."""
        if gpus < 1:
            raise ValueError(f"gpus is {gpus!r}: a gang takes at least 1.")
        if gpus > self.free:
            return 0
        wide, rest = divmod(gpus, self._width) if gpus > self._width else (0, gpus)
        taken = 0
        while taken < gangs:
            whole = self._nodes[self._width]
            if wide > whole:
                break
            self._nodes[self._width] -= wide
            if rest:
                fullest = min((free for free, nodes in self._nodes.items() if nodes and free >= rest), default=None)
                if fullest is None:
                    self._nodes[self._width] += wide
                    break
                # Narrow gangs fill one node, then the next one alike: as many as possible at once.
                at_once = 1 if wide else min(gangs - taken, fullest // rest)
                self._nodes[fullest] -= 1
                self._nodes[fullest - rest * at_once] += 1
            else:
                at_once = 1
            taken += at_once
            self.free -= gpus * at_once
        return taken

    def holds(self, counts: Mapping[int, int]) -> bool:
        """Whether so many gangs of each size (GPUs: gangs) fit together, wide ones placed first."""
        if sum(size * count for size, count in counts.items()) > self.free:
            return False
        trial = self.copy()
        return all(trial.take_many(size, counts[size]) == counts[size] for size in sorted(counts, reverse=True))
