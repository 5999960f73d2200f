"""Replays of real arrivals: half of the jobs want their deadlines promised, and durations are learned on the way."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prefect_gpu.estimation.online.durations import NINE_IN_TEN, OnlineDurations
from prefect_gpu.papers.from_trace import cluster, request
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.instructions import Instruction, Promise
from prefect_gpu.scheduling.model.jobs import Estimate
from prefect_gpu.scheduling.promises.reach import INTERVAL_REACH
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.traces import TraceJob, read_trace
from prefect_gpu.simulation.world import World

GPUS_PER_NODE = 8
LAUNCHING_S, CHECKPOINT_S = 20.0, 10.0
SLACK = (1.1, 3.0)
"""A deadline is so many times the duration after the submission, by chance between the two."""
WANTS = 0.5
"""The part of the jobs that want a promise; the others want none, and may be stopped."""
LEARNING = 0.2
"""The part of the replay, at its beginning, whose promises are not counted: nothing was learned yet."""


@dataclass(frozen=True)
class Trace:
    """Where arrivals come from.

    Attributes:
        file: End of the file's path.
        load: What its jobs ask for over what there is, in the time in which they arrive.
        jobs: The first so many.
    """

    file: str
    load: float
    jobs: int


@dataclass(frozen=True)
class Outcome:
    """What came of one replay; counted after the time of learning.

    Attributes:
        wanted: Jobs that asked for a promise.
        refused: Of these, those that were refused.
        kept: Of those that were promised, those that were done in time.
        others_s: Mean seconds from submission to end of those that asked for none.
        said_part: Of 100 promises, how many would be kept by what was said of each.
    """

    wanted: int
    refused: int
    kept: int
    others_s: float
    said_part: float

    @property
    def kept_part(self) -> float:
        """Of 100 promises, how many were kept."""
        return 100.0 * self.kept / max(1, self.wanted - self.refused)

    @property
    def refused_part(self) -> float:
        """Of 100 that asked, how many were refused."""
        return 100.0 * self.refused / max(1, self.wanted)


class _Replay(World):
    """Notes the answers."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.promised: dict[str, float] = {}

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, Promise):
            self.promised[instruction.job] = instruction.probability
        super()._carry_out(instruction)


class _Knowledge:
    """What the scheduler is told of durations: the truth, or what the jobs that have ended say.

    Args:
        iterations: Whether it is told how many iterations a job has: that says nearly all, where traces have it.
    """

    def __init__(self, jobs: Iterable[TraceJob], *, exact: bool, iterations: bool) -> None:
        self._jobs = {
            job.job_id: job if iterations else replace(job, iterations=None, iteration_s=None) for job in jobs
        }
        self._exact = exact
        self._learned = OnlineDurations()

    def told(self, model: JobModel) -> Estimate:
        if self._exact:
            service_s, high_s = model.service_s, model.service_s
        else:
            found = self._learned.estimate(self._jobs[model.id])
            service_s = found.duration_s
            high_s = service_s * (found.high_s / service_s) ** (INTERVAL_REACH / NINE_IN_TEN)
        return Estimate(
            service_s=service_s,
            service_high_s=high_s,
            launching_s=LAUNCHING_S,
            checkpoint_s=CHECKPOINT_S,
            restart_s=CHECKPOINT_S,
        )

    def finished(self, model: JobModel) -> Iterator[tuple[str, Estimate]]:
        self._learned.finished(self._jobs[model.id], model.service_s)
        return iter(())


def jobs_of(traces: Path, trace: Trace) -> list[TraceJob]:
    """The jobs of a trace that need devices, in order."""
    found = sorted(path for path in traces.rglob(Path(trace.file).name) if path.as_posix().endswith(trace.file))
    if not found:
        raise FileNotFoundError(f"--traces {traces} holds no {trace.file}: see --help for where it is public")
    jobs = [job for job in read_trace(found[0]) if job.gpus > 0 and job.duration_s > 0]
    return jobs[: trace.jobs]


def nodes_for(jobs: Sequence[TraceJob], load: float) -> int:
    """How many nodes make that load, and hold the largest job."""
    span_s = max(1.0, jobs[-1].submit_s - jobs[0].submit_s)
    wanted = sum(job.gpus * job.duration_s for job in jobs) / span_s / load / GPUS_PER_NODE
    return max(round(wanted), -(-max(job.gpus for job in jobs) // GPUS_PER_NODE))


def replay(jobs: Sequence[TraceJob], nodes: int, *, exact: bool, iterations: bool = False, seed: int = 0) -> Outcome:
    """Replay arrivals.

    Args:
        exact: Whether the durations are known.
        iterations: Else, whether the numbers of iterations are.
        seed: Of the deadlines, and of who wants them.
    """
    chance = random.Random(seed)
    models, due = [], {}
    for job in jobs:
        wants, slack = chance.random() < WANTS, chance.uniform(*SLACK)
        asked = request(job)
        if wants:
            due[job.job_id] = job.submit_s + slack * (job.duration_s + LAUNCHING_S)
            asked = replace(asked, deadline_at=due[job.job_id], promise=True)
        models.append(
            JobModel(
                job.job_id,
                job.submit_s,
                job.duration_s,
                asked,
                launching_s=LAUNCHING_S,
                checkpoint_s=CHECKPOINT_S,
                kind=job.model,
            )
        )
    knowledge = _Knowledge(jobs, exact=exact, iterations=iterations)
    world = _Replay(
        cluster(nodes, GPUS_PER_NODE),
        models,
        "adaptive",
        abilities=Abilities(Preemption.GRACEFUL, cores=True, shares=True),
        estimate=knowledge.told,
        finished=knowledge.finished,
    )
    results = world.run()
    counted = {job.job_id for job in jobs[int(LEARNING * len(jobs)) :]}
    ends = {one.job: one.end_s for one in results.outcomes if one.end_s is not None}
    wanted = [name for name in due if name in counted]
    promised = [name for name in wanted if name in world.promised]
    kept = sum(1 for name in promised if name in ends and ends[name] <= due[name])
    others = [
        one.jct_s for one in results.outcomes if one.job in counted and one.job not in due and one.end_s is not None
    ]
    said = 100.0 * sum(world.promised[name] for name in promised) / max(1, len(promised))
    return Outcome(len(wanted), len(wanted) - len(promised), kept, sum(others) / max(1, len(others)), said)
