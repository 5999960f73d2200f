"""Which cores a running job has, and how many it had before others got some: all changes of cores go through here.

What was taken is remembered on the job (``Job.cores_before``) by who took it, so that each gives back only its own, and
forecasts know it. The job's end, and every stop, wipe it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.state.state import State


def jobs_on(node_id: str, state: State) -> Iterator[Job]:
    """The running jobs that have an instance on a node."""
    return (job for job in state.running.values() if job.placement is not None and node_id in job.placement.nodes)


def flows_on(node_id: str, state: State) -> list[Job]:
    """The running jobs of a node that hold no device, and have their cores there alone."""
    return [job for job in jobs_on(node_id, state) if not job.request.total_gpus and not job.placement.others]  # type: ignore[union-attr]


def free_cores(node_id: str, count: int, state: State, devices: tuple[str, ...] = ()) -> tuple[int, ...]:
    """Up to ``count`` cores of a node that no job is bound to, those near the devices first; ascending."""
    node, load = state.nodes[node_id], state.core_load(node_id)
    free = [core for core in node.cpus if not load.get(core)]
    near = {core for device in devices if state.has_node(device) for core in state.device(device).cores}
    if near:
        free.sort(key=lambda core: (core not in near, core))
    return tuple(sorted(free[:count]))


def resize(job: Job, count: int, decision: Decision, reason: str) -> int:
    """Let a job have so many cores of its node, more of them as far as any are free; by how many that changes it.

    Of fewer, it keeps those to which no other job is bound.
    """
    placement = job.placement
    assert placement is not None
    own, load = placement.cpus, decision.state.core_load(placement.node)
    cpus = tuple(sorted(sorted(own, key=lambda core: load[core])[:count]))
    if count > len(own):
        cpus = tuple(sorted(own + free_cores(placement.node, count - len(own), decision.state, placement.devices)))
    if len(cpus) != len(own):
        decision.set_cores(job, cpus, reason)
    return len(cpus) - len(own)


def take(job: Job, kept: Sequence[int], taker: str, decision: Decision, reason: str) -> bool:
    """Leave a job these of its cores only; whether it has fewer now."""
    assert job.placement is not None
    had = len(job.placement.cpus)
    if len(kept) == had:
        return False
    job.cores_before = {taker: had, **job.cores_before}
    decision.set_cores(job, tuple(sorted(kept)), reason)
    return True


def give_back(job: Job, taker: str, decision: Decision, reason: str, enough: int | None = None) -> None:
    """Let a job have again what a policy took from it, as far as cores are free.

    Args:
        enough: It needs no more than these, whatever it had.
    """
    placement, had = job.placement, job.cores_before.get(taker)
    if had is None or placement is None or placement.node not in decision.state.nodes:
        return
    goal = had if enough is None else min(had, enough)
    missing = goal - len(placement.cpus)
    if missing <= 0 or resize(job, goal, decision, reason) == missing:
        forget(job, taker)


def forget(job: Job, taker: str) -> None:
    """What a policy took from a job is not owed any more."""
    job.cores_before = {name: had for name, had in job.cores_before.items() if name != taker}
