"""Several jobs at once: Liquid's grouping genetic algorithm on the books of the nodes (§5.3)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.placement.cluster_view import ClusterView
from prefect_gpu.scheduling.placement.gangs import containers, granted
from prefect_gpu.scheduling.placement.kernels.containers import Free
from prefect_gpu.scheduling.placement.kernels.genetic import Genetic

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.jobs import Job
    from prefect_gpu.scheduling.sharing.rules import Sharing
    from prefect_gpu.scheduling.state.state import State


def suits_batch(job: Job, state: State) -> bool:
    """Whether the algorithm, which counts whole GPUs, can place the job: no sharing, no spanning, memory no matter."""
    request = job.request
    if request.shareable or request.spans or request.total_gpus == 0 or not state.numbered:
        return False
    return min(state.device_sizes, default=0) >= job.least_bytes


def place_batch(
    jobs: Sequence[Job], state: State, sharing: Sharing, view: ClusterView, genetic: Genetic, seed: int
) -> list[tuple[Job, Placement]]:
    """Places for those of the jobs for which there is room, earlier jobs first; see :func:`suits_batch`."""
    topology = view.topology(state)
    free = Free([len(books.free) for books in state.numbered], topology.cpus_total, topology.memory_total_bytes)
    plans = genetic.place_batch([containers(job.request) for job in jobs], free, topology, random.Random(seed))
    found = []
    taken: set[str] = set()
    for job, plan in zip(jobs, plans, strict=True):
        placement = None if plan is None else granted(job, plan, state, sharing, (), taken)
        if placement is not None:
            taken.update(placement.all_devices)
            found.append((job, placement))
    return found
