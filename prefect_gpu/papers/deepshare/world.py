"""The world of DeepShare's simulator (Ryu & Eo, 2023), driving our scheduler.

All jobs wait at 0. The scheduler is asked at the beginning of each round, and is told then who has ended, how far the
others have come, and how much each was slowed down. Stopping and starting are free.

Attained service differs in one point: here it is the time for which a job has held its devices, there it leaves out the
rounds in which the job made no progress because of the flaw (see :mod:`~prefect_gpu.papers.deepshare.world_in_rounds`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from prefect_gpu.papers.deepshare.world_in_rounds import GPUS_PER_NODE, NODES, ROUND_S, RoundCluster, RoundJob
from prefect_gpu.papers.free_moves import with_free_moves
from prefect_gpu.papers.from_trace import cluster
from prefect_gpu.papers.patience import without_patience
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.instructions import Hold, Launch, Move, Preempt
from prefect_gpu.scheduling.model.jobs import Estimate, Request, Status
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.run import Outcome
from prefect_gpu.simulation.traces import ContentionTable, TraceJob

ABILITIES = Abilities(Preemption.INSTANT, free_moves=True)

_MEMORY_BYTES = 12 * 2**30


@dataclass(frozen=True)
class Figures:
    """What the peer's authors compare by.

    Attributes:
        running_s: Mean seconds for which a job ran: what the peer prints as JCT.
        completion_s: Mean seconds from the beginning to a job's end.
        p90_s: The 90th percentile of the same.
        makespan_s: Until the last job's end.
        ratio: Mean part of their speed that jobs had, over jobs and rounds.
        used: Mean part of the GPUs in use, over rounds.
    """

    running_s: float
    completion_s: float
    p90_s: float
    makespan_s: float
    ratio: float
    used: float


class DeepShareWorld:
    """Runs a job set through a scheduler under the peer's rules.

    Args:
        jobs: The jobs; when they are submitted does not matter.
        table: Speeds alone, and ratios beside each other: the truth of this world.
        profile: Who decides.
        nodes: Number of nodes.
        gpus_per_node: GPUs of each.
        round_s: Seconds of a round.
        flaw: Whether a job misses a round's progress when the one before it ends, as in the peer's world.
    """

    def __init__(
        self,
        jobs: Iterable[TraceJob],
        table: ContentionTable,
        profile: Profile | str,
        *,
        nodes: int = NODES,
        gpus_per_node: int = GPUS_PER_NODE,
        round_s: float = ROUND_S,
        flaw: bool = True,
    ) -> None:
        self.scheduler = Scheduler(with_free_moves(without_patience(profile)), ABILITIES)
        self.cluster = RoundCluster(jobs, table, nodes, gpus_per_node, round_s=round_s, flaw=flaw)
        self.results = Results(nodes * gpus_per_node)
        self._nodes = cluster(nodes, gpus_per_node, _MEMORY_BYTES)
        # Numbered names, because ties of jobs that arrive together are decided by name.
        self._jobs = {f"{at:06d}": job for at, job in enumerate(self.cluster.jobs)}
        self._names = {job: name for name, job in self._jobs.items()}
        self._outcomes: dict[RoundJob, Outcome] = {}

    def run(self) -> Results:
        """Let rounds pass until all jobs have ended, or none can start any more."""
        began = time.perf_counter()
        news: list[ev.Event] = [ev.NodesChanged(self._nodes)]
        news += [self._submit(name, job) for name, job in self._jobs.items()]
        rounds = self.cluster
        while True:
            self._decide(news)
            if not rounds.running:
                break
            for job in rounds.running:
                self.results.held_device_s += job.gpus * rounds.round_s
            ended, gained = rounds.advance()
            news = []
            for job in ended:
                self._outcomes[job].end_s = rounds.now
                self._outcomes[job].trained_s = job.ran_s
                self.results.jobs += 1
                news.append(ev.JobEnded(self._names[job], "completed"))
            news.append(ev.Progressed(tuple((self._names[job], job.done_s) for job in rounds.running)))
            news += [ev.SlowdownMeasured(self._names[job], 1 / job.ratio) for job in gained]
            news.append(ev.TimePassed())
        self.results.wall_s = time.perf_counter() - began
        self.results.end_s = rounds.now
        self.results.unfinished = sorted(job.name for job in rounds.jobs if job.end_s is None)
        self.results.training_device_s = self.results.held_device_s
        self.results.busy_device_s = self.results.held_device_s
        return self.results

    def figures(self) -> Figures:
        """The peer's figures, once the world has run."""
        ended = [job for job in self.cluster.jobs if job.end_s is not None]
        count = max(1, len(ended))
        summary = self.results.summary()
        return Figures(
            running_s=sum(job.ran_s for job in ended) / count,
            completion_s=summary["mean_jct_s"],
            p90_s=summary["p90_jct_s"],
            makespan_s=summary["makespan_s"],
            ratio=self.cluster.mean_ratio,
            used=self.cluster.mean_used,
        )

    def _submit(self, name: str, job: RoundJob) -> ev.Event:
        outcome = self._outcomes[job] = Outcome(job.name, 0.0, job.gpus)
        self.results.outcomes.append(outcome)
        asked = Request(gpus=job.gpus, spans=True, preemptible=True, kind=job.model)
        return ev.JobSubmitted(name, asked, "default", 0.0, 0.0, job.name, Estimate(service_s=job.service_s))

    def _decide(self, news: list[ev.Event]) -> None:
        now, began = self.cluster.now, time.perf_counter()
        instructions = self.scheduler.handle(ev.Together(tuple(news)), now)
        self.results.decided(time.perf_counter() - began)
        started: list[ev.Event] = []
        for one in instructions:
            if isinstance(one, Hold):
                continue
            job = self._jobs[one.job]
            if isinstance(one, Preempt | Move):
                self.cluster.stop(job)
            if isinstance(one, Launch | Move):
                self.cluster.start(job, (int(node[1:]) for node in one.placement.nodes))
                outcome = self._outcomes[job]
                outcome.starts += 1
                if outcome.first_start_s is None:
                    outcome.first_start_s = now
                started.append(ev.PhaseEntered(one.job, Status.TRAINING))
        if started:
            self.scheduler.handle(ev.Together(tuple(started)), now)
