"""Optimus with an oracle, as in Pollux' simulator: GPUs go where they save most time; batches are as large as asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prefect_gpu.papers.pollux.tables import Batch, Placement, packed
from prefect_gpu.papers.pollux.tiresias import place_emptiest_first
from prefect_gpu.papers.pollux.world import Job, Nodes, batch_as_asked

_MEASURED_PER_NODE = 4  # it foretells steps on nodes of four


class Optimus:
    """One GPU each in the order of the workload; then one more where time per step × steps left falls most."""

    def decide(self, jobs: Sequence[Job], nodes: int, gpus_per_node: int) -> dict[str, Nodes]:
        """See the class."""
        left = nodes * gpus_per_node
        sizes = {job.name: int(at < left) for at, job in enumerate(jobs)}
        left -= sum(sizes.values())
        by_name = {job.name: job for job in jobs}
        gains = {job.name: self._gain(job, sizes[job.name]) for job in jobs}
        while left and gains:
            name = max(gains, key=gains.__getitem__)
            if gains[name] <= 0:
                break
            sizes[name] += 1
            left -= 1
            gains[name] = self._gain(by_name[name], sizes[name])
        kept = {job.name: job.nodes for job in jobs if job.nodes and job.gpus == sizes[job.name]}
        order = sorted((job for job in jobs if sizes[job.name]), key=lambda job: sizes[job.name])
        return place_emptiest_first(kept, sizes, order, nodes, gpus_per_node)

    def batch(self, job: Job, placement: Placement) -> Batch:
        """As the job asks."""
        return batch_as_asked(job, placement)

    def trained(self, job: Job) -> None:
        """Nothing is learned: it knows the tables."""

    @classmethod
    def _gain(cls, job: Job, gpus: int) -> float:
        """Seconds that one more GPU saves; 0 if the job cannot use it, or has none yet."""
        batch_size = job.trace.batch_size or job.application.initial
        most = 1 if job.application.name == "ncf" else batch_size // job.application.least_local
        if not 0 < gpus < most:
            return 0.0
        return (cls._step_s(job, gpus) - cls._step_s(job, gpus + 1)) * cls._steps_left(job)

    @staticmethod
    def _step_s(job: Job, gpus: int) -> float:
        placement = packed(gpus, _MEASURED_PER_NODE)
        batch = batch_as_asked(job, placement)
        if gpus == 1 and not batch.accumulation:  # it halves the batch of one GPU in any case
            batch = replace(batch, atomic=-(-batch.atomic // 2), accumulation=1)
        step_s, sync_s = job.application.step_s(placement, batch.atomic)
        return step_s + (step_s - sync_s) * batch.accumulation

    @staticmethod
    def _steps_left(job: Job) -> float:
        last, batch_size = job.application.epochs - 1, job.trace.batch_size or job.application.initial
        if job.epoch >= last:
            return 1.0
        return job.application.iterations(batch_size, last) - job.application.iterations(batch_size, job.epoch)
