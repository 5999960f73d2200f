"""Tiresias, as in Pollux' simulator: two queues by attained service; jobs have the GPUs and the batch they ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from prefect_gpu.papers.pollux.tables import Batch, Placement
from prefect_gpu.papers.pollux.world import INTERVAL_S, Job, Nodes, batch_as_asked

DEMOTED_AFTER_GPU_S = 57_600.0


class Tiresias:
    """Jobs run in the order of the first queue, then of the second, as GPUs suffice; those that run do not move.

    A job that has attained :data:`DEMOTED_AFTER_GPU_S` joins the end of the second queue.
    """

    def __init__(self) -> None:
        self._queues: tuple[list[str], list[str]] = ([], [])
        self._ran_s: Counter[str] = Counter()

    def decide(self, jobs: Sequence[Job], nodes: int, gpus_per_node: int) -> dict[str, Nodes]:
        """See the class."""
        by_name = {job.name: job for job in jobs}
        first, second = ([name for name in queue if name in by_name] for queue in self._queues)
        known = {*first, *second}
        first += [job.name for job in jobs if job.name not in known]
        for job in jobs:
            self._ran_s[job.name] += int(INTERVAL_S) if job.nodes else 0
            if job.name in first and self._ran_s[job.name] * job.trace.gpus >= DEMOTED_AFTER_GPU_S:
                first.remove(job.name)
                second.append(job.name)
        self._queues = first, second
        left, runs = nodes * gpus_per_node, list[Job]()
        for name in first + second:
            if by_name[name].trace.gpus <= left:
                left -= by_name[name].trace.gpus
                runs.append(by_name[name])
        return place_emptiest_first({job.name: job.nodes for job in runs}, {}, runs, nodes, gpus_per_node)

    def batch(self, job: Job, placement: Placement) -> Batch:
        """As the job asks."""
        return batch_as_asked(job, placement)

    def trained(self, job: Job) -> None:
        """Nothing is learned."""


def place_emptiest_first(
    kept: dict[str, Nodes], sizes: dict[str, int], order: Sequence[Job], nodes: int, gpus_per_node: int
) -> dict[str, Nodes]:
    """Jobs stay where they are; the others take GPUs of the node with most of them free, again and again.

    Args:
        kept: Where jobs are and stay; those that are nowhere yet may be among them.
        sizes: GPUs of the others; what a job asks for, if it is not among them.
        order: Who is placed first.
    """
    found = dict(kept)
    free = dict.fromkeys(range(nodes), gpus_per_node)
    for held in found.values():
        for node in held:
            free[node] -= 1
    for job in order:
        if found.get(job.name):
            continue
        missing, taken = sizes.get(job.name, job.trace.gpus), list[int]()
        while missing:
            node = max(free, key=free.__getitem__)
            some = min(missing, free[node])
            taken += [node] * some
            free[node] -= some
            missing -= some
        found[job.name] = tuple(taken)
    return found
