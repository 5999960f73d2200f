"""SpeCon, bound to the scheduler: runs that have converged make way for those that still learn fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.placement.granting import grant
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.scheduling.sharing.convergence import (
    STEPS,
    Category,
    Counts,
    GrowthWatch,
    Move,
    Watched,
    choose_host,
    level,
)
from prefect_gpu.scheduling.state.state import State

Leveller = Callable[[Sequence[str], Sequence[Watched], float], list[Move]]

_SOURCE = "speculation"
_WORDS = {Category.PROGRESSING: "learning fast", Category.WATCHING: "slowing down", Category.CONVERGED: "converged"}


class Speculation(Reaction):
    """Watches the losses of runs that share devices, and moves runs or changes their shares as they converge.

    A *host*, where the paper says worker, is a device: runs that share one are those that hold each other up. Only
    runs that share their single device are moved; others, and those that report no loss, count as progressing.

    - Algorithm 1 sorts each run into progressing, watched or converged by the growth of its loss.
    - Algorithm 2 moves a converged run, once, to the host with the lowest score.
    - Ours: hosts are evened out at once, those runs that learn least moving first.
    - Ours, ``favour``: of the runs on a host, those in a later category have a larger share of it.

    While runs wait, no run is moved to an idle device, and nothing is evened out: it is for those who wait.

    Args:
        learners: A converged run asks to be moved if at least so many progressing or watched runs are on its host.
        evens_out: Which runs are moved to even out hosts that are alike: (hosts, runs on them, now) → moves.
        favour: By which factor the share of a run grows with each category. Less than 1 demotes converged runs: what
            learns fast learns faster, and all end later. 1: shares are left alone.

    Raises:
        ValueError: ``favour`` or ``learners`` is out of range.
    """

    def __init__(self, learners: int = 1, *, evens_out: Leveller = level, favour: float = 16.0) -> None:
        if not 0 < favour < math.inf:
            raise ValueError(f"favour is {favour}: give a factor above 0, such as 16, or 1 to leave shares alone")
        if learners < 1:
            raise ValueError(f"learners is {learners}: give at least 1, or there is nobody to make way for")
        self._learners = learners
        self._evens_out = evens_out
        self._favour = favour
        self._watches: dict[str, GrowthWatch] = {}
        self._use: dict[str, float] = {}

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """See the class. True if a run that moved has left a device to those who wait."""
        match event:
            case ev.LossReported(job_id, value):
                job = decision.state.running.get(job_id)
                return job is not None and _looked_after(job, decision.state) and self._learn(job, value, decision)
            case ev.UtilisationMeasured(job_id, utilisation):
                self._use[job_id] = utilisation
            case ev.JobEnded(job_id) | ev.JobWithdrawn(job_id):
                self._watches.pop(job_id, None)
                self._use.pop(job_id, None)
        return False

    def after(self, decision: Decision) -> None:
        """Even out hosts that were left with little to do, and adapt shares to the company."""
        if self._watches:
            self._tidy(decision)

    def _tidy(self, decision: Decision) -> None:
        if not len(decision.state.queue_of_waiting):
            for hosts in self._groups(decision.state):
                self._level(hosts, decision)
        if self._favour != 1.0 and decision.abilities.shares:
            self._share_out(decision)

    # -- Algorithms 1 and 2 ---------------------------------------------------------------------------------------

    def _learn(self, job: Job, value: float, decision: Decision) -> bool:
        state = decision.state
        watch = self._watches.get(job.id)
        if watch is None:
            watch = self._watches[job.id] = GrowthWatch()
        before, free = watch.category, state.free_count
        watch.observe(decision.now, value)
        if watch.confirmed and self._movable(job, decision):
            counts = self._counts(state, _host(job))
            if watch.asks_reallocation(counts.progressing, counts.watching, self._learners):
                self._relocate(job, watch, decision)
        if watch.category is not before:
            self._tidy(decision)
        return state.free_count > free and len(state.queue_of_waiting) > 0

    def _relocate(self, job: Job, watch: GrowthWatch, decision: Decision) -> None:
        state, own = decision.state, _host(job)
        hosts = [
            own,
            *(host for host in self._alike(state, own) if host != own and self._can_take(host, job, decision)),
        ]
        counts = {host: self._counts(state, host) for host in hosts}
        use = {host: sum(self._use.get(other.id, 1.0) for other in state.occupants(host)) for host in hosts}
        chosen = choose_host(own, counts, use)
        watch.migrated_at = decision.now
        if chosen != own:
            scores = [counts[host].score for host in (own, chosen)]
            reason = f"it has converged and moves away: {own} has score {scores[0]:g}, {chosen} {scores[1]:g}"
            self._move(job, chosen, reason, decision)

    def _level(self, hosts: list[str], decision: Decision) -> None:
        runs, running = [], decision.state.running
        for host in hosts:
            for job in decision.state.occupants(host):
                watch = self._watches.get(job.id)
                known = watch or GrowthWatch()
                marked_at = decision.now if known.marked_at is None else known.marked_at
                movable = watch is not None and self._movable(job, decision)
                runs.append(Watched(job.id, host, known.category, marked_at, known.evened_at, movable))
        for move in self._evens_out(hosts, runs, decision.now):
            job = running[move.job]
            if self._can_take(move.target, job, decision):
                self._watches[job.id].evened_at = decision.now
                self._move(job, move.target, move.reason, decision)

    # -- shares ---------------------------------------------------------------------------------------------------

    def _share_out(self, decision: Decision) -> None:
        """On each host with a watched run, the largest share is 1, and the others are smaller by category."""
        state = decision.state
        hosts = {
            _host(job): None
            for job_id in self._watches
            if (job := state.running.get(job_id)) is not None and _on_one(job, state)
        }
        for host in hosts:
            # The shares of runs that say what converging means for them are the business of Demotion. Nobody has to
            # give way to one that another policy lets pause.
            company = [
                job
                for job in state.occupants(host)
                if _on_one(job, state) and not job.request.converged and job.share > 0.0
            ]
            if not company:
                continue
            raw = [self._favour ** STEPS[self._category(job)] for job in company]
            for job, one in zip(company, raw, strict=True):
                share = one / max(raw)
                if share != job.share_asked_by(_SOURCE):
                    known = _WORDS[self._category(job)]
                    others = "" if share == 1.0 else ", and a run beside it learns less"
                    decision.ask_share(job, _SOURCE, share, f"it is {known}{others}")

    # -- hosts ----------------------------------------------------------------------------------------------------

    def _category(self, job: Job) -> Category:
        watch = self._watches.get(job.id)
        return Category.PROGRESSING if watch is None else watch.category

    def _groups(self, state: State) -> Iterator[list[str]]:
        """The hosts of watched runs, with those that are like them."""
        done: set[str] = set()
        for job_id in list(self._watches):
            job = state.running.get(job_id)
            if job is not None and _looked_after(job, state) and _host(job) not in done:
                hosts = self._alike(state, _host(job))
                done.update(hosts)
                yield hosts

    def _movable(self, job: Job, decision: Decision) -> bool:
        return _looked_after(job, decision.state) and decision.may_stop(job)

    def _counts(self, state: State, host: str) -> Counts:
        categories = [self._category(job) for job in state.occupants(host)]
        return Counts(*(categories.count(category) for category in Category))

    def _alike(self, state: State, host: str) -> list[str]:
        """The devices of the same kind in the same domain that are idle or whose runs share, in the nodes' order."""
        books = state.numbered[state.number_of(host)]
        domain, kind = books.node.domain, state.device(host).kind
        shared = set(state.shared_devices())
        return [
            device.id
            for one in state.numbered
            if one.node.domain == domain
            for device in one.node.devices
            if device.kind == kind and (device.id in shared or state.is_free(device.id))
        ]

    def _can_take(self, host: str, job: Job, decision: Decision) -> bool:
        state = decision.state
        if len(state.queue_of_waiting) and state.is_free(host):
            return False
        return decision.sharing.fits(job, state.device(host), state)

    def _move(self, job: Job, host: str, reason: str, decision: Decision) -> None:
        state, placement = decision.state, job.placement
        assert placement is not None
        node = state.numbered[state.number_of(host)].node
        if node.id == placement.node:  # its cores stay with it
            place = Placement(node.id, (host,), placement.cpus, placement.memory_bytes, placement.shared)
        else:
            place = grant(job, node, (host,), state, decision.sharing)
        decision.move(job, place, reason)


def _host(job: Job) -> str:
    assert job.placement is not None
    return job.placement.devices[0]


def _on_one(job: Job, state: State) -> bool:
    """Whether the run shares a single device, which is still there."""
    placement = job.placement
    return (
        placement is not None
        and job.request.shareable
        and len(placement.parts) == len(placement.devices) == 1
        and state.has_node(placement.devices[0])
    )


def _looked_after(job: Job, state: State) -> bool:
    """Whether the run trains on one device that it shares, and nobody is prepared behind it."""
    return (
        job.status is Status.TRAINING and _on_one(job, state) and job.behind is None and state.successor(job.id) is None
    )
