"""A trace in ElasticFlow's world, from its tables: what ``prefect-gpu simulate --world elasticflow`` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from prefect_gpu.papers.elasticflow.earliest import EarliestDeadline
from prefect_gpu.papers.elasticflow.promising import Promising
from prefect_gpu.papers.elasticflow.speeds import Speeds, read_speeds
from prefect_gpu.papers.elasticflow.world import ElasticFlowWorld, Policy
from prefect_gpu.papers.unsuitable import Unsuitable
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.traces import TraceJob

POLICIES: dict[str, Callable[[], Policy]] = {"adaptive": Promising, "edf": EarliestDeadline}
"""By the name of the profile."""


def simulate_elasticflow(
    jobs: Sequence[TraceJob],
    profile: object,
    tables: Path,
    *,
    gpus: int,
    names: Sequence[str] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> Results:
    """Run a trace under one of this world's policies.

    Args:
        jobs: With models, batch sizes, iterations and deadlines.
        profile: ``adaptive``, or ``edf``: the earliest deadline first, each job at its best size if that is free.
        tables: Folder of ElasticFlow's throughputs.
        gpus: How many there are.
        names: Of the GPUs, if it is to be remembered who was on which of them when.

    Raises:
        FileNotFoundError: The tables are not there.
        Unsuitable: The profile is not known, or a job lacks something.
    """
    try:
        if profile not in POLICIES:
            known = ", ".join(POLICIES)
            raise Unsuitable(f"profile={profile!r} is not known in world='elasticflow': choose one of {known}.")
        speeds = read_speeds(tables)
    except ValueError as error:
        raise Unsuitable(str(error)) from error
    check(jobs, speeds, gpus)
    world = ElasticFlowWorld(jobs, speeds, POLICIES[str(profile)](), gpus=gpus, names=names, progress=progress)
    results = world.run()
    results.deadlines = {
        "satisfied_fraction": world.satisfied,
        "attainable_fraction": len(world.attainable()) / len(jobs) if jobs else 1.0,
        "refused": len(world.refused),
        "late": len(world.broken()),
    }
    return results


def check(jobs: Sequence[TraceJob], speeds: Speeds, gpus: int) -> None:
    """Raise Unsuitable unless every job has what this world needs, and could run on so many GPUs."""
    for job in jobs:
        if job.deadline_s is None or not job.iterations:
            raise Unsuitable(
                f"job {job.job_id} has no deadline or no iterations: name a trace of ElasticFlow's experiments."
            )
        sizes = speeds.get((job.model, job.batch_size or 0))
        if not sizes:
            raise Unsuitable(
                f"job {job.job_id} trains {job.model!r} with batch size {job.batch_size}, which the tables lack: "
                "name a folder that has it."
            )
        if min(sizes) > gpus:
            raise Unsuitable(f"job {job.job_id} was measured on {min(sizes)} GPUs and more: name a larger cluster.")
