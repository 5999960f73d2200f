"""How many allocations there should be: decided from what waits, what there is, and what the operator allows.

Nothing here asks or tells anybody: the same state of affairs always leads to the same decision.

An allocation is worth its start if there is work enough for each of its devices (``Plan.worth_s``). A run of which
nobody knows how long it takes counts as so much work for the devices that it asks for, and so does a longer one as no
more than its own allocation's: two runs of an hour do not get faster by a third allocation, but each has one. Many
short runs thus share few allocations, and long ones do not wait for each other as long as there may be more.

Where each run has an allocation of its own, there is one for each that waits, and it is given back with its run's end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from prefect_gpu.runtime.drivers.base import Wanted
from prefect_gpu.runtime.drivers.slurm.shapes import Plan, Shape

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Held:
    """An allocation that there is, or that was asked for.

    Attributes:
        name: Of the allocation.
        shape: Name of its shape.
        busy: Whether something runs in it.
        idle_s: For how long nobody has needed it.
        left_s: Until its end.
        used: Whether it takes no more runs: it was for one, which has begun, or its node is drained.
    """

    name: str
    shape: str
    busy: bool = False
    idle_s: float = 0.0
    left_s: float = math.inf
    used: bool = False


@dataclass(frozen=True)
class Decision:
    """What is to be done.

    Attributes:
        submit: How many more of each shape, by its name; those that are to be asked for none are left out.
        give_back: Names of allocations that are not needed any more.
    """

    submit: Mapping[str, int] = field(default_factory=dict)
    give_back: tuple[str, ...] = ()


def decide(plan: Plan, waiting: Sequence[Wanted], held: Collection[Held]) -> Decision:
    """See the module.

    Args:
        waiting: Runs that wait for a place, and could start if there was one.
        held: All allocations that are not over.
    """
    submit: dict[str, int] = {}
    give_back: list[str] = []
    work = _work_by_shape(plan, waiting)
    for shape in plan.shapes:
        runs = work.get(shape.name, [])
        done = [one for one in held if one.shape == shape.name and one.used and not one.busy]
        give_back += sorted(one.name for one in done)
        ours = [one for one in held if one.shape == shape.name]
        # One that is about to end is of no use to those who wait, and would keep its successor from them.
        late = [
            one
            for one in ours
            if not one.busy and not one.used and runs and one.left_s < min(run.needs_s for run in runs)
        ]
        give_back += sorted(one.name for one in late)
        ours = [one for one in ours if one not in late and one not in done]
        free = [one for one in ours if not (one.busy or one.used)]
        busy = sum(one.busy and not one.used for one in ours)
        fresh = len(runs) if plan.one_run else _worth(shape, runs, plan.worth_s, busy)
        more = min(max(fresh - len(free), shape.minimum - len(ours)), shape.maximum - len(ours))
        if more > 0:
            submit[shape.name] = more
        spare = min(len(free) - fresh, len(ours) - shape.minimum)
        idle = sorted((one for one in free if one.idle_s >= plan.idle_s), key=lambda one: (-one.idle_s, one.name))
        give_back += [one.name for one in idle[: max(0, spare)]]
    known = {shape.name for shape in plan.shapes}  # the operator may have named others since
    give_back += [one.name for one in held if one.shape not in known and not one.busy and one.idle_s >= plan.idle_s]
    return Decision(submit, tuple(give_back))


def _work_by_shape(plan: Plan, waiting: Sequence[Wanted]) -> dict[str, list[Wanted]]:
    found: dict[str, list[Wanted]] = {}
    for run in waiting:
        if (shape := plan.shape_for(run)) is not None:
            found.setdefault(shape.name, []).append(run)
    return found


def _worth(shape: Shape, runs: Sequence[Wanted], worth_s: float, busy: int) -> int:
    """How many allocations of a shape these runs are worth, beside those that are busy and will take more runs.

    There are as many as the largest run needs. A part of one is asked for if a run of it is long; short runs alone
    wait for what is busy.
    """
    if not runs:
        return 0
    long = short = 0.0  # parts of an allocation's worth
    needed = 1
    for run in runs:
        part = shape.taken(run.request)
        needed = max(needed, math.ceil(part))
        if run.expected_s is None or run.expected_s >= worth_s:
            long += part
        else:
            short += part * run.expected_s / worth_s
    whole = math.ceil(long - _ROUNDING)
    return max(whole + math.floor(max(0.0, short - (whole - long)) + _ROUNDING), needed - busy)
