"""The world of ElasticFlow's simulator: jobs with deadlines on a number of GPUs, without placement.

A decision is taken when a job arrives, when one ends, or when the policy wishes for one, and no sooner than a minute
after the one before. It gives every job a number of GPUs. A start or another number costs a job seconds in which it has
its GPUs and does not train; a stop costs nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prefect_gpu.papers.elasticflow.speeds import Speeds
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.run import Outcome
from prefect_gpu.simulation.traces import TraceJob

INTERVAL_S = 60.0
"""Seconds between two decisions, at least."""
EVENT_S = 7.0
"""What a decision costs each job that runs, in the authors' charging."""
_ROUNDING_S = 1e-6
CHARGING = ("change", "event")
"""``change``: starts and resizes cost; ``event``: each decision costs every running job, too."""


def change_s(gpus: int) -> float:
    """Seconds that a start or resize to so many GPUs costs."""
    return 7.0 + 2.0 * (math.log2(gpus) + 1.0)


@dataclass(eq=False)
class Job:
    """A job as it is now.

    Attributes:
        speed: Iterations per second by number of GPUs.
        work: Iterations that are left.
        gpus: GPUs that it has.
        lost_s: Seconds until it trains.
    """

    trace: TraceJob
    speed: Mapping[int, float]
    outcome: Outcome
    work: float
    gpus: int = 0
    lost_s: float = 0.0
    since_s: float = 0.0
    devices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As in the trace."""
        return self.trace.job_id

    @property
    def deadline_s(self) -> float:
        """When it should have ended."""
        deadline_s = self.trace.deadline_s
        return math.inf if deadline_s is None else deadline_s

    def left_s(self) -> float:
        """Seconds until it ends with the GPUs that it has."""
        return self.lost_s + self.work / self.speed[self.gpus] if self.gpus else math.inf


@dataclass(frozen=True)
class Decided:
    """What a policy has decided.

    Attributes:
        gpus: By job; jobs that are left out have none.
        refused: Jobs that will never run.
        wish_s: When the policy wants to decide again, at the latest.
    """

    gpus: Mapping[str, int]
    refused: Sequence[str] = field(default=())
    wish_s: float = math.inf


class Policy(Protocol):
    """Who gets how many GPUs, and who is refused."""

    def decide(self, now: float, jobs: Sequence[Job], gpus: int) -> Decided:
        """Decide.

        Args:
            jobs: Those that have arrived, have not ended, and were not refused, in the order of their arrival.
            gpus: All that there are.
        """
        ...


class ElasticFlowWorld:
    """Runs a trace under a policy.

    Args:
        jobs: With deadlines, models, batch sizes and iterations.
        speeds: By model and batch size.
        policy: Who decides.
        gpus: Number of GPUs.
        charging: One of :data:`CHARGING`.
        names: Of the GPUs, if it is to be remembered who was on which of them when.
        progress: Called with the number of jobs that have ended, now and then.

    Attributes:
        refused: The jobs that never run.
    """

    def __init__(
        self,
        jobs: Iterable[TraceJob],
        speeds: Speeds,
        policy: Policy,
        *,
        gpus: int,
        charging: str = "change",
        names: Sequence[str] = (),
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.results = Results(gpus, keep_timeline=bool(names))
        self.refused: set[str] = set()
        self.jobs = [
            Job(
                job,
                {size: speed for size, speed in speeds[job.model, job.batch_size or 0].items() if size <= gpus},
                Outcome(job.job_id, job.submit_s, job.gpus),
                float(job.iterations or 0),
            )
            for job in sorted(jobs, key=lambda job: job.submit_s)
        ]
        self.results.outcomes.extend(job.outcome for job in self.jobs)
        self._policy, self._gpus, self._charging = policy, gpus, charging
        self._free = [*names][::-1]
        self._progress = progress

    @property
    def satisfied(self) -> float:
        """Part of all jobs that ended by their deadlines."""
        return len(self.in_time()) / len(self.jobs) if self.jobs else 1.0

    def in_time(self) -> set[str]:
        """The jobs that ended by their deadlines."""
        return {job.name for job in self.jobs if (job.outcome.end_s or math.inf) <= job.deadline_s}

    def attainable(self) -> set[str]:
        """The jobs that would end by their deadlines if they alone had all GPUs: no policy satisfies another."""
        return {
            job.name
            for job in self.jobs
            if job.trace.submit_s
            + min(change_s(size) + (job.trace.iterations or 0) / speed for size, speed in job.speed.items())
            <= job.deadline_s
        }

    def broken(self) -> set[str]:
        """The jobs that were not refused and have not ended by their deadlines."""
        return {job.name for job in self.jobs} - self.refused - self.in_time()

    def run(self) -> Results:
        """Let time pass until no job is left."""
        began = time.perf_counter()
        coming, active = self.jobs[::-1], list[Job]()
        now, wish_s, earliest_s = 0.0, math.inf, -math.inf
        while coming or active:
            next_s = min(
                wish_s, coming[-1].trace.submit_s if coming else math.inf, *(now + job.left_s() for job in active)
            )
            if next_s == math.inf:
                break
            then = max(next_s, earliest_s)
            for job in active:
                self._advance(job, now, then)
            now, earliest_s = then, then + INTERVAL_S
            active = [job for job in active if job.outcome.end_s is None]
            while coming and coming[-1].trace.submit_s <= now:
                self.results.waits(coming[-1].trace.submit_s, 1)
                active.append(coming.pop())
            wish_s = self._decide(active, now)
            active = [job for job in active if job.name not in self.refused]
        self.results.unfinished.extend(
            job.name for job in self.jobs if job.outcome.end_s is None and job.name not in self.refused
        )
        self.results.wall_s = time.perf_counter() - began
        self.results.end_s = now
        return self.results

    def _advance(self, job: Job, now: float, then: float) -> None:
        if not job.gpus:
            return
        left_s, seconds = job.left_s(), then - now
        trained_s = max(min(seconds, left_s) - job.lost_s, 0.0)
        job.outcome.trained_s += trained_s
        self.results.busy_device_s += trained_s * job.gpus
        if left_s <= seconds + _ROUNDING_S:
            job.work, job.outcome.end_s = 0.0, min(now + left_s, then)
            self._leave(job, job.outcome.end_s)
            self.results.jobs += 1
            self._progress(self.results.jobs)
        else:
            job.work -= trained_s * job.speed[job.gpus]
            job.lost_s = max(job.lost_s - seconds, 0.0)

    def _decide(self, active: Sequence[Job], now: float) -> float:
        began = time.perf_counter()
        found = self._policy.decide(now, active, self._gpus)
        self.results.decided(time.perf_counter() - began)
        if sum(found.gpus.values()) > self._gpus:
            raise RuntimeError(f"the policy hands out GPUs that there are not: {found.gpus}")
        for name in found.refused:
            self.refused.add(name)
            self.results.waits(now, -1)
        changed = [job for job in active if found.gpus.get(job.name, 0) != job.gpus]
        for job in changed:
            self._leave(job, now)
        for job in active:
            gpus = found.gpus.get(job.name, 0)
            if gpus != job.gpus:
                self._give(job, gpus, now)
            if gpus and self._charging == "event":
                job.lost_s += EVENT_S
        return found.wish_s

    def _give(self, job: Job, gpus: int, now: float) -> None:
        self.results.waits(now, bool(job.gpus) - bool(gpus))
        job.gpus, job.since_s = gpus, now
        job.lost_s = change_s(gpus) if gpus else 0.0
        job.devices = tuple(self._free.pop() for _ in range(gpus if self._free else 0))
        if gpus:
            job.outcome.starts += 1
            if job.outcome.first_start_s is None:
                job.outcome.first_start_s = now

    def _leave(self, job: Job, now: float) -> None:
        self.results.had(job.devices, job.name, job.since_s, now, training=True)
        self._free.extend(job.devices[::-1])
        job.devices = ()
