"""How many GPUs, and which, does each elastic job get on a cluster of many nodes? By marginal progress per work left.

On plain numbers: a job is what is left of it, and how fast that goes on each number of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

FASTER = 0.9
"""A job that is s times as fast as on its fewest GPUs is worth s^0.9 times as much: nearly in proportion."""
SHORTER = 0.4
"""A job that is 32 times as long is worth a quarter as much, so that short jobs do not wait for long ones."""
RESTART_S = 150.0
"""Seconds by which another number of GPUs must pay off: the restart, and that the next change may come soon."""

Nodes = tuple[int, ...]
"""The node of each GPU of a job, ascending."""


@dataclass(frozen=True)
class Growing:
    """A job that runs on any of several numbers of GPUs.

    Attributes:
        work: What is left, in any unit.
        speed: Work per second by number of GPUs, of those that it may have; 0 where it does not run.
        nodes: Where its GPUs are now; empty while it waits.
        least: So many GPUs it gets before anybody gets more than that; one of the numbers that it may have, or 0.
        restart_s: Seconds by which another number of its GPUs must pay off; None: those of the call.
        alone_s: Seconds that are left on one GPU, or would be; None: on the fewest that it may have.
    """

    id: str
    work: float
    speed: Mapping[int, float]
    nodes: Nodes = ()
    least: int = 0
    restart_s: float | None = None
    alone_s: float | None = None


def sizes(jobs: Sequence[Growing], gpus: int, *, restart_s: float = RESTART_S) -> dict[str, int]:
    """How many GPUs each job gets; those that are left out wait.

    Each job has a curve: what it is worth by number of GPUs. Its concave envelope falls into segments, which are taken
    in the order of what they add per GPU, as long as there are GPUs. Of equal ones, the earlier job's is first. What a
    job gets in any case is not asked about; all of that together must not be more than there is.

    Args:
        gpus: GPUs to hand out.
        restart_s: Seconds that a job loses on any number of GPUs but its own.
    """
    steps = []
    found: dict[int, int] = {}
    for number, job in enumerate(jobs):
        values = worth(job, restart_s)
        if job.least:
            found[number] = job.least
            gpus -= job.least
        corners = [(job.least, 0.0), *_above(job.least, values)] if job.least else [(0, 0.0), *envelope(values)]
        for rank, ((less, low), (more, high)) in enumerate(pairwise(corners)):
            steps.append(((low - high) / (more - less), rank, number, less, more))
    for _, _, number, less, more in sorted(steps):
        if found.get(number, 0) == less and more - less <= gpus:
            found[number] = more
            gpus -= more - less
    return {job.id: found[number] for number, job in enumerate(jobs) if number in found}


def worth(job: Growing, restart_s: float) -> list[tuple[int, float]]:
    """What it is worth that the job has so many GPUs: (GPUs, worth), ascending."""
    runs = [(size, job.work / speed) for size, speed in sorted(job.speed.items()) if speed > 0]
    if not runs:
        return []
    restart_s = restart_s if job.restart_s is None else job.restart_s
    least_s = max((runs[0][1] if job.alone_s is None else job.alone_s) + restart_s, 1.0)
    return [
        (size, (least_s / max(left_s + restart_s * (size != len(job.nodes)), 1.0)) ** FASTER / least_s**SHORTER)
        for size, left_s in runs
    ]


def _above(least: int, values: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The envelope of what more GPUs than the least are worth beside these."""
    base = next((value for size, value in values if size == least), 0.0)
    more = envelope((size - least, value - base) for size, value in values if size > least)
    return [(size + least, value) for size, value in more]


