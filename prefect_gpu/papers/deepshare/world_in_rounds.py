"""A cluster whose jobs share nodes and slow each other down, in rounds: the simulator of DeepShare's authors.

Written from its rules, with two oddities that its figures depend on:

- When a job ends, the job that started next after it misses that round's progress. (A list is changed while it is gone
  through.) ``flaw=False`` leaves this out.
- A job has ended when fewer samples are missing than its ratio times the seconds of a round.

The authors' schedulers put every job on two or four nodes. Where another scheduler puts one on a single node, it has
its speed on the fewest nodes that were measured, and no part in the contention for the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from prefect_gpu.scheduling.interference.sensitivity import FLOOR, Key
from prefect_gpu.simulation.traces import ContentionTable, TraceJob

NODES, GPUS_PER_NODE = 4, 8
ROUND_S = 300.0

_NOWHERE = Key("", 0, 0)


@dataclass(eq=False, slots=True)
class RoundJob:
    """One job.

    Attributes:
        samples: Samples that it trains on.
        speed: Samples per second, spread as it is and alone.
        fewest: Samples per second alone, on the fewest nodes that were measured.
        ran_s: Seconds of rounds in which it made progress.
        nodes: Numbers of the nodes that it is on; empty while it waits.
        ratio: Part of its speed that was left to it in the last round.
        spread: What its speed was measured for; known once it has started.
        worst: Smallest ratio beside one of those that share a node with it now; infinite if none does.
    """

    name: str
    model: str
    gpus: int
    samples: float
    fewest: float
    done: float = 0.0
    ran_s: float = 0.0
    nodes: frozenset[int] = frozenset()
    speed: float = 0.0
    ratio: float = 1.0
    end_s: float | None = None
    spread: Key = _NOWHERE
    worst: float = math.inf

    @property
    def key(self) -> Key:
        """What contention is known for."""
        return Key(self.model, self.gpus, len(self.nodes))

    @property
    def service_s(self) -> float:
        """Seconds that it takes alone on the fewest nodes."""
        return self.samples / self.fewest

    @property
    def done_s(self) -> float:
        """Of these, what is done."""
        return self.done / self.fewest


class RoundCluster:
    """Jobs on nodes, and what a round does to them.

    Args:
        jobs: The jobs; those without a count of samples train for their duration at the speed on the fewest nodes.
        table: Speeds alone, and ratios beside each other.
        nodes: Number of nodes.
        gpus_per_node: GPUs of each.
        round_s: Seconds of a round.
        flaw: Keep the first oddity.

    Raises:
        ValueError: A job's model on its GPUs is not in the table.
    """

    def __init__(
        self,
        jobs: Iterable[TraceJob],
        table: ContentionTable,
        nodes: int = NODES,
        gpus_per_node: int = GPUS_PER_NODE,
        *,
        round_s: float = ROUND_S,
        flaw: bool = True,
    ) -> None:
        self.table = table
        self.now = 0.0
        self.round_s = round_s
        self.gpus = nodes * gpus_per_node
        self.free = [gpus_per_node] * nodes
        self.gpus_per_node = gpus_per_node
        self.jobs = [self._job(job) for job in jobs]
        self.running: list[RoundJob] = []  # in the order of their starts, on which the flaw depends
        self.ratios_sum = 0.0
        self.ratios_count = 0
        self.used: list[float] = []  # part of the GPUs that was in use, by round
        self._flaw = flaw

    def _job(self, job: TraceJob) -> RoundJob:
        spread = self.table.fewest_nodes(job.model, job.gpus)
        if spread is None:
            raise ValueError(f"{job.model} on {job.gpus} GPUs is not in the table: measure it, or leave out the job")
        fewest = self.table.isolated[spread]
        samples = job.duration_s * fewest if job.samples is None else job.samples
        return RoundJob(job.job_id, job.model, job.gpus, samples, fewest)

    def fits(self, gpus: int, nodes: Iterable[int]) -> bool:
        """Whether so many GPUs are free, evenly on these nodes."""
        chosen = list(nodes)
        return bool(chosen) and gpus % len(chosen) == 0 and all(self.free[n] >= gpus // len(chosen) for n in chosen)

    def start(self, job: RoundJob, nodes: Iterable[int]) -> None:
        """Start a job, evenly spread over these nodes."""
        job.nodes = frozenset(nodes)
        job.spread = Key(job.model, job.gpus, len(job.nodes))
        job.speed = self.table.isolated[job.spread] if len(job.nodes) > 1 else job.fewest
        for number in job.nodes:
            self.free[number] -= job.gpus // len(job.nodes)
        job.worst = math.inf
        for other in self._beside(job):
            job.worst = min(job.worst, self.table.ratios[job.spread, other.spread])
            other.worst = min(other.worst, self.table.ratios[other.spread, job.spread])
        self.running.append(job)

    def stop(self, job: RoundJob) -> None:
        """Stop a job; what it has done stays done."""
        for number in job.nodes:
            self.free[number] += job.gpus // len(job.nodes)
        self.running.remove(job)
        for other in self._beside(job):
            ratios = [self.table.ratios[other.spread, third.spread] for third in self._beside(other)]
            other.worst = min(ratios, default=math.inf)
        job.nodes = frozenset()

    def ratio(self, job: RoundJob) -> float:
        """Part of its speed alone that a running job has now: the worst of those that share a node with it counts."""
        return 1.0 if job.worst == math.inf else max(FLOOR, job.worst)

    def _beside(self, job: RoundJob) -> list[RoundJob]:
        """The running jobs that share a node with this one and communicate as it does: those on several nodes."""
        if len(job.nodes) == 1:
            return []
        own = job.nodes
        sharing = [other for other in self.running if not own.isdisjoint(other.nodes)]
        return [other for other in sharing if other is not job and len(other.nodes) > 1]

    def advance(self) -> tuple[list[RoundJob], list[RoundJob]]:
        """Let a round pass.

        Returns:
            (jobs that have ended, running jobs that made progress).
        """
        for job in self.running:
            job.ratio = self.ratio(job)
            self.ratios_sum += job.ratio
        self.ratios_count += len(self.running)
        self.used.append(sum(job.gpus for job in self.running) / self.gpus)
        self.now += self.round_s
        ended: list[RoundJob] = []
        gained: list[RoundJob] = []
        misses = False
        for job in self.running:
            if misses:
                misses = False
                continue
            job.done += job.speed * job.ratio * self.round_s
            job.ran_s += self.round_s
            left = job.samples - job.done
            if left <= 0 or left < job.ratio * self.round_s:
                job.end_s = self.now
                ended.append(job)
                misses = self._flaw
            else:
                gained.append(job)
        for job in ended:
            self.stop(job)
        return ended, gained

    @property
    def mean_ratio(self) -> float:
        """Mean part of their speed that jobs had, over jobs and rounds."""
        return self.ratios_sum / self.ratios_count if self.ratios_count else 1.0

    @property
    def mean_used(self) -> float:
        """Mean part of the GPUs that was in use, over rounds."""
        return sum(self.used) / len(self.used) if self.used else 0.0
