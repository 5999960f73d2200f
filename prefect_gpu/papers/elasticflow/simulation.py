"""A trace in ElasticFlow's world, from its tables: what ``prefect-gpu simulate --world elasticflow`` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from prefect_gpu.papers.elasticflow.earliest import EarliestDeadline
from prefect_gpu.papers.elasticflow.promising import Promising
from prefect_gpu.papers.elasticflow.speeds import Speeds, read_speeds
from prefect_gpu.papers.elasticflow.world import ElasticFlowWorld, Policy, attainable
from prefect_gpu.simulation.traces import TraceJob

POLICIES: dict[str, Callable[[], Policy]] = {"adaptive": Promising, "edf": EarliestDeadline}
"""By the name of the profile."""


def elasticflow_world(
    jobs: Sequence[TraceJob],
    profile: str,
    tables: Path,
    gpus: int,
    *,
    charging: str = "change",
    keep_timeline: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> ElasticFlowWorld:
    """The world, before time passes in it.

    Args:
        jobs: With models, batch sizes, iterations and deadlines.
        profile: ``adaptive``, or ``edf``: the earliest deadline first, each job at its best size.
        tables: Folder of ElasticFlow's throughputs.

    Raises:
        FileNotFoundError: The tables are not there.
        ValueError: The profile is not known, or a job lacks something.
    """
    if profile not in POLICIES:
        raise ValueError(
            f"profile={profile!r} is not known in world='elasticflow': choose one of {', '.join(POLICIES)}."
        )
    speeds = read_speeds(tables)
    check(jobs, speeds)
    return ElasticFlowWorld(
        jobs,
        speeds,
        POLICIES[profile](),
        gpus=gpus,
        charging=charging,
        keep_timeline=keep_timeline,
        progress=progress,
    )


def check(jobs: Sequence[TraceJob], speeds: Speeds) -> None:
    """Raise ValueError unless every job has a deadline, iterations, and a model and batch size that were measured."""
    for job in jobs:
        if job.deadline_s is None or not job.iterations:
            raise ValueError(
                f"job {job.job_id} has no deadline or no iterations: name a trace of ElasticFlow's experiments."
            )
        if (job.model, job.batch_size) not in speeds:
            raise ValueError(
                f"job {job.job_id} trains {job.model!r} with batch size {job.batch_size}, which the tables lack: "
                "name a folder that has it."
            )


def figures(world: ElasticFlowWorld, jobs: Sequence[TraceJob], tables: Path, gpus: int) -> dict[str, float | int]:
    """What came out, after a run: parts of all jobs, and counts."""
    possible = attainable(jobs, read_speeds(tables), gpus)
    return {
        "satisfied_fraction": world.satisfied,
        "attainable_fraction": len(possible) / len(jobs) if jobs else 1.0,
        "refused": len(world.refused),
        "broken": len(world.broken()),
    }
