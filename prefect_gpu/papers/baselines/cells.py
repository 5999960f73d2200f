"""Which GPUs of a node are free, as buddy cells: powers of two that split in halves and merge again."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_gpu.scheduling.placement.kernels.topology import Topology


def cell_gpus(gpus: int) -> int:
    """The size of the smallest cell that holds so many GPUs: the next power of two; 0 for none."""
    return 1 << (gpus - 1).bit_length() if gpus else 0


@dataclass(frozen=True, order=True)
class Cell:
    """A cell of one node: its GPUs numbered from ``first`` to ``first + gpus - 1``."""

    node: int
    first: int
    gpus: int


class Cells:
    """The free cells of every node.

    A node whose GPUs are no power of two begins as one cell for each binary digit, the largest first.
    """

    def __init__(self, topology: Topology) -> None:
        self._free: list[set[Cell]] = []
        self._whole: list[set[Cell]] = []
        for node, total in enumerate(topology.gpus_total.tolist()):
            cells, first = set(), 0
            while first < total:
                gpus = 1 << ((total - first).bit_length() - 1)
                cells.add(Cell(node, first, gpus))
                first += gpus
            self._whole.append(cells)
            self._free.append(set(cells))

    def free(self, node: int) -> list[Cell]:
        """The free cells of a node, by their first GPU."""
        return sorted(self._free[node])

    def take(self, node: int, gpus: int) -> Cell | None:
        """Take the smallest free cell of a node that holds so many GPUs, split down to the next power of two.

        Returns:
            The cell, or None if no free cell is large enough.

        Raises:
            ValueError: Fewer than one GPU is asked for.
        """
        if gpus < 1:
            raise ValueError(f"gpus is {gpus}: a cell has at least one")
        wanted = cell_gpus(gpus)
        enough = [cell for cell in self._free[node] if cell.gpus >= wanted]
        if not enough:
            return None
        cell = min(enough, key=lambda cell: (cell.gpus, cell.first))
        self._free[node].remove(cell)
        while cell.gpus > wanted:
            half = cell.gpus // 2
            self._free[node].add(Cell(node, cell.first + half, half))
            cell = Cell(node, cell.first, half)
        return cell

    def give_back(self, cell: Cell) -> None:
        """Free a taken cell, and merge it with its buddy as often as the buddy is free.

        Raises:
            ValueError: The cell, or a part of it, is free already or was never there.
        """
        inside = any(_overlap(cell, whole) for whole in self._whole[cell.node])
        if not inside or any(_overlap(cell, other) for other in self._free[cell.node]):
            raise ValueError(f"cell is {cell}, which is not taken: give back what take returned, once")
        while cell not in self._whole[cell.node]:
            # Every cell starts at a multiple of its size, so one bit tells it from its buddy.
            buddy = Cell(cell.node, cell.first ^ cell.gpus, cell.gpus)
            if buddy not in self._free[cell.node]:
                break
            self._free[cell.node].remove(buddy)
            cell = Cell(cell.node, min(cell.first, buddy.first), cell.gpus * 2)
        self._free[cell.node].add(cell)


def _overlap(one: Cell, other: Cell) -> bool:
    return one.first < other.first + other.gpus and other.first < one.first + one.gpus
