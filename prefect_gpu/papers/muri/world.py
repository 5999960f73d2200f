"""The world of Muri's simulator (Zhao et al., SIGCOMM 2022), which is Tiresias' with a resource model for sharing.

Decisions are taken only when jobs arrive or end (and when the scheduler asks for one). Stopping, starting and moving
jobs is free, except that at each decision every running job's progress since the one before is shortened by an overhead
of its model. The time of the next end is predicted without that overhead, and the job then does end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prefect_gpu.papers.free_moves import with_free_moves
from prefect_gpu.papers.muri.interleaving import Interleaving
from prefect_gpu.papers.muri.interleaving import Profile as StageTimes
from prefect_gpu.papers.patience import without_patience
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement
from prefect_gpu.scheduling.model.instructions import Hold, Launch, Move, Preempt
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.run import Outcome
from prefect_gpu.simulation.traces import TraceJob

ABILITIES = Abilities(Preemption.INSTANT, free_moves=True)

_MEMORY_BYTES = 16 * 2**30
_SLOWER = 1.015  # what the peer's authors measured their preparation for sharing to cost each iteration
_SIZES = (1, 2, 4, 8, 16, 32)
_OVERHEAD_S: dict[str, tuple[float, ...]] = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
_OTHER_OVERHEAD_S = 10.0


def overhead_s(model: str, gpus: int) -> float:
    """Seconds of progress that a running job of the model loses at each decision."""
    by_size = _OVERHEAD_S.get(model)
    if by_size is None or gpus not in _SIZES:
        return _OTHER_OVERHEAD_S
    return by_size[_SIZES.index(gpus)]


def cluster(nodes: int, gpus_per_node: int) -> tuple[Node, ...]:
    """The peer's cluster: equal nodes, whose cores and memory never run out before their GPUs do."""
    return tuple(
        Node(f"n{n}", tuple(Device(f"n{n}g{g}", "gpu", _MEMORY_BYTES) for g in range(gpus_per_node)), ())
        for n in range(nodes)
    )


def request(job: TraceJob, *, sharing: bool) -> Request:
    """What the job asks for. With sharing, four jobs fit a device's memory: the peer does not model memory."""
    return Request(
        gpus=job.gpus,
        spans=True,
        preemptible=True,
        kind=job.model,
        exclusive=not sharing,
        gpu_memory_bytes=_MEMORY_BYTES // 4 if sharing else None,
    )


def profile_of(job: TraceJob) -> StageTimes:
    """The stages of one iteration of the job, in seconds, as the peer's resource model wants them."""
    load, compute, sync = job.stages_s
    return StageTimes(job.iteration_s or load + compute + sync, load, compute, sync)


def _told(job: TraceJob, service_s: float | None) -> Estimate:
    told = Estimate(service_s=service_s, stages_s=job.stages_s, iteration_s=job.iteration_s or sum(job.stages_s))
    return UNKNOWN if told == UNKNOWN else told


@dataclass(eq=False, slots=True)
class _Job:
    trace: TraceJob
    outcome: Outcome
    total_s: float
    overhead_s: float
    iteration_s: float
    request: Request
    done_s: float = 0.0
    pace: float = 1.0  # service seconds per second
    lost_s: float = 0.0  # seconds that it loses at the next decision, with all that share its devices
    placement: Placement | None = None
    placed_s: float = 0.0


