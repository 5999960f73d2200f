"""Jobs of a trace, simulated on a cluster of equal nodes: in our own world, or in that of another simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect_gpu.papers.patience import without_patience
from prefect_gpu.papers.unsuitable import Unsuitable
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.profiles import Profile, get_profile
from prefect_gpu.simulation.knowledge import Exact, Knowledge, Learned
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.traces import TraceJob
from prefect_gpu.simulation.world import World

WORLDS = ("cluster", "muri", "pollux", "shockwave", "elasticflow", "fgd")
MEMORY_BYTES = 80 * 2**30  # of each device; only jobs that ask for a part of a device need to know
# A job is stopped at once; what that costs is paid when it starts again.
ABILITIES = Abilities(Preemption.INSTANT, gates=True, cores=True, shares=True)


@dataclass(frozen=True)
class Selection:
    """Which jobs of a trace a cluster can run.

    Attributes:
        jobs: Those that it can, in the trace's order.
        too_large: Those that ask for more devices than there are.
        without_gpu: Those that ask for none: they would not wait for anything.
    """

    jobs: list[TraceJob]
    too_large: list[TraceJob]
    without_gpu: list[TraceJob]


def select(jobs: Iterable[TraceJob], devices: int) -> Selection:
    """Sort out the jobs that a cluster of so many devices could never run."""
    found = Selection([], [], [])
    for job in jobs:
        if job.gpus > devices:
            found.too_large.append(job)
        elif job.gpus == 0:
            found.without_gpu.append(job)
        else:
            found.jobs.append(job)
    return found


def cluster(nodes: int, gpus_per_node: int, memory_bytes: int = MEMORY_BYTES) -> tuple[Node, ...]:
    """Equal nodes, whose devices have so much memory.

    Raises:
        ValueError: One of the counts is not positive.
    """
    for name, count in (("nodes", nodes), ("gpus_per_node", gpus_per_node)):
        if count < 1:
            raise ValueError(f"{name}={count} leaves no device: give 1 or more.")
    return tuple(
        Node(f"n{n}", tuple(Device(f"n{n}g{g}", "gpu", memory_bytes) for g in range(gpus_per_node)), ())
        for n in range(nodes)
    )


def request(job: TraceJob) -> Request:
    """What the job asks for: devices wherever they are free, its own unless the trace says that parts are enough."""
    part = 0 < job.gpu_share < 1
    return Request(
        gpus=job.gpus,
        gpu_memory_bytes=int(job.gpu_share * MEMORY_BYTES) if part else None,
        exclusive=not part,
        spans=True,
        preemptible=True,
        owner=job.user,
        priority=job.priority,
        kind=job.model,
    )


def models(jobs: Iterable[TraceJob], restart_cost_s: float = 0.0) -> Iterator[JobModel]:
    """The truth about the jobs, for :class:`~prefect_gpu.simulation.world.World`.

    Args:
        jobs: In order of submission.
        restart_cost_s: Seconds that a job which was stopped needs before it trains again.
    """
    for job in jobs:
        yield JobModel(
            job.job_id,
            job.submit_s,
            job.duration_s,
            request(job),
            restore_s=restart_cost_s,
            queue=job.queue or "default",
            kind=job.model,
        )


def check(world: str, restart_cost_s: float, sharing: bool) -> None:
    """Raise ValueError, in words for people, unless these arguments of :func:`simulate` go together."""
    if world not in WORLDS:
        raise ValueError(f"world={world!r} is not known: choose one of {', '.join(WORLDS)}.")
    if not 0 <= restart_cost_s < math.inf:
        raise ValueError(f"restart_cost_s={restart_cost_s!r} is negative or not finite: give seconds.")
    if world != "cluster" and restart_cost_s:
        raise ValueError(
            f"restart_cost_s={restart_cost_s:g} does not belong into world={world!r}, which has costs of its own: "
            "leave it out, or choose world='cluster'."
        )
    if world != "muri" and sharing:
        raise ValueError("sharing=True needs world='muri', whose rules say how fast sharing jobs are.")
    if world == "fgd":
        raise ValueError("world='fgd' has nodes of its own: call prefect_gpu.papers.fgd.simulation.simulate_fgd.")


def simulate(
    jobs: Sequence[TraceJob],
    profile: Profile | str,
    *,
    nodes: int,
    gpus_per_node: int,
    knowledge: Knowledge | None = None,
    world: str = "cluster",
    tables: Path | None = None,
    restart_cost_s: float = 0.0,
    sharing: bool = False,
    keep_timeline: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Results:
    """Run a trace through a scheduler.

    Args:
        jobs: In order of submission; jobs that the cluster cannot hold never end (see :func:`select`).
        profile: Who decides.
        nodes: Number of nodes.
        gpus_per_node: Devices on each.
        knowledge: What the scheduler is told of the durations; None: the truth.
        world: ``cluster``, or the rules of another simulator: ``muri``, ``pollux``, ``shockwave``, ``elasticflow``.
        tables: What was measured; only in the worlds ``pollux``, where the knowledge is that of speeds, and
            ``shockwave`` and ``elasticflow``, which take none.
        restart_cost_s: Seconds that a stopped job loses when it starts again; only in the world ``cluster``.
        sharing: Whether jobs may share devices as in Muri; only in the world ``muri``.
        keep_timeline: Remember who was on which device when, and how many waited.
        progress: Called with the number of jobs that have ended, now and then.

    Raises:
        ValueError: An argument is out of its range, or does not belong into this world.
        OSError: A table cannot be read.
    """
    hardware = cluster(nodes, gpus_per_node)
    check(world, restart_cost_s, sharing)
    known = knowledge or Exact()
    if world == "muri":
        from prefect_gpu.papers.muri.world import MuriWorld

        if sharing:
            _check_stages(jobs)

        return MuriWorld(
            nodes,
            gpus_per_node,
            jobs,
            profile,
            sharing=sharing,
            estimate=lambda job, service_s: known.submitted(job.job_id, job, service_s),
            finished=lambda job, service_s: known.finished(job.job_id, service_s),
            keep_timeline=keep_timeline,
            progress=progress,
        ).run()
    if world == "pollux":
        from prefect_gpu.papers.pollux.simulation import simulate_pollux

        return simulate_pollux(
            jobs,
            profile,
            "exact" if isinstance(known, Exact) else "learned" if isinstance(known, Learned) else "none",
            tables or Path(),
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            keep_timeline=keep_timeline,
            progress=progress,
        )
    if world == "shockwave":
        from prefect_gpu.papers.shockwave.simulation import simulate_shockwave

        return simulate_shockwave(
            jobs,
            profile,
            tables or Path(),
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            keep_timeline=keep_timeline,
            progress=progress,
        )
    if world == "elasticflow":
        from prefect_gpu.papers.elasticflow.simulation import simulate_elasticflow

        names = [device.id for node in hardware for device in node.devices]
        return simulate_elasticflow(
            jobs,
            profile,
            tables or Path(),
            gpus=len(names),
            names=names if keep_timeline else (),
            progress=progress,
        )
    by_name = {job.job_id: job for job in jobs}
    chosen = get_profile(profile) if isinstance(profile, str) else profile

    def estimate(model: JobModel) -> Estimate:
        service_s = known.submitted(model.id, by_name[model.id], model.service_s)
        return Estimate(service_s=service_s, restart_s=restart_cost_s)

    def finished(model: JobModel) -> Iterator[tuple[str, Estimate]]:
        for name, service_s in known.finished(model.id, model.service_s):
            yield name, Estimate(service_s=service_s, restart_s=restart_cost_s)

    return World(
        hardware,
        models(jobs, restart_cost_s),
        chosen if chosen.most_late else without_patience(chosen),
        abilities=ABILITIES,
        keep_timeline=keep_timeline,
        progress=progress,
        estimate=estimate,
        finished=finished,
    ).run()


def _check_stages(jobs: Iterable[TraceJob]) -> None:
    """Raise Unsuitable unless every job says what its stages take, by which Muri's model knows how fast jobs share."""
    for job in jobs:
        if len(job.stages_s) != 3 or not 0 < (job.iteration_s or sum(job.stages_s)) < math.inf:
            raise Unsuitable(
                f"sharing=True: job {job.job_id} has stages_s={job.stages_s}: give the seconds of its three stages, as "
                "traces of the format muri do."
            )
