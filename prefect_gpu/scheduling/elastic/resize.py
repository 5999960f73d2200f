"""F-scheduling (Seo, 2020), bound to the scheduler: elastic jobs get as many devices as it pays to give them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

from prefect_gpu.scheduling.allocation.base import Action
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.elastic.listing1 import (
    PROTECTED_LAUNCHES,
    ElasticJob,
    assign,
    throughput,
    worth_applying,
)
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.placement.granting import grant
from prefect_gpu.scheduling.preemption.minimum_runtime import left_alone_until
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.scheduling.state.fits import any_will_do
from prefect_gpu.scheduling.state.state import State
from prefect_gpu.units import plural

_DEPTH = 64


def is_elastic(job: Job) -> bool:
    """Whether the job can use a varying number of devices of one node, and its throughput on them is known."""
    return job.request.is_resizable and any(job.estimate.throughput)


@dataclass
class _Plan:
    """What one node could do.

    Attributes:
        free: Devices that nobody is on.
        resizable: Elastic jobs that run there and may get another number of devices now.
        left: Devices that are left if each of ``resizable`` and ``admitted`` has its minimum.
        kept: Devices that are left to waiting jobs that are not elastic.
    """

    node: Node
    free: int
    resizable: list[Job] = field(default_factory=list)
    left: int = 0
    kept: int = 0
    admitted: list[Job] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Devices to hand out to elastic jobs."""
        return self.free - self.kept + sum(_count(job) for job in self.resizable)


