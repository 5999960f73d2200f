"""Whose are the nodes' GPUs and cores? CODA's multi-array scheduling (Zhao et al., 2020, §V.C), as pure book-keeping.

The cluster's cores are split into those of the CPU array and those that are reserved for the GPU array; its GPUs into a
4-GPU sub-array (whole nodes, for jobs of four GPUs and more) and a 1-GPU sub-array (the others). Each may use what the
other leaves idle, and gives it back when it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prefect_gpu.papers.coda.books import Ask, Book, NodeSize, Way, aborts, fit, leavers


@dataclass(frozen=True)
class Offer:
    """How a job can start.

    Attributes:
        nodes: The node of each instance.
        aborted: CPU jobs that must give back reserved cores; they return to the head of their array.
        moved: Smaller GPU jobs that must leave the 4-GPU sub-array, each with its new nodes; without any it returns to
            the head of its array.
        overflows: Whether the job uses what belongs to another array or sub-array.
    """

    nodes: tuple[str, ...]
    aborted: tuple[str, ...] = ()
    moved: tuple[tuple[str, tuple[str, ...]], ...] = ()
    overflows: bool = False


class _Trial:
    """The books as they would be: nodes are copied when they are first changed."""

    def __init__(self, books: Mapping[str, Book], held: Mapping[str, tuple[Ask, tuple[str, ...]]]) -> None:
        self._books = books
        self._held = held
        self._changed: dict[str, Book] = {}

    def all(self) -> Iterator[Book]:
        for name, book in self._books.items():
            yield self._changed.get(name, book)

    def book(self, node: str) -> Book:
        return self._changed.get(node) or self._books[node]

    def put(self, ask: Ask, node: str) -> None:
        self._own(node).put(ask)

    def drop(self, job: str) -> None:
        for node in set(self._held[job][1]):
            self._own(node).drop(job)

    def take_back(self, job: str, node: str) -> None:
        self._own(node).drop(job)

    def _own(self, node: str) -> Book:
        if node not in self._changed:
            self._changed[node] = self._books[node].copy()
        return self._changed[node]


class Arrays:
    """Who holds what, and what a job could start with.

    Args:
        nodes: The cluster.
        reserved_cores: Cores of each node that are reserved for GPU jobs (see :func:`reserved_cores`); without an entry
            none are.
        wide_gpus: Size of the 4-GPU sub-array in GPUs. It gets whole nodes, the largest first, until they suffice.
    """

    def __init__(self, nodes: Sequence[NodeSize], reserved_cores: Mapping[str, int], wide_gpus: int) -> None:
        wide = _wide_nodes(nodes, wide_gpus)
        self._books: dict[str, Book] = {}
        for node in nodes:
            self._books[node.id] = Book(node, reserved_cores.get(node.id, 0), node.id in wide)
        self._held: dict[str, tuple[Ask, tuple[str, ...]]] = {}

    def divide(self, reserved_cores: Mapping[str, int], wide_gpus: int) -> None:
        """Set the limits between the arrays anew, as history goes on; whoever is beyond them overflows from now on.

        Args:
            reserved_cores: As for the class.
            wide_gpus: As for the class.
        """
        wide = _wide_nodes([book.size for book in self._books.values()], wide_gpus)
        for name, book in self._books.items():
            book.reserved, book.wide = reserved_cores.get(name, 0), name in wide

    def find(self, ask: Ask, allowed: Callable[[str], bool] | None = None) -> Offer | None:
        """How a job can start now, or None. All of its instances or none; changes nothing.

        What harms nobody comes first. A CPU job: the cores of its own array, then reserved ones that are idle. A GPU
        job: its own sub-array, then the same with reserved cores taken back, then the other sub-array likewise; and a
        job of the 4-GPU sub-array at last with smaller jobs moved out of it. Within each, best fit.

        Args:
            ask: What the job asks.
            allowed: Says of a node whether the job may go there; None: all.
        """
        trial = _Trial(self._books, self._held)
        nodes: list[str] = []
        aborted: list[str] = []
        displaced: list[str] = []
        overflows = False
        for _ in range(ask.instances):
            best = min(
                (
                    (key, book)
                    for book in trial.all()
                    if (key := fit(book, ask)) is not None and (allowed is None or allowed(book.size.id))
                ),
                key=lambda found: found[0],
                default=None,
            )
            if best is None:
                return None
            key, book = best
            for job in leavers(book, ask) if key[0] is Way.MOVING else ():
                trial.drop(job)
                displaced.append(job)
            # The trial copies a node when it changes it, so look at the copy from here on.
            book = trial.book(book.size.id)
            for job in aborts(book, ask):
                trial.drop(job)
                aborted.append(job)
            trial.put(ask, book.size.id)
            nodes.append(book.size.id)
            overflows = overflows or (book.wide != ask.wide if ask.gpus else key[0] is Way.OTHER)
        places = [(job, self._elsewhere(self._held[job][0], trial)) for job in displaced]
        moved = tuple((job, there) for job, there in places if there != self._held[job][1])
        return Offer(tuple(nodes), tuple(aborted), moved, overflows)

    def release(self, job: str) -> None:
        """A job has ended, or gives everything back; nothing happens if it held nothing."""
        ask_nodes = self._held.pop(job, None)
        for node in set(ask_nodes[1]) if ask_nodes else ():
            self._books[node].drop(job)

    def enter(self, parts: Sequence[tuple[str, Ask]]) -> None:
        """Enter what a job holds in fact, wherever it is: (node, what it has there) of each of its instances.

        Nodes that are not known are left out.
        """
        known = [(node, ask) for node, ask in parts if node in self._books]
        for node, ask in known:
            self._books[node].put(ask)
        if known:
            self._held[known[0][1].id] = (known[0][1], tuple(node for node, _ in known))

    @staticmethod
    def _elsewhere(ask: Ask, trial: _Trial) -> tuple[str, ...]:
        """Nodes for a job that was displaced: only where it harms nobody, and none at all if it does not fit whole."""
        nodes: list[str] = []
        for _ in range(ask.instances):
            found = [(key, book) for book in trial.all() if (key := fit(book, ask)) is not None]
            harmless = [(key, book) for key, book in found if key[0] in (Way.OWN, Way.OTHER)]
            if not harmless:
                for node in set(nodes):
                    trial.take_back(ask.id, node)
                return ()
            _, book = min(harmless, key=lambda one: one[0])
            trial.put(ask, book.size.id)
            nodes.append(book.size.id)
        return tuple(nodes)


def _wide_nodes(nodes: Sequence[NodeSize], wide_gpus: int) -> set[str]:
    """Whole nodes for the 4-GPU sub-array, the largest first, until they suffice."""
    wide: set[str] = set()
    missing = wide_gpus
    for node in sorted(nodes, key=lambda node: -node.gpus):
        if missing <= 0 or node.gpus == 0:
            break
        wide.add(node.id)
        missing -= node.gpus
    return wide


def reserved_cores(history: Iterable[tuple[int, int]], node: NodeSize) -> int:
    """Cores of a node to reserve for GPU jobs: what its GPUs would need at the history's mean of cores per GPU.

    Args:
        history: (GPUs, cores) of finished GPU jobs.
        node: The node.

    Returns:
        At most all cores of the node; one per GPU without a history.
    """
    gpus = cores = 0
    for job_gpus, job_cores in history:
        gpus += job_gpus
        cores += job_cores
    per_gpu = cores / gpus if gpus else 1.0
    return min(node.cores, math.ceil(per_gpu * node.gpus))
