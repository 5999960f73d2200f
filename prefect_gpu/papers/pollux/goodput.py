"""Ours in Pollux' world: sizes by marginal progress per work left (:mod:`prefect_gpu.scheduling.elastic.goodput`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prefect_gpu.papers.pollux.tables import Batch, Placement
from prefect_gpu.papers.pollux.world import Job, Nodes
from prefect_gpu.scheduling.elastic.goodput import Growing, place, sizes


class Speeds(Protocol):
    """What is known of the jobs."""

    def speeds(self, job: Job, most: int, per_node: int) -> dict[int, float]:
        """What part of what is left of the job it gets done per second, by GPUs on as few nodes as possible."""
        ...

    def batch(self, job: Job, placement: Placement) -> Batch:
        """The batch that makes the job fastest there."""
        ...

    def trained(self, job: Job) -> None:
        """The job trains: a moment to measure."""
        ...


class Goodput:
    """All jobs are decided about every minute; those whose number of GPUs stays the same hardly ever move.

    Args:
        speeds: What is known.
    """

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds

    def decide(self, jobs: Sequence[Job], nodes: int, gpus_per_node: int) -> dict[str, Nodes]:
        """See the class."""
        gpus = nodes * gpus_per_node
        growing = [Growing(job.name, 1.0, self._speeds.speeds(job, gpus, gpus_per_node), job.nodes) for job in jobs]
        return place(growing, sizes(growing, gpus), nodes, gpus_per_node)

    def batch(self, job: Job, placement: Placement) -> Batch:
        """The best one, as far as is known."""
        return self._speeds.batch(job, placement)

    def trained(self, job: Job) -> None:
        """Something may be learned."""
        self._speeds.trained(job)