class Resize(Action):
    """Listing 1 on each node, with its guards; all other jobs are left to the actions after it.

    Each waiting job, in order, is admitted to a node that has its minimum left if the elastic jobs there shrink to
    theirs: elastic ones where most is left, others where least is. Then the devices of each node are handed out to its
    elastic jobs, and the new numbers are applied if this lets a waiting job start, or raises the sum of throughputs by
    enough. A job that has just been launched is left alone for a while.

    A job that shrinks keeps the first of its devices; one that grows keeps all. One whose devices are not needed keeps
    them, and is spared its restart, if the others do nearly as well.
    """

    def act(self, decision: Decision) -> bool:
        """See the class."""
        state = decision.state
        elastic = [job for job in state.running.values() if job.request.max_gpus is not None and is_elastic(job)]
        waiting = any(
            is_elastic(line.entries[0][1]) for line in state.queue_of_waiting.lines() if line.request.max_gpus
        )
        plans = self._plans(decision, elastic) if elastic or waiting else {}
        if plans and self._admit(decision, plans):
            for plan in plans.values():
                if plan.resizable or plan.admitted:
                    self._apply(decision, plan)
        return False

    # -- planning -------------------------------------------------------------------------------------------------

    def _plans(self, decision: Decision, elastic: list[Job]) -> dict[str, _Plan]:
        state = decision.state
        plans = {name: _Plan(node, state.free_on(name)) for name, node in state.nodes.items()}
        for job in elastic:
            plan = plans.get(job.placement.node) if job.placement else None
            if plan is None or not set(job.placement.devices) <= {device.id for device in plan.node.devices}:  # type: ignore[union-attr]
                continue
            if (
                _elastic_job(job, plan.node).f(_count(job)) > 0
                and any_will_do(job, plan.node, state)
                and decision.may_stop(job)
                and self._resizable(job, decision)
            ):
                plan.resizable.append(job)
        for plan in plans.values():
            least = sum(_minimum(job, plan.node) or 0 for job in plan.resizable)
            plan.left = plan.room - least
        return plans

    def _resizable(self, job: Job, decision: Decision) -> bool:
        """Whether the job trains and is protected no more; else, when to look again."""
        if job.status is not Status.TRAINING or decision.state.successor(job.id) is not None:
            return False
        until = left_alone_until(job, math.inf)
        if until > decision.now:
            decision.look_again_at(until)
        return until <= decision.now

    def _admit(self, decision: Decision, plans: dict[str, _Plan]) -> bool:
        """Give waiting jobs, in order, their minimum. False: leave it all to the other allocation this time."""
        state = decision.state
        more: dict[str, int] = {}
        given: Counter[str] = Counter()  # devices by owner
        for _, job in islice(decision.walk(), _DEPTH):
            request = job.request
            if state.limit_on(job.queue, more) is not None or request.gpus == 0:
                continue
            if decision.kept_back(request, given) is not None:
                continue
            if request.spans or request.workers > 1:
                return False  # what it leaves free is not known here
            found = self._node_for(job, plans, state)
            if found is None:
                if job.impatient:
                    return False  # devices are kept for it
                continue
            plan, least = found
            plan.left -= least
            if is_elastic(job):
                plan.admitted.append(job)
            else:
                plan.kept += least
            more[job.queue] = more.get(job.queue, 0) + 1
            given[request.owner] += least
        return True

    @staticmethod
    def _node_for(job: Job, plans: dict[str, _Plan], state: State) -> tuple[_Plan, int] | None:
        best: tuple[tuple[bool, int], _Plan, int] | None = None
        elastic = is_elastic(job)
        for plan in plans.values():
            least = _minimum(job, plan.node) if elastic else job.request.gpus
            if least is None or plan.left < least or not any_will_do(job, plan.node, state):
                continue
            # Nobody shrinks for a job that finds free devices: it would be started there.
            preference = (False, plan.left) if elastic else (plan.free - plan.kept >= least, -plan.left)
            if best is None or preference > best[0]:
                best = preference, plan, least
        return best[1:] if best else None

    # -- applying -------------------------------------------------------------------------------------------------

    def _apply(self, decision: Decision, plan: _Plan) -> None:
        jobs = plan.resizable + plan.admitted
        known = [_elastic_job(job, plan.node) for job in jobs]
        before = {job.id: _count(job) for job in plan.resizable}
        after = self._assign(known, before, plan)
        if len(after) < len(jobs):
            return
        makes_room = plan.kept > plan.free
        if not makes_room and not worth_applying(known, before, after):
            return
        state, sharing = decision.state, decision.sharing
        by_change = sorted(jobs, key=lambda job: after[job.id] - before.get(job.id, 0))  # first those that shrink
        for job in sorted(by_change, key=lambda job: job.id in before, reverse=True):
            count = after[job.id]
            own = job.placement.devices if job.placement else ()
            if count == len(own) or not decision.may_have(job, count):
                continue
            new = [device.id for device in state.free_devices(plan.node.id)][: max(0, count - len(own))]
            taken = {*own[:count], *new}
            if len(taken) < count:
                continue  # two runs were found on some of the devices: there are fewer than both have
            devices = tuple(device.id for device in plan.node.devices if device.id in taken)
            place = grant(job, plan.node, devices, state, sharing)
            if job.placement is None:
                words = f"{plural(count, 'device')} {'gives' if count == 1 else 'give'} the largest total throughput"
                decision.launch(job, place, words)
            elif count < len(own):
                decision.move(
                    job, place, f"it keeps {count} of its {len(own)} devices, as other runs gain more from the rest"
                )
            else:
                decision.move(job, place, f"{count} devices make it faster than {len(own)}")

    def _assign(self, jobs: list[ElasticJob], before: dict[str, int], plan: _Plan) -> dict[str, int]:
        """Listing 1; then jobs that keep what they have if the others can do nearly as well without their restart."""
        after = assign(jobs, plan.room)
        if not plan.admitted or len(after) < len(jobs):
            return after
        free, kept, by_id = plan.room, dict[str, int](), {job.id: job for job in jobs}
        for name in sorted(before, key=lambda name: by_id[name].f(before[name]), reverse=True):
            one = by_id[name]
            rest = [job for job in jobs if job.id != name and job.id not in kept]
            if after[name] == before[name] or free - before[name] < sum(job.minimum for job in rest):
                continue
            trial = {**assign(rest, free - before[name]), **kept, name: before[name]}
            if len(trial) < len(jobs):
                continue
            lost = throughput(by_id, after) - throughput(by_id, trial)
            if lost * PROTECTED_LAUNCHES < one.f(before[name]):
                kept[name], after = before[name], trial
                free -= before[name]
        return after


class Protection(Reaction):
    """Looks again when an elastic job may be resized; to be composed with :class:`Resize` or ``ResizeGangs``."""

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """Note when the protection of a job that begins to train ends."""
        if isinstance(event, ev.PhaseEntered) and event.status is Status.TRAINING:
            job = decision.state.jobs[event.job]
            if job.request.is_elastic and any(job.estimate.throughput):
                decision.look_again_at(left_alone_until(job, math.inf))
        return False


def _count(job: Job) -> int:
    return len(job.placement.devices) if job.placement else 0


def _elastic_job(job: Job, node: Node) -> ElasticJob:
    most = min(job.request.max_gpus or job.request.gpus, max(len(node.devices), job.request.gpus))
    return ElasticJob(job.id, job.request.gpus, most, (0.0, *job.estimate.throughput))


def _minimum(job: Job, node: Node) -> int | None:
    """The fewest devices that the job can run on there, or None."""
    one = _elastic_job(job, node)
    return next((n for n in range(one.minimum, min(one.maximum, len(node.devices)) + 1) if one.f(n) > 0), None)
