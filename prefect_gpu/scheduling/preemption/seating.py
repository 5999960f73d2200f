"""Where the jobs of a chosen set go, who moves to make room, and who really has to be stopped. Counts only; pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

Spots = list[tuple[int, int]]  # (node, devices there)


@dataclass
class Seats(Generic[T]):
    """What is to be done.

    Attributes:
        starts: Jobs that start, each with its nodes; the widest first.
        moves: Running jobs that carry on elsewhere.
        stops: Running jobs that are stopped. No device that they hold is left free by a plan that could do without it.
    """

    starts: dict[T, Spots] = field(default_factory=dict)
    moves: dict[T, int] = field(default_factory=dict)
    stops: list[T] = field(default_factory=list)


class Seating(Generic[T]):
    """Nodes, with who is on them.

    Args:
        free: By node: devices that nobody is on, and that are to be given away.
        stays: Jobs that go on, each with its nodes.
        leaves: Jobs that may be stopped, each with its nodes; those worth least come first.
        movable: Of the jobs that go on, those that may move.
    """

    def __init__(
        self,
        free: Mapping[int, int],
        stays: dict[T, Spots],
        leaves: dict[T, Spots],
        movable: set[T],
    ) -> None:
        self._free = dict(free)
        self._room = dict(free)  # if all who may leave left
        self._leaves = leaves
        self._leavers: dict[int, list[T]] = {}
        for job, spots in leaves.items():
            for node, devices in spots:
                self._room[node] += devices
                self._leavers.setdefault(node, []).append(job)
        self._movable: dict[int, dict[T, int]] = {}
        for job, spots in stays.items():
            if job in movable:
                for node, devices in spots:
                    self._movable.setdefault(node, {})[job] = devices
        self._home = {job: stays[job][0][0] for job in movable}
        self.seats: Seats[T] = Seats()

    def start(self, job: T, nodes: int, devices: int, rest: int = 0) -> bool:
        """Find room for a job on so many nodes with so many devices each, and one with the rest; False: there is none.

        Where it only fits if smaller jobs move, as few devices as possible move.
        """
        wanted = [devices] * nodes + [rest] * (rest > 0)
        spots: Spots = []
        moved: list[tuple[T, int, int]] = []
        for count in wanted:
            node = self._open_node(count, spots) if nodes == 1 else self._emptiest(count, spots)
            found = None
            if node is not None and self._room[node] < count:
                found = self._make_room(node, count, {number for number, _ in spots})
                node = node if found is not None else None
            if node is None and nodes == 1:
                node, found = self._by_moves(count, {number for number, _ in spots})
            if node is None:
                self._undo(spots, moved)
                return False
            moved += found or ()
            spots.append((node, count))
            self._room[node] -= count
        self.seats.starts[job] = spots
        return True

    def _open_node(self, count: int, taken: Spots) -> int | None:
        """The node with the least room that suffices; of those, where most is free already."""
        best: tuple[int, int, int] | None = None
        for node, room in self._room.items():
            if room >= count:
                key = (room, -self._free[node], node)
                if best is None or key < best:
                    best = key
        return None if best is None else best[2]

    def _emptiest(self, count: int, taken: Spots) -> int | None:
        """The node with most room that a part of a wide job could have, if need be by moves."""
        used = {node for node, _ in taken}
        best: tuple[int, int, int] | None = None
        for node, room in self._room.items():
            if node in used or room + sum(self._movable.get(node, {}).values()) < count:
                continue
            key = (max(0, count - room), -self._free[node], node)
            if best is None or key < best:
                best = key
        return None if best is None else best[2]

    def _by_moves(self, count: int, used: set[int]) -> tuple[int | None, list[tuple[T, int, int]] | None]:
        """The node where the fewest devices have to move, and those moves."""
        ranked = []
        for node, room in self._room.items():
            movable = self._movable.get(node)
            if movable and node not in used:
                smaller = sum(devices for devices in movable.values() if devices < count)
                if room + smaller >= count:
                    ranked.append((count - room, node))
        for _, node in sorted(ranked):
            found = self._make_room(node, count, used, below=count)
            if found is not None:
                return node, found
        return None, None

    def _make_room(
        self, node: int, count: int, used: set[int], below: int = 1 << 30
    ) -> list[tuple[T, int, int]] | None:
        """Move jobs away from a node until it has room for so many; the moves, or None and nothing has changed."""
        missing = count - self._room[node]
        here = sorted(
            ((devices, at) for at, devices in enumerate(self._movable.get(node, {}).values()) if devices < below),
            key=lambda entry: (-entry[0], entry[1]),
        )
        names = list(self._movable.get(node, {}))
        chosen: list[int] = []
        for devices, at in here:
            if devices <= missing:
                chosen.append(at)
                missing -= devices
        if missing > 0:
            left = [(devices, at) for devices, at in here if at not in chosen]
            if not left:
                return None
            devices, at = left[-1] if left[-1][0] >= missing else left[0]
            chosen.append(at)
            missing -= devices
            if missing > 0:
                return None
        moves: list[tuple[T, int, int]] = []
        going = sorted((names[at] for at in chosen), key=lambda job: -self._movable[node][job])
        for job in going:
            devices = self._movable[node][job]
            target: tuple[int, int, int] | None = None
            for number, room in self._room.items():
                if room >= devices and number != node and number not in used:
                    key = (room, -self._free[number], number)
                    if target is None or key < target:
                        target = key
            if target is None:
                self._undo((), moves)
                return None
            self._move(job, node, target[2], devices)
            moves.append((job, node, target[2]))
        return moves

    def _move(self, job: T, node: int, target: int, devices: int) -> None:
        del self._movable[node][job]
        self._movable.setdefault(target, {})[job] = devices
        self._room[node] += devices
        self._room[target] -= devices
        self.seats.moves[job] = target
        if target == self._home[job]:
            del self.seats.moves[job]

    def _undo(self, spots: Sequence[tuple[int, int]], moves: Sequence[tuple[T, int, int]]) -> None:
        for node, devices in spots:
            self._room[node] += devices
        for job, node, target in reversed(moves):
            self._move(job, target, node, self._movable[target][job])

    def finish(self) -> Seats[T]:
        """Decide who has to be stopped, now that all places are known."""
        need = {node: -free for node, free in self._free.items()}
        for spots in self.seats.starts.values():
            for node, devices in spots:
                need[node] += devices
        for job, target in self.seats.moves.items():
            devices = self._movable[target][job]
            need[target] += devices
            need[self._home[job]] -= devices
        stopped: dict[T, None] = {}
        for node in need:
            for job in self._leavers.get(node, ()):
                if need[node] <= 0:
                    break
                if job not in stopped:
                    stopped[job] = None
                    for number, devices in self._leaves[job]:
                        need[number] -= devices
        for job in reversed(list(stopped)):
            if all(need[node] + devices <= 0 for node, devices in self._leaves[job]):
                del stopped[job]
                for node, devices in self._leaves[job]:
                    need[node] += devices
        self.seats.stops = list(stopped)
        return self.seats