class MuriWorld:
    """Runs a trace through a scheduler under the peer's rules.

    Args:
        nodes: Number of nodes.
        gpus_per_node: GPUs on each.
        jobs: The trace; jobs of the same moment are decided about together.
        profile: Who decides.
        sharing: Whether jobs may share GPUs, at the pace of the peer's resource model.
        estimate: What the scheduler is told of a job's service at its submission: seconds, or None for nothing.
            It gets the job and its true service in seconds.
        finished: Told of each job that has ended: (job, its service in seconds). It gives other jobs of which the
            scheduler is to be told something else from now on: (name, seconds).
        keep_timeline: Remember who was on which device when.
        progress: Called with the number of jobs that have ended, now and then.
    """

    def __init__(
        self,
        nodes: int,
        gpus_per_node: int,
        jobs: Iterable[TraceJob],
        profile: Profile | str,
        *,
        sharing: bool = False,
        estimate: Callable[[TraceJob, float], float | None] = lambda _, service_s: service_s,
        finished: Callable[[TraceJob, float], Iterable[tuple[str, float]]] = lambda _, __: (),
        keep_timeline: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.scheduler = Scheduler(with_free_moves(without_patience(profile)), ABILITIES)
        self.results = Results(nodes * gpus_per_node, keep_timeline=keep_timeline)
        self._cluster = cluster(nodes, gpus_per_node)
        self._trace = sorted(jobs, key=lambda job: job.submit_s)
        self._sharing = sharing
        self._estimate = estimate
        self._finished = finished
        self._progress = progress
        self._jobs: dict[str, _Job] = {}
        self._running: dict[str, _Job] = {}
        self._interleaving = Interleaving()

    def run(self) -> Results:
        """Let time pass until all jobs have ended, or nothing can happen any more."""
        began = time.perf_counter()
        self.scheduler.handle(ev.NodesChanged(self._cluster), 0.0)
        trace, next_job, now = self._trace, 0, 0.0
        next_end = math.inf
        while True:
            due = self.scheduler.next_due()
            arrival = trace[next_job].submit_s if next_job < len(trace) else math.inf
            moment = min(arrival, next_end, math.inf if due is None else max(due, now))
            if moment == math.inf:
                break
            news: list[ev.Event] = [ev.TimePassed()]
            ended = [job for job in self._running.values() if self._ends_by(job, now, moment)]
            self._advance(moment - now)
            now = moment
            for job in ended:
                news.append(ev.JobEnded(job.trace.job_id, "completed"))
                news.extend(self._end(job, now))
            news[0] = ev.Progressed(tuple((name, job.done_s) for name, job in self._running.items()))
            while next_job < len(trace) and trace[next_job].submit_s <= now:
                news.append(self._submit(trace[next_job]))
                next_job += 1
            if len(news) == 1:
                news.append(ev.TimePassed())
            self._decide(ev.Together(tuple(news)), now)
            next_end = min((now + self._left_s(job) for job in self._running.values()), default=math.inf)
        self.results.wall_s = time.perf_counter() - began
        self.results.end_s = now
        self.results.unfinished = sorted(name for name, job in self._jobs.items() if job.outcome.end_s is None)
        return self.results

    @staticmethod
    def _left_s(job: _Job) -> float:
        return (job.total_s - job.done_s) / job.pace

    def _ends_by(self, job: _Job, now: float, moment: float) -> bool:
        return now + self._left_s(job) <= moment + 1e-9

    def _advance(self, seconds: float) -> None:
        for job in self._running.values():
            gained = (seconds - job.lost_s) * job.pace
            if gained > 0:
                job.done_s += gained
            job.outcome.trained_s += seconds
            self.results.busy_device_s += seconds * job.trace.gpus * job.pace

    def _submit(self, trace: TraceJob) -> ev.Event:
        iteration_s = trace.iteration_s or 0.0
        total_s = (trace.iterations or 0) * iteration_s * _SLOWER or trace.duration_s
        outcome = Outcome(trace.job_id, trace.submit_s, trace.gpus)
        self.results.outcomes.append(outcome)
        self.results.waits(trace.submit_s, 1)
        asked = request(trace, sharing=self._sharing)
        lost_s = overhead_s(trace.model, trace.gpus)
        job = _Job(trace, outcome, total_s, lost_s, iteration_s, asked, lost_s=lost_s)
        self._jobs[trace.job_id] = job
        told = _told(trace, self._estimate(trace, total_s))
        return ev.JobSubmitted(trace.job_id, asked, "default", trace.submit_s, trace.submit_s, "", told)

    def _end(self, job: _Job, now: float) -> list[ev.Event]:
        job.outcome.end_s = now
        self._leave(job, now)
        self.results.jobs += 1
        del self._running[job.trace.job_id]
        if self.results.jobs % 100 == 0:
            self._progress(self.results.jobs)
        return [
            ev.JobEstimated(name, _told(self._jobs[name].trace, service_s))
            for name, service_s in self._finished(job.trace, job.total_s)
        ]

    def _leave(self, job: _Job, now: float) -> None:
        if job.placement is not None:
            self.results.had(job.placement.all_devices, job.trace.job_id, job.placed_s, now, training=True)
        job.placement = None

    def _decide(self, event: ev.Event, now: float) -> None:
        began = time.perf_counter()
        instructions = self.scheduler.handle(event, now)
        self.results.decided(time.perf_counter() - began)
        for one in instructions:
            if isinstance(one, Hold):
                continue
            job = self._jobs[one.job]
            if isinstance(one, Launch):
                self._running[one.job] = job
                self.results.waits(now, -1)
                job.placement, job.placed_s = one.placement, now
                job.outcome.starts += 1
                if job.outcome.first_start_s is None:
                    job.outcome.first_start_s = now
            elif isinstance(one, Preempt):
                del self._running[one.job]
                self.results.waits(now, 1)
                self._leave(job, now)
            elif isinstance(one, Move):
                self._leave(job, now)
                job.placement, job.placed_s = one.placement, now
        if self._sharing and instructions:
            self._pace()

    def _pace(self) -> None:
        """Jobs on the same devices take turns: one iteration of each per common cycle; their overheads add up."""
        groups: dict[tuple[str, ...], list[_Job]] = {}
        for job in self._running.values():
            assert job.placement is not None
            groups.setdefault(job.placement.all_devices, []).append(job)
        for group in groups.values():
            lost_s = sum(job.overhead_s for job in group)
            if len(group) == 1:
                group[0].pace, group[0].lost_s = 1.0, lost_s
                continue
            numbers = [self._interleaving.number(profile_of(job.trace)) for job in group]
            cycle = self._interleaving.mixture(numbers).cycle
            for job, number in zip(group, numbers, strict=True):
                job.pace, job.lost_s = self._interleaving.alone(number) / cycle, lost_s