def envelope(points: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Corners of the least concave function from (0, 0) on that is nowhere below the points, as far as it rises.

    Args:
        points: (x, value), with x above 0 and ascending.
    """
    corners = [(0, 0.0)]
    for x, value in points:
        if value <= corners[-1][1]:
            continue
        while len(corners) > 1:
            (first, low), (last, high) = corners[-2:]
            if (high - low) * (x - last) > (value - high) * (last - first):
                break
            corners.pop()
        corners.append((x, value))
    return corners[1:]


def place(jobs: Sequence[Growing], wanted: Mapping[str, int], nodes: int, per_node: int) -> dict[str, Nodes]:
    """Which GPUs each job gets.

    A node's worth of GPUs and more are whole nodes, less is on one node. Jobs whose number does not change stay where
    they are, unless others need it: then the nodes with fewest GPUs in use are cleared, as few as possible. A job that
    has no place even so gets the most GPUs that it may have where there are some left.

    Args:
        wanted: GPUs by job, as of :func:`sizes`: at most as many as there are.
        nodes: Number of nodes.
        per_node: GPUs on each.

    Raises:
        ValueError: A job wants more than a node and not whole ones, or all want more than there is.
    """
    for name, size in wanted.items():
        if size > per_node and size % per_node:
            raise ValueError(f"{name} wants {size} GPUs of nodes with {per_node}: give whole nodes, or a part of one")
    if sum(wanted.values()) > nodes * per_node:
        raise ValueError(f"{sum(wanted.values())} GPUs are wanted, and there are {nodes * per_node}: hand out fewer")
    whole = [job for job in jobs if wanted.get(job.id, 0) >= per_node]
    small = [job for job in jobs if 0 < wanted.get(job.id, 0) < per_node]
    found = {job.id: job.nodes for job in whole if len(job.nodes) == wanted[job.id]}
    taken = {node for where in found.values() for node in where}
    stay = {job.id: job.nodes for job in small if len(job.nodes) == wanted[job.id] and not taken & {*job.nodes}}
    held = {node: sum(where.count(node) for where in stay.values()) for node in range(nodes) if node not in taken}
    emptiest = sorted(held, key=held.__getitem__)
    for job in sorted(whole, key=lambda job: -wanted[job.id]):
        if job.id not in found:
            count = wanted[job.id] // per_node
            found[job.id] = tuple(node for node in sorted(emptiest[:count]) for _ in range(per_node))
            del emptiest[:count]
    packed, without = dict[str, Nodes](), small
    for cleared in range(len(emptiest) + 1):
        keep = {name: where for name, where in stay.items() if {*where} <= {*emptiest[cleared:]}}
        tried, failed = _pack(small, wanted, keep, emptiest, per_node)
        if not failed or not cleared:
            packed, without = tried, failed
        if not failed:
            break
    _squeeze_in(without, wanted, packed, emptiest, per_node)
    return {**found, **packed}


def _pack(
    small: Sequence[Growing], wanted: Mapping[str, int], keep: Mapping[str, Nodes], among: Sequence[int], per_node: int
) -> tuple[dict[str, Nodes], list[Growing]]:
    """Largest first, each onto the fullest node that has room: where all are, and those that fit nowhere."""
    found, failed, free = dict(keep), [], _free(keep, among, per_node)
    for job in sorted(small, key=lambda job: -wanted[job.id]):
        if job.id in found:
            continue
        size = wanted[job.id]
        node = min((node for node in free if free[node] >= size), key=free.__getitem__, default=None)
        if node is None:
            failed.append(job)
            continue
        free[node] -= size
        found[job.id] = (node,) * size
    return found, failed


def _squeeze_in(
    jobs: Sequence[Growing], wanted: Mapping[str, int], found: dict[str, Nodes], among: Sequence[int], per_node: int
) -> None:
    """Fewer GPUs for jobs that have no place."""
    free = _free(found, among, per_node)
    for job in jobs:
        node = max(free, key=free.__getitem__)
        fits = [size for size, speed in job.speed.items() if speed > 0 and size <= min(free[node], wanted[job.id])]
        if fits:
            free[node] -= max(fits)
            found[job.id] = (node,) * max(fits)


def _free(found: Mapping[str, Nodes], among: Sequence[int], per_node: int) -> dict[int, int]:
    free = dict.fromkeys(sorted(among), per_node)
    for where in found.values():
        for node in where:
            free[node] -= 1
    return free
