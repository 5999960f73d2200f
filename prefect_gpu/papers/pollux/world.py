"""The world of Pollux' simulator, rule for rule: what its authors published comes out of it to the second.

Every minute all jobs advance by a minute; then the policy sees those that have arrived by now. A job whose list of
nodes changed chooses its batch anew and loses 30 s. What a step takes and what it brings is in the tables of its model
(:mod:`~prefect_gpu.papers.pollux.tables`); at an epoch's end the batch is chosen anew.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from prefect_gpu.papers.pollux.tables import Application, Batch, Placement
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.run import Outcome
from prefect_gpu.simulation.traces import TraceJob

INTERVAL_S = 60.0
RESTART_S = 30.0

Nodes = tuple[int, ...]
"""The node of each GPU of a job."""

NO_BATCH = Batch(0)


@dataclass(eq=False)
class Job:
    """A job as it is now.

    Attributes:
        nodes: Where its GPUs are; empty while it waits.
        devices: Their names, for the timeline.
        placement: GPUs on each of its nodes.
        progress: Steps of the initial batch size, or as much as that.
        epoch: Epochs that it has completed.
        restart_s: Seconds until it trains again.
    """

    trace: TraceJob
    application: Application
    outcome: Outcome
    nodes: Nodes = ()
    devices: tuple[str, ...] = ()
    placement: Placement = ()
    batch: Batch = NO_BATCH
    progress: float = 0.0
    epoch: int = 0
    restart_s: float = 0.0
    placed_s: float = 0.0

    @property
    def name(self) -> str:
        """As in the workload."""
        return self.trace.job_id

    @property
    def gpus(self) -> int:
        """GPUs that it has."""
        return len(self.nodes)


class Policy(Protocol):
    """Who gets which GPUs, and how large the batches are."""

    def decide(self, jobs: Sequence[Job], nodes: int, gpus_per_node: int) -> Mapping[str, Nodes]:
        """The node of each GPU, by job; jobs that are left out wait.

        Args:
            jobs: Those that have arrived and have not ended, in the order of the workload.
        """
        ...

    def batch(self, job: Job, placement: Placement) -> Batch:
        """The batch of a job that is on this placement, at the beginning of an epoch or after a change."""
        ...

    def trained(self, job: Job) -> None:
        """The job trains at its placement, in its epoch, with its batch: a moment to measure."""
        ...


class PolluxWorld:
    """Runs a workload under a policy.

    Args:
        jobs: The workload, in order of submission.
        tables: By model; every job's is among them.
        policy: Who decides.
        nodes: Number of nodes.
        gpus_per_node: GPUs on each; placements of up to four were measured.
        keep_timeline: Remember who was on which GPU when.
        progress: Called with the number of jobs that have ended, now and then.
    """

    def __init__(
        self,
        jobs: Iterable[TraceJob],
        tables: Mapping[str, Application],
        policy: Policy,
        *,
        nodes: int = 16,
        gpus_per_node: int = 4,
        keep_timeline: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.results = Results(nodes * gpus_per_node, keep_timeline=keep_timeline)
        self.jobs = [
            Job(job, tables[job.model], Outcome(job.job_id, job.submit_s, job.gpus))
            for job in sorted(jobs, key=lambda job: job.submit_s)
        ]
        self.results.outcomes.extend(job.outcome for job in self.jobs)
        self._policy = policy
        self._nodes, self._gpus_per_node = nodes, gpus_per_node
        self._free = {f"n{node}g{gpu}" for node in range(nodes) for gpu in range(gpus_per_node)}
        self._progress = progress

    def run(self) -> Results:
        """Let time pass until all jobs have ended."""
        began = time.perf_counter()
        coming, active, now = self.jobs[::-1], list[Job](), 0.0
        while coming or active:
            for job in active:
                self._advance(job, now)
            ended = [job for job in active if job.outcome.end_s is not None]
            active = [job for job in active if job.outcome.end_s is None]
            for job in ended:
                self._leave(job, job.outcome.end_s or now)
                self.results.jobs += 1
                self._progress(self.results.jobs)
            now += INTERVAL_S
            while coming and coming[-1].trace.submit_s <= now:
                self.results.waits(coming[-1].trace.submit_s, 1)
                active.append(coming.pop())
            if active:
                self._decide(active, now)
        self.results.wall_s = time.perf_counter() - began
        self.results.end_s = now
        return self.results

    def _advance(self, job: Job, now: float) -> None:
        """A minute passes for a job."""
        if not job.placement:
            return
        lost = min(job.restart_s, INTERVAL_S)
        job.restart_s -= lost
        now, left = now + lost, INTERVAL_S - lost
        trained = 0.0
        while left > 0 and job.outcome.end_s is None:
            self._policy.trained(job)
            goodput = job.application.goodput(job.placement, job.batch, job.epoch)
            boundary = job.application.ends[job.epoch]
            if job.progress + goodput * left < boundary:
                job.progress += goodput * left
                trained += left
                break
            taken = float(round((boundary - job.progress) / goodput))
            job.progress = boundary
            job.epoch += 1
            now, left, trained = now + taken, left - taken, trained + taken
            if job.epoch == job.application.epochs:
                job.outcome.end_s = now
            else:
                job.batch = self._policy.batch(job, job.placement)
        job.outcome.trained_s += trained
        self.results.busy_device_s += trained * job.gpus

    def _decide(self, active: Sequence[Job], now: float) -> None:
        began = time.perf_counter()
        found = self._policy.decide(active, self._nodes, self._gpus_per_node)
        self.results.decided(time.perf_counter() - began)
        used = Counter(node for nodes in found.values() for node in nodes)
        if used and (max(used.values()) > self._gpus_per_node or not 0 <= min(used) <= max(used) < self._nodes):
            raise RuntimeError(f"the policy hands out GPUs that there are not: {found}")
        changed = [job for job in active if tuple(found.get(job.name, ())) != job.nodes]
        for job in changed:
            self._leave(job, now)
        for job in changed:
            self._place(job, tuple(found.get(job.name, ())), now)

    def _place(self, job: Job, nodes: Nodes, now: float) -> None:
        self.results.waits(now, bool(job.nodes) - bool(nodes))
        job.nodes, job.devices, job.placed_s = nodes, self._take(nodes), now
        job.placement = tuple(len(list(same)) for _, same in groupby(nodes))
        if nodes:
            job.batch = self._policy.batch(job, job.placement)
            job.restart_s = RESTART_S
            job.outcome.starts += 1
            if job.outcome.first_start_s is None:
                job.outcome.first_start_s = now

    def _leave(self, job: Job, now: float) -> None:
        self.results.had(job.devices, job.name, job.placed_s, now, training=True)
        self._free.update(job.devices)
        job.devices = ()

    def _take(self, nodes: Nodes) -> tuple[str, ...]:
        """Names of GPUs on these nodes, the first ones that are free; the rules know only their number."""
        found = []
        for node in nodes:
            names = (f"n{node}g{gpu}" for gpu in range(self._gpus_per_node))
            found.append(next(name for name in names if name in self._free))
            self._free.remove(found[-1])
        return tuple(found)


def batch_as_asked(job: Job, placement: Placement) -> Batch:
    """The batch size of the workload, split among the GPUs."""
    return job.application.fixed(job.trace.batch_size or job.application.initial, sum(placement))
