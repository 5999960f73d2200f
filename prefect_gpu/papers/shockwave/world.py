"""The world of Shockwave's simulator, rule for rule: its authors' schedules give every job's completion time exactly.

Time goes in rounds of two minutes. Who is in a round does as many steps as go into it, or as are left, and the round
ends with the last of them. Who was not in the round before loses 20 s, if it works for nearly the whole round. After
each round every job looks at the epoch in which it is, and may ask for another batch size; it gets it at the end of
its next round and keeps whole epochs. Where on the cluster a job is does not matter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from prefect_gpu.papers.shockwave.batches import LARGEST, critical, steps_of_epoch
from prefect_gpu.papers.shockwave.tables import Pattern, Speed, Tables, Training
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.run import Outcome

ROUND_S = 120.0
RESTART_S = 20.0
_NEARLY_A_ROUND_S = 115.0
_OVERTIME = 1.5  # of its exclusive time: then a job is ended
_EMPTY_ROUNDS = 5  # in a row: then a job is given up


@dataclass(eq=False)
class Job:
    """A job as it is now.

    Attributes:
        batch: Samples of a step.
        steps: Steps in all, of the present batch size.
        done: Steps that it has done, of the present batch size.
        served_s: Seconds for which it has run.
        asks: The batch size that it asks for; None: to keep its own.
        empty_rounds: Rounds in a row in which nothing was left to do.
    """

    trace: Training
    pattern: Pattern
    outcome: Outcome
    batch: int
    steps: int
    speeds: dict[int, float]
    done: int = 0
    served_s: float = 0.0
    asks: int | None = None
    empty_rounds: int = 0
    running: bool = False
    devices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As in the trace."""
        return self.trace.job_id

    @property
    def left_s(self) -> float:
        """Seconds that it has to run, should its batch size stay as it is."""
        return max(0, self.steps - self.done) / self.speeds[self.batch]


class Policy(Protocol):
    """Who is in the next round."""

    def decide(self, jobs: Sequence[Job], now: float, gpus: int) -> Sequence[Job]:
        """Those who run, which need no more than these GPUs.

        Args:
            jobs: Those that have arrived and have not ended, in the order of the trace.
        """
        ...


