"""Ours: who starts now and who waits for a nearer place, by what is expected to come of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prefect_gpu.papers.lookahead.course import Course, Member, Sites, course, is_across, stretch, stretch_across
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.allocation.base import Action, why_not
from prefect_gpu.scheduling.allocation.batch import batch_of
from prefect_gpu.scheduling.allocation.reservations import Reservation
from prefect_gpu.scheduling.decision import names
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.placement.gangs import ClusterView
from prefect_gpu.scheduling.state.waiting import Line

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.model.cluster import Placement
    from prefect_gpu.scheduling.state.state import State

_PLANS = 9  # in one decision
_BETTER = 1e-6  # of the sum of two logarithms; less is rounding
_TINY_S = 1e-3
_OVER_DUE = 0.05  # part of its service for which a job that should be over is expected to go on at least


@dataclass(frozen=True)
class _Plan:
    """An order of starts, who must not start across racks, and what is expected to come of it.

    Attributes:
        mean_s: Mean time from submission to end, of those that wait and run.
        last_s: Seconds from now until the last of them has ended.
    """

    order: tuple[Member, ...]
    near: frozenset[str]
    course: Course
    mean_s: float
    last_s: float


class Lookahead(Action):
    """Compares a few plans for the jobs that wait, and follows the one that is expected to come out best.

    A plan is an order (of arrival; most device seconds first; fewest first) and who waits for room in one rack rather
    than start across racks (nobody; those that would take more than ``slow`` times as long across; everybody). What
    would come of it is played through (:mod:`~prefect_gpu.papers.lookahead.course`): how long each trains by its
    estimate, by what it sends, by the links' bandwidths and by who uses them, too.

    1. The best plan is the one with the smallest product of mean completion time and last end, of those that are
       expected to be worse in neither than starting all in order of arrival.
    2. Nobody waits for ever. Each job is promised an end when it comes: the one that is expected if all start in order
       of arrival, and ``delay`` times as far away again. No plan is followed that ends it later, and once starting in
       order of arrival would, it comes first in all plans and nobody passes it. And as soon as somebody has lost
       patience (``Profile.patience_s``), nothing is planned.
    3. Those that the plan starts now are placed by the profile's placement. The free devices on which somebody is to
       start who could have started before, or is late, are kept from jobs that are not planned.

    Jobs that share or span nodes, or whose length nobody knows, are :class:`Backfill`'s. If nothing can be planned it
    is all left to the actions after it. It is planned anew at each decision, so an estimate that was wrong does not
    last.

    Args:
        most_jobs: Jobs in a plan at most, the first in the order.
        slow: See above; 1 is as long as without a link in the way.
        delay: See above.
        budget: Looks at a job or a node in one decision, counted and not timed. Where it does not last for all of them
            a plan has fewer jobs; with a hundred runs about there is none.
    """

    def __init__(self, most_jobs: int = 32, *, slow: float = 1.5, delay: float = 1.0, budget: int = 100_000) -> None:
        self._most_jobs, self._backfill, self._view = most_jobs, Backfill(), ClusterView()
        if slow < 1 or delay < 0 or budget < 1:
            raise ValueError(f"slow={slow}, delay={delay}, budget={budget}: give 1 or more, 0 or more, and 1 or more")
        self._slow, self._delay, self._budget = slow, delay, budget
        self._promised: dict[str, float] = {}  # the latest end of each waiting job, on the clock
        self._stood_back: set[str] = set()  # those that could have started
        self._expected: dict[str, float] = {}  # service of each job as it was estimated before it trained

    def act(self, decision: Decision) -> bool:
        """See the class."""
        state = decision.state
        self._promised = {job: at for job, at in self._promised.items() if job in state.jobs}
        self._expected = {job: at for job, at in self._expected.items() if job in state.jobs}
        self._stood_back = {job for job in self._stood_back if job in state.jobs}
        lines, jobs = self._plannable(decision)
        for job in jobs:
            self._expected[job.id] = job.estimate.service_s or 0.0
        plans = self._plans(jobs, (), decision) if jobs and state.free_count else []
        late = self._late(plans[0], decision.now) if plans else []
        if late:
            plans = self._plans(jobs, late, decision)
        if not plans:
            return False
        best = min((plan for plan in plans if self._fair(plan, plans[0], decision.now)), key=_worth)
        best = best if _worth(best) < _worth(plans[0]) - _BETTER else plans[0]
        if not self._follow(best, decision):
            return False
        kept = self._hold(best, plans[0], lines, late, decision)
        self._backfill.fill(decision, lines, kept)
        return True

    # -- what is known ------------------------------------------------------------------------------------------------

    def _plannable(self, decision: Decision) -> tuple[list[Line], list[Job]]:
        """Lines of which all jobs can be planned, and their first jobs within the limits; none if one is impatient."""
        jobs, impatient = batch_of(decision, self._most_jobs)
        if impatient:
            return [], []
        lines = [
            line for line in decision.state.queue_of_waiting.lines() if all(_known(job) for _, job in line.entries)
        ]
        theirs = {job.id for line in lines for _, job in line.entries}
        chosen = [job for job in jobs if job.id in theirs]
        while chosen and self._effort(chosen, decision.state) > self._budget:
            chosen.pop()
        among = {job.id for job in chosen}
        return [line for line in lines if any(job.id in among for _, job in line.entries)], chosen

    @staticmethod
    def _effort(jobs: Sequence[Job], state: State) -> int:
        """Looks at a job or a node in all plans, at most: an end for each job, and after it all jobs and all nodes."""
        shapes = len({(job.request.workers, job.request.gpus) for job in jobs})
        several = len(jobs) + len(state.running)
        return _PLANS * several * (several + (shapes + 1) * len(state.numbered))

    def _sites(self, state: State) -> Sites:
        topology = self._view.topology(state)
        racks = tuple(topology.racks.tolist())
        nodes = [books.node for books in state.numbered]
        domains, uplinks = [0] * (max(racks) + 1), [math.inf] * (max(racks) + 1)
        for node, rack, domain in zip(nodes, racks, topology.domains.tolist(), strict=True):
            domains[rack] = domain
            if node.uplink_bps > 0:
                uplinks[rack] = min(uplinks[rack], node.uplink_bps)
        known = tuple(0.0 if bps == math.inf else bps for bps in uplinks)
        return Sites(racks, tuple(domains), tuple(node.network_bps for node in nodes), known)

    def _running(self, sites: Sites, decision: Decision) -> list[Member]:
        """Those whose end is expected and who have their devices to themselves; others keep theirs for ever."""
        state, found = decision.state, []
        for job in state.running.values():
            devices = job.placement.all_devices if job.placement else ()
            if not devices or not _known(job) or state.successor(job.id) is not None:
                continue
            if any(not state.has_node(device) or len(state.occupants(device)) > 1 for device in devices):
                continue
            found.append(self._as_far_as_it_is(job, sites, decision))
        return found

    def _as_far_as_it_is(self, job: Job, sites: Sites, decision: Decision) -> Member:
        """A running job with what is left of each of its phases."""
        state, now, estimate = decision.state, decision.now, job.estimate
        service_s, placement = estimate.service_s, job.placement
        assert service_s is not None and placement is not None
        plan = tuple(state.number_of(device) for device in placement.all_devices)
        sent_bps = estimate.sent_bps or 0.0
        there = Member(job.id, len(plan), 1, service_s, 0.0, estimate.saving_s, sent_bps, plan)
        launching_s = 0.0
        if job.status is Status.SAVING:
            service_s = 0.0
        elif job.status is Status.TRAINING:
            pace = stretch(there, sites)
            if service_s == self._expected.get(job.id):
                left = service_s - job.done_s - (job.done(now) - job.done_s) / pace
            else:  # measured meanwhile: where it is, at the pace that it has
                left = (service_s - job.done(now)) / pace
            service_s = left if left > 0.0 else max(-left, _OVER_DUE * service_s)
        else:
            since = now if job.launched_at is None else job.launched_at
            launching_s = abs(since + estimate.launching_s - now)
        return replace(there, service_s=service_s, launching_s=launching_s)

    # -- plans --------------------------------------------------------------------------------------------------------

    def _plans(self, jobs: Sequence[Job], late: Collection[str], decision: Decision) -> list[_Plan]:
        """All plans, that of starting in order of arrival first; none if that would not start everybody.

        Args:
            late: Names of those that come first in all of them, and that nobody passes.
        """
        state, now = decision.state, decision.now
        sites = self._sites(state)
        free = [len(books.free) for books in state.numbered]
        running = self._running(sites, decision)
        waiting = sorted((_member(job) for job in jobs), key=lambda one: one.name not in late)
        came = {job.id: job.submitted_at for job in jobs} | {
            one.name: state.jobs[one.name].submitted_at for one in running
        }
        slowed = frozenset(one.name for one in waiting if stretch_across(one, sites) > self._slow)
        everybody = frozenset(one.name for one in waiting)
        found: list[_Plan] = []
        first, rest = waiting[: len(late)], sorted(waiting[len(late) :], key=_work)
        orders = dict.fromkeys((tuple(waiting), (*first, *reversed(rest)), (*first, *rest)))
        for order, near in itertools.product(orders, dict.fromkeys((frozenset[str](), slowed, everybody))):
            what = course(sites, free, running, order, near, late)
            if what is not None:
                mean_s = sum(now + end - came[name] for name, end in what.ends.items()) / len(what.ends)
                found.append(_Plan(order, near, what, mean_s, max(what.ends.values())))
            elif not found:
                return []
        return found

    def _late(self, first: _Plan, now: float) -> list[str]:
        """Promise an end to those who have none; who would end later than was promised if all start as they came."""
        ends = {name: first.course.ends[name] for name in first.course.starts}
        for name, end in ends.items():
            self._promised.setdefault(name, now + (1.0 + self._delay) * end)
        return [name for name, end in ends.items() if now + end > self._promised[name] * (1.0 + _BETTER)]

    def _fair(self, plan: _Plan, first: _Plan, now: float) -> bool:
        """Whether a plan is expected to be worse for nobody than it may be."""
        if plan.mean_s > first.mean_s * (1.0 + _BETTER) or plan.last_s > first.last_s * (1.0 + _BETTER):
            return False
        ends, at_least = plan.course.ends, first.course.ends
        return all(
            now + ends[name] <= max(at, now + at_least[name]) * (1.0 + _BETTER)
            for name, at in self._promised.items()
            if name in plan.course.starts
        )

    # -- what is done about it ----------------------------------------------------------------------------------------

    def _follow(self, plan: _Plan, decision: Decision) -> bool:
        """Start those that the plan starts now. False if the placement sees it otherwise: it is no plan then."""
        state, starts = decision.state, plan.course.starts
        sites = self._sites(state)
        for member in plan.order:
            if starts[member.name][0] > 0.0:
                continue
            job = state.jobs[member.name]
            placement = decision.placement.place(job, state, decision.sharing)
            if placement is None or (member.name in plan.near and is_across(_numbers(placement, state), sites)):
                return False
            devices = names(placement.all_devices)
            decision.launch(
                job, placement, f"{devices} suit it best; all runs are expected to end within {plan.last_s:.0f} s"
            )
        return True

    def _hold(
        self, plan: _Plan, first: _Plan, lines: Sequence[Line], late: Collection[str], decision: Decision
    ) -> list[Reservation]:
        """Tell the others why they wait. Returns what is to be kept for those that could have started, or are late."""
        state, kept = decision.state, []
        everybody = [(line, job) for line in lines for _, job in line.entries]
        for line, job in everybody:
            if job.id not in plan.course.starts:
                decision.hold(job, "order", "other runs come first")
                continue
            start, nodes = plan.course.starts[job.id]
            if first.course.starts[job.id][0] > 0.0:
                code, reason = why_not(decision, line)
                decision.hold(job, code, reason())
            else:
                self._stood_back.add(job.id)
                end, otherwise = plan.course.ends[job.id], first.course.ends[job.id]
                words = f"it should start in {start:.0f} s and end in {end:.0f} s"
                if end < otherwise:
                    decision.hold(
                        job, "contention", f"{words}; if it started now, it would end {otherwise - end:.0f} s later"
                    )
                else:
                    decision.hold(
                        job,
                        "order",
                        f"{words}; all runs then end in {plan.last_s:.0f} s instead of {first.last_s:.0f} s",
                    )
            if job.id in self._stood_back or job.id in late:
                decision.look_again_at(decision.now + start)
                kept.append(Reservation(job, _free_on(nodes, job.request.gpus, state), decision.now + start))
        return kept


def _known(job: Job) -> bool:
    service_s = job.estimate.service_s
    return service_s is not None and math.isfinite(service_s) and not job.request.shareable


def _member(job: Job) -> Member:
    request, estimate = job.request, job.estimate
    left_s = max(0.0, (estimate.service_s or 0.0) - job.done_s)
    sent_bps = estimate.sent_bps or 0.0
    return Member(job.id, request.workers, request.gpus, left_s, estimate.launching_s, estimate.saving_s, sent_bps)


def _work(member: Member) -> tuple[float, str]:
    """Device seconds."""
    return member.workers * member.gpus * member.service_s, member.name


def _worth(plan: _Plan) -> float:
    """The logarithm of what is to be small."""
    return math.log(max(plan.mean_s, _TINY_S)) + math.log(max(plan.last_s, _TINY_S))


def _numbers(placement: Placement, state: State) -> tuple[int, ...]:
    return tuple(state.number_of(device) for device in placement.all_devices)


def _free_on(nodes: Sequence[int], gpus: int, state: State) -> frozenset[str]:
    """Those of the devices of a plan that are free now."""
    found: set[str] = set()
    for number in set(nodes):
        free = state.free_devices(state.numbered[number].node.id)
        found.update(device.id for device in free[: gpus * nodes.count(number)])
    return frozenset(found)
