"""What a run that waits is told of the allocations that are asked for, in Slurm's own words where it gives a reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prefect_gpu.runtime.drivers.base import Coming, Wanted
from prefect_gpu.runtime.drivers.slurm.parts import Part
from prefect_gpu.runtime.drivers.slurm.shapes import Plan, Shape
from prefect_gpu.runtime.drivers.slurm.supply import Supply
from prefect_gpu.units import plural

# Reasons that do not pass by themselves, as the shape asks for what it may not have: what that is.
_FOR_EVER = {
    "PartitionTimeLimit": "its `time` is more than its partition allows",
    "PartitionNodeLimit": "its `nodes` are more than its partition allows",
    "AssocMaxWallDurationPerJobLimit": "its `time` is more than its account allows",
    "QOSMaxWallDurationPerJobLimit": "its `time` is more than its QOS allows",
    "BadConstraints": "no node has its `constraint`",
    "InvalidAccount": "its `account` is none",
    "InvalidQOS": "its `qos` is none",
}


def coming(
    run: Wanted,
    supply: Supply,
    connecting: bool,
    serving: Collection[str],
    unreached: str = "",
    lacking: Sequence[str] = (),
) -> Coming | None:
    """See :meth:`.Driver.coming`.

    Args:
        connecting: Whether agents are expected to connect, or have, and the worker does not know their nodes yet.
        serving: Names of the allocations that take runs. Short ones alone wait for these.
        unreached: Why nodes cannot be reached, in a sentence without a full stop; empty: they can be.
        lacking: Nodes that have fewer devices than the run needs, though their shape asks for enough.
    """
    plan, pilots = supply.plan, supply.pilots.all.values()
    shape = plan.shape_for(run)
    if shape is None:
        return _fits_none(run, plan)
    if unreached:
        return Coming(unreached)
    if supply.pilots.trouble:
        return Coming(supply.pilots.trouble.rstrip("."))
    if supply.trouble:
        return Coming(f"Slurm does not answer: {supply.trouble}".rstrip("."))
    ours = [one for one in pilots if one.record.shape == shape.name and not one.given_back]
    waiting = [pilot.job for pilot in ours if pilot.job is not None and pilot.job.waits]
    if waiting:
        reason = waiting[0].reason
        why = f" for {reason}" if reason not in ("None", "") else ""
        if reason in _FOR_EVER:
            why = f"{why}: {_FOR_EVER[reason]}. Correct the shape, register the block again, and start the worker anew"
        return Coming(f"Slurm's job {waiting[0].id}, an allocation of the shape {shape.name!r}, waits{why}")
    more = len(ours) < shape.maximum
    short = run.expected_s is not None and run.expected_s < plan.worth_s and not plan.one_run
    served = any(one.name in serving for one in ours)
    if (more and not (served and short)) or connecting or any(pilot.job is None for pilot in ours):
        return Coming(f"Slurm is asked for an allocation of the shape {shape.name!r}")
    if lacking and not more:
        have = f"{lacking[0]} has" if len(lacking) == 1 else f"{', '.join(lacking)} have"
        return Coming(
            f"there may be no more allocations of the shape {shape.name!r} now, and {have} fewer GPUs that can be used "
            "than it asks for. The worker's log says why; others are asked for once these have ended"
        )
    return None


def _fits_none(run: Wanted, plan: Plan) -> Coming:
    large_enough = plan.holding(run.request)
    if large_enough:
        longest = max(shape.minutes for shape in large_enough)
        return Coming(
            f"it needs its devices for {run.needs_s:.0f} s, and the shapes that can hold it end after {longest} "
            "minutes: make it preemptible, or give a shape of the block gpu-slurm more time"
        )
    request = run.request
    instances = request.workers + request.servers
    kinds = f" ({' or '.join(request.wants.kinds)})" if request.wants is not None and request.wants.kinds else ""
    cores = f" and {plural(request.cpus, 'core')}" if request.cpus else ""
    memory = f" with {request.gpu_memory_bytes / 2**30:.1f} GiB each" if request.gpu_memory_bytes else ""
    each = f" for each of {instances} instances" if instances > 1 else ""
    asked = f"it asks for {plural(request.gpus, 'device')}{kinds}{memory}{cores}{each}"
    there = "; ".join(map(_words, plan.shapes))
    return Coming(f"{asked}, and no shape of the block gpu-slurm holds that ({there})", possible=False)


def _words(shape: Shape) -> str:
    return f"{shape.name}: {', and '.join(map(_of_part, shape.parts))}"


def _of_part(part: Part) -> str:
    nodes = f"{part.nodes} nodes, each with " if part.nodes > 1 else ""
    of = f" of {part.device_memory_bytes / 2**30:.1f} GiB" if part.device_memory_bytes and part.devices else ""
    kind = f" ({part.gpu_kind})" if part.gpu_kind else ""
    devices = f"{plural(part.devices, 'device')}{kind}{of}"
    return f"{nodes}{devices} and {plural(part.cpus, 'core')}"