class ShockwaveWorld:
    """Runs jobs under a policy.

    Args:
        jobs: In order of submission.
        tables: What is known of the jobs; each job's speed and pattern are among it.
        policy: Who decides.
        nodes: Number of nodes.
        gpus_per_node: GPUs on each.
        keep_timeline: Remember who was on which GPU when.
        progress: Called with the number of jobs that have ended, now and then.

    Raises:
        ValueError: A job has no speed or no pattern.
    """

    def __init__(
        self,
        jobs: Iterable[Training],
        tables: Tables,
        policy: Policy,
        *,
        nodes: int = 8,
        gpus_per_node: int = 4,
        keep_timeline: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._gpus = nodes * gpus_per_node
        self.results = Results(self._gpus, keep_timeline=keep_timeline)
        self.jobs = [_job(job, tables) for job in jobs]
        self.results.outcomes.extend(job.outcome for job in self.jobs)
        self._policy = policy
        self._free = [f"n{node}g{gpu}" for node in range(nodes) for gpu in range(gpus_per_node)]
        self._progress = progress

    def run(self) -> Results:
        """Let rounds pass until all jobs have ended, or none is let run any more."""
        began = time.perf_counter()
        coming, active, now, first = self.jobs[::-1], list[Job](), 0.0, True
        while coming or active:
            if not active:
                now = max(now, coming[-1].trace.submit_s)
            while coming and coming[-1].trace.submit_s <= now:
                self.results.waits(coming[-1].trace.submit_s, 1)
                active.append(coming.pop())
            chosen = self._decide(active, now)
            if not chosen and not coming:
                break
            now = self._round(chosen, active, now, first) if chosen else coming[-1].trace.submit_s
            active = [job for job in active if job.outcome.end_s is None]
            first = False
            for job in active:
                job.asks = _asks(job)
        self.results.unfinished = [job.name for job in active]
        self.results.wall_s = time.perf_counter() - began
        self.results.end_s = now
        self._tell_fairness()
        return self.results

    def _decide(self, active: Sequence[Job], now: float) -> Sequence[Job]:
        began = time.perf_counter()
        chosen = self._policy.decide(active, now, self._gpus)
        self.results.decided(time.perf_counter() - began)
        if sum(job.trace.gpus for job in chosen) > self._gpus:
            raise RuntimeError(f"the policy hands out GPUs that there are not: {[job.name for job in chosen]}")
        return chosen

    def _round(self, chosen: Sequence[Job], active: Sequence[Job], now: float, first: bool) -> float:
        """All do their steps; returns when the last one has."""
        before = {job for job in active if job.running}
        for job in active:
            job.running = job in chosen
            if job in before and not job.running:
                self._let_go(job)
                self.results.waits(now, 1)
        end = now
        for job in chosen:
            if job not in before:
                self._start(job, now)
            speed = job.speeds[job.batch]
            steps = min(int(speed * ROUND_S), job.steps - job.done)
            stops = max(now, now + steps / speed)
            self.results.had(job.devices, job.name, now, stops, training=True)
            self._did(job, steps, stops - now, stops, late=not first and job not in before)
            end = max(end, stops)
        return end

    def _did(self, job: Job, steps: int, took_s: float, stops: float, *, late: bool) -> None:
        if late and took_s > _NEARLY_A_ROUND_S:
            steps = int(steps * ((took_s - RESTART_S) / took_s))
            took_s -= RESTART_S
        job.served_s += took_s
        job.outcome.trained_s += took_s
        self.results.busy_device_s += took_s * job.trace.gpus
        if steps <= 0 and took_s <= 0:
            job.empty_rounds += 1
            ended = job.empty_rounds >= _EMPTY_ROUNDS
        else:
            job.empty_rounds = 0
            job.done += steps
            ended = job.done >= job.steps or job.served_s > int(_OVERTIME * job.pattern.exclusive_s)
        _rescale(job)
        if ended:
            job.outcome.end_s = stops
            self._let_go(job)
            self.results.jobs += 1
            self._progress(self.results.jobs)

    def _start(self, job: Job, now: float) -> None:
        self.results.waits(now, -1)
        job.devices = tuple(self._free[: job.trace.gpus])
        del self._free[: job.trace.gpus]
        job.outcome.starts += 1
        if job.outcome.first_start_s is None:
            job.outcome.first_start_s = now

    def _let_go(self, job: Job) -> None:
        self._free.extend(job.devices)
        job.devices = ()

    def _tell_fairness(self) -> None:
        crowd = max(1.0, len(self.jobs) / self._gpus)
        self.results.fairness = [
            job.outcome.jct_s / (job.pattern.exclusive_s * crowd) for job in self.jobs if job.outcome.end_s is not None
        ]


def _job(job: Training, tables: Tables) -> Job:
    pattern = tables.patterns.get(job.job_id)
    speeds = {
        speed.batch: steps_per_s
        for speed, steps_per_s in tables.speeds.items()
        if (speed.model, speed.gpus) == (job.model, job.gpus)
    }
    if pattern is None or job.batch_size not in speeds or job.iterations is None:
        what = f"{Speed(job.model, job.batch_size or 0, job.gpus)}"
        raise ValueError(
            f"job {job.job_id} ({what}) has no speed or no pattern in the tables: give those of its trace."
        )
    outcome = Outcome(job.job_id, job.submit_s, job.gpus)
    return Job(job, pattern, outcome, job.batch_size, job.iterations, speeds)


def _asks(job: Job) -> int | None:
    """The batch size that the job asks for after a round. What it asked for before stays asked for."""
    trace, largest = job.trace, LARGEST.get(job.trace.model, 0)
    epoch = math.ceil(job.done / steps_of_epoch(trace.model, job.batch))
    if trace.batch_size == largest:
        return None
    if trace.mode == "gns" and max(job.pattern.size(epoch), job.pattern.size(epoch + 1)) > job.batch:
        return 2 * job.batch if job.batch != largest else job.asks
    if trace.mode == "accordion" and largest:
        calm = not critical(trace.model, trace.batch_size or 0, epoch)
        if job.batch == trace.batch_size and calm:
            return largest
        if job.batch != trace.batch_size and not calm:
            return trace.batch_size
    return job.asks


def _rescale(job: Job) -> None:
    """At the end of a round: what was asked for before it, if its speed was measured. Epochs stay whole."""
    new, job.asks = job.asks, None
    if new is None or new not in job.speeds:
        return
    old_epoch, new_epoch = (steps_of_epoch(job.trace.model, batch) for batch in (job.batch, new))
    epochs = math.ceil(job.steps / old_epoch)
    steps = math.ceil(job.steps * (1 / (new / job.batch)))
    job.steps = steps if math.ceil(steps / new_epoch) == epochs else epochs * new_epoch
    job.done = math.ceil(job.done / old_epoch) * new_epoch
    job.batch = new
