"""Prepare the next job while the one before it still trains (Liquid's pre-scheduling, §6.1)."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.events import Event
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.placement.granting import choose_cpus, joined
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.scheduling.state.endings import lasts_until

_DEPTH = 16
_MOST_RIPE = 32  # looked at in each decision; when many runs overrun, all of them would take seconds
_MOST_CHOICES = 4  # of these, for whom it is asked who would start after it: that takes a millisecond on 1,000 nodes
_REMEMBERED = 64
_PRIOR_S = 5.0  # margin before anything was seen
_IN_TIME = 0.9  # part of the jobs that are to be ready in time
_PATIENCE = 2.0  # overruns by more than so many times the lead are not waited for


@dataclass
class _Launched:
    """A job launched behind another, what was expected then, and what has come of it.

    Attributes:
        ends_at: When its predecessor was expected to train no more.
        freed_at: When it did so.
        ready_at: When the job was ready.
    """

    behind: str
    at: float
    launching_s: float
    ends_at: float
    freed_at: float | None = None
    ready_at: float | None = None


class Margin:
    """How much earlier than by the estimates a job must be launched to be ready in time; learned from what went wrong.

    A *surprise* is how many seconds too late a job would have been without a margin: its predecessor ended earlier
    than expected, or it took longer to launch. The margin is a high quantile of the latest surprises, at least 0; the
    prior, 5 s, stands for one that nobody has seen yet, and counts as long as there are few others.
    """

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=_REMEMBERED)

    @property
    def seconds(self) -> float:
        """The margin now."""
        known = [*self._seen, *([_PRIOR_S] if len(self._seen) < math.ceil(1 / (1 - _IN_TIME)) else [])]
        return max(0.0, sorted(known)[math.ceil(_IN_TIME * len(known)) - 1])

    def learn(self, surprise_s: float) -> None:
        """One more job was late by so many seconds, or early if that is negative, had there been no margin."""
        self._seen.append(surprise_s)


class Prescheduling(Reaction):
    """Launches the first waiting job that fits behind a run that is about to end, on the same devices.

    It is launched T_l + margin before the predicted end of the training, prepares, and waits; the scheduler opens its
    gate when the predecessor saves, ends, crashes or is gone. The end is predicted from the service that is left and
    the pace that was measured; of one that still prepares, from its own launching time. Nobody is prepared behind a run
    that shares its devices with another that trains, or that overruns by more than twice the lead: nothing is known of
    its end then. A job that is behind such a run when other devices are free is stopped, if it may be, and starts
    there. Does nothing where there are no gates, where moving costs nothing, or where no service is estimated. Nobody
    is prepared to be on several nodes if it was learned how its program and others slow each other down there.

    Args:
        returns: Such a job is stopped in any case: it waits again, for an allocation that lets others make room.
        choice: Which waiting jobs would start if a running one had ended: only those are prepared behind it. None: the
            order alone says who is next.

    Attributes:
        margin: See :class:`Margin`.
    """

    def __init__(
        self, *, returns: bool = False, choice: Callable[[Job, Decision], set[str] | None] = lambda *_: None
    ) -> None:
        self.margin = Margin()
        self._returns = returns
        self._choice = choice
        self._paces: dict[str, tuple[float, float]] = {}  # since when, and from which done_s on, a pace is counted
        self._launched: dict[str, _Launched] = {}
        self._longest_s = 0.0  # launching time of any job seen
        self._calendar: list[tuple[float, str]] = []
        self._look_at: dict[str, float] = {}  # training job: its entry in the calendar
        self._ripe: dict[str, None] = {}  # jobs about to end, that nobody is prepared behind yet
        self._choices_left = 0  # in this decision

    def react(self, event: Event, decision: Decision) -> bool:
        """Follow who trains how fast, who is ready, and whose predecessor trains no more."""
        if not _useful(decision):
            return False
        jobs = decision.state.jobs
        match event:
            case ev.JobSubmitted(job_id) | ev.JobEstimated(job_id):
                if job_id in jobs:
                    self._longest_s = max(self._longest_s, jobs[job_id].estimate.launching_s)
                    self._watch(jobs[job_id], decision)
            case ev.PhaseEntered(job_id, status):
                self._drop(job_id)
                if status is Status.TRAINING:
                    self._paces[job_id] = (decision.now, jobs[job_id].done_s)
                self._watch(jobs[job_id], decision)
                self._note_phase(job_id, status, decision)
            case ev.Progressed(done):
                for job_id, done_s in done:
                    if job_id in self._paces and jobs[job_id].status is Status.TRAINING:
                        since, first_s = self._paces[job_id]
                        if done_s < first_s or decision.now <= since:  # it is told in other units from now on
                            self._paces[job_id] = (decision.now, done_s)
                        self._watch(jobs[job_id], decision)
            case ev.JobEnded(job_id) | ev.LaunchFailed(job_id) | ev.JobStopped(job_id):
                self._forget(job_id, decision)
        return False

    def settle(self, decision: Decision) -> None:
        """Prepare jobs behind those whose end is near, by all that is known now."""
        self._choices_left = _MOST_CHOICES
        if _useful(decision):
            if len(decision.state.queue_of_waiting):
                self._launch_due(decision)
            self._ask_for_time(decision)

    def after(self, decision: Decision) -> None:
        """Jobs that found no place may be prepared behind others."""
        if not _useful(decision):
            return
        self._rescue(decision)
        if len(decision.state.queue_of_waiting):
            self._launch_due(decision)
        self._ask_for_time(decision)

    # -- when -------------------------------------------------------------------------------------------------------

    def predicted_end(self, job: Job, now: float) -> float | None:
        """When a job that trains, or prepares with its gate open, will train no more; None if nobody knows."""
        service_s = job.estimate.service_s
        if service_s is None:
            return None
        if job.status is Status.PREPARING and job.behind is None and job.granted_at is not None:
            return max(now, job.granted_at + job.estimate.launching_s) + max(0.0, service_s - job.done_s)
        if job.done_at is None or job.status is not Status.TRAINING:
            return None
        if job.done_s >= service_s:
            return None  # the estimate was too short
        pace = self._paces.get(job.id)
        speed = 1.0
        if pace is not None and job.done_at > pace[0] and job.done_s > pace[1]:
            speed = (job.done_s - pace[1]) / (job.done_at - pace[0])
        return job.done_at + max(0.0, service_s - job.done_s) / speed

    def _watch(self, job: Job, decision: Decision) -> None:
        """More is known of a job's end: look at it when a job behind it may have to be launched."""
        end = self.predicted_end(job, decision.now)
        if end is None:
            return
        self._put_down(job.id, end - self._longest_s - self.margin.seconds)
        if len(self._calendar) > 4 * len(self._look_at) + 64:
            self._calendar = [(at, id_) for id_, at in self._look_at.items()]
            heapq.heapify(self._calendar)

    def _put_down(self, job_id: str, moment: float) -> None:
        """Look at the job at that moment, and not before."""
        self._ripe.pop(job_id, None)
        self._look_at[job_id] = moment
        heapq.heappush(self._calendar, (moment, job_id))

    def _launch_due(self, decision: Decision) -> None:
        """Launch jobs behind those whose end is near."""
        while self._calendar and self._calendar[0][0] <= decision.now:
            moment, job_id = heapq.heappop(self._calendar)
            if self._look_at.get(job_id) == moment:
                del self._look_at[job_id]
                self._ripe[job_id] = None
        for job_id in list(islice(self._ripe, _MOST_RIPE)):
            if self._choices_left <= 0:
                return
            del self._ripe[job_id]
            job = decision.state.jobs.get(job_id)
            if job is None or job.status not in (Status.PREPARING, Status.TRAINING):
                continue
            self._ripe[job_id] = None  # at the end: next time, others are looked at first
            if decision.state.successor(job_id) is None:
                self._prepare_behind(job, decision)

    def _ask_for_time(self, decision: Decision) -> None:
        if not len(decision.state.queue_of_waiting):
            return
        while self._calendar and self._look_at.get(self._calendar[0][1]) != self._calendar[0][0]:
            heapq.heappop(self._calendar)
        if self._calendar:
            decision.look_again_at(self._calendar[0][0])

    # -- who --------------------------------------------------------------------------------------------------------

    def _prepare_behind(self, job: Job, decision: Decision) -> None:
        end = self.predicted_end(job, decision.now)
        if end is None or not _alone(job, decision):
            return
        state, margin_s = decision.state, self.margin.seconds
        chosen, asked = None, False
        walk = decision.walk()
        for count, (line, waiting) in enumerate(walk):
            if count >= _DEPTH:
                return
            place = _place_behind(job, waiting, end, decision)
            kept_back = state.limit_on(line.queue) is not None or decision.kept_back(waiting.request) is not None
            if place is None or kept_back:
                if waiting.impatient and place is None:
                    return  # it has been overtaken often enough
                walk.leave()
                continue
            if place.others and state.learned.sensitivity.knows(waiting.request.kind):
                return
            lead_s = waiting.estimate.launching_s + margin_s
            if decision.now > end + _PATIENCE * lead_s:
                return
            if decision.now < end - lead_s:
                self._put_down(job.id, end - lead_s)
                return
            if not asked:
                chosen, asked = self._choice(job, decision), True
                self._choices_left -= chosen is not None
            if chosen is not None and waiting.id not in chosen:
                continue
            if decision.placement.place(waiting, state, decision.sharing) is not None:
                return  # it has a place of its own, and waits for another reason
            self._launched[waiting.id] = _Launched(job.id, decision.now, waiting.estimate.launching_s, end)
            ahead = max(0.0, end - decision.now)
            words = f"it prepares behind {job.label}, which is expected to train for {ahead:.0f} s more"
            decision.launch(waiting, place, words, behind=job)
            return

    def _rescue(self, decision: Decision) -> None:
        """Whoever is prepared behind a run that does not end, while there is a place free, starts anew there."""
        state = decision.state
        if not (state.free_count or self._returns):
            return
        for job_id, launched in list(self._launched.items()):
            job = state.jobs.get(job_id)
            late = decision.now > launched.ends_at + _PATIENCE * (launched.launching_s + self.margin.seconds)
            if job is None or job.behind is None or not late or not decision.can_stop(job):
                continue
            free = decision.placement.place(job, state, decision.sharing) is not None
            if free or self._returns:
                del self._launched[job_id]
                there = "other devices are free" if free else "others may make room for it"
                decision.preempt(job, f"its predecessor takes longer than expected, and {there}")
                decision.look_again_at(decision.now)

    # -- what went wrong --------------------------------------------------------------------------------------------

    def _note_phase(self, job_id: str, status: Status, decision: Decision) -> None:
        launched = self._launched.get(job_id)
        if launched is not None and status in (Status.PREPARING, Status.TRAINING):
            launched.ready_at = decision.now if launched.ready_at is None else launched.ready_at
            self._learn(job_id, launched)
        if status is Status.SAVING:
            self._freed(job_id, decision)

    def _freed(self, predecessor: str, decision: Decision) -> None:
        for job_id, launched in self._launched.items():
            if launched.behind == predecessor:
                launched.freed_at = decision.now if launched.freed_at is None else launched.freed_at
                self._learn(job_id, launched)
                return

    def _learn(self, job_id: str, one: _Launched) -> None:
        """Both moments are known: the margin learns by how much the job would have been late without it."""
        if one.ready_at is not None and one.freed_at is not None:
            self.margin.learn((one.ready_at - one.at - one.launching_s) + (one.ends_at - one.freed_at))
            del self._launched[job_id]

    def _forget(self, job_id: str, decision: Decision) -> None:
        self._freed(job_id, decision)
        self._drop(job_id)
        self._paces.pop(job_id, None)
        self._launched.pop(job_id, None)

    def _drop(self, job_id: str) -> None:
        self._look_at.pop(job_id, None)
        self._ripe.pop(job_id, None)


def _useful(decision: Decision) -> bool:
    return decision.abilities.gates and not decision.abilities.free_moves


def _alone(job: Job, decision: Decision) -> bool:
    """Whether nobody else needs the job's devices, and they are all still there. Who saves needs them no more."""
    placement, state = job.placement, decision.state
    if placement is None or not placement.all_devices:
        return False
    return all(
        state.has_node(device)
        and all(other is job or other.status is Status.SAVING for other in state.occupants(device))
        for device in placement.all_devices
    )


def _place_behind(job: Job, waiting: Job, end: float, decision: Decision) -> Placement | None:
    """The devices of a running job, or some of them, for the next one; None if that cannot take its place.

    A job on several nodes is followed by one of the same shape only. One that may be stopped, and is followed by one
    that may not be, makes room for nobody any more: it is about to end anyway.

    Args:
        end: When the running job is expected to have trained.
    """
    request, placement, state = waiting.request, job.placement, decision.state
    assert placement is not None
    if not waiting.estimate.waits:
        return None
    gpus = request.gpus
    if gpus == 0:
        return None
    devices = [state.device(id_) for id_ in placement.all_devices]
    if not all(map(waiting.fits_on, devices)):
        return None
    first_end = min((device.ends_at for device in devices if device.ends_at is not None), default=math.inf)
    if not lasts_until(waiting, first_end, state, from_s=end - decision.now):
        return None
    if job.request.grows and not request.is_gang:
        on_one = _on_one_node(placement, gpus)
        if on_one is None:
            return None
        parts: tuple[Placement, ...] = (on_one,)
    elif placement.others or request.is_gang:
        before, parts = job.request, placement.parts
        if request.grows and all(len(part.devices) == gpus for part in parts):
            parts = parts[: _workers_behind(waiting, len(parts))]
            if not parts:
                return None
        else:
            workers = len(parts) if before.grows else before.workers  # as many as it has now
            if (before.gpus, workers, before.servers) != (gpus, request.workers, request.servers):
                return None
    else:
        if gpus > len(placement.devices):
            return None
        parts = (replace(placement, devices=placement.devices[:gpus]),)
    promises, on = state.promises, Counter(state.group_of(one) for part in parts for one in part.devices)
    if not all(promises.leaves_room_with(waiting, [job], group, count, behind=True) for group, count in on.items()):
        return None
    return _granted(waiting, parts, placement.servers, decision)


def _on_one_node(placement: Placement, gpus: int) -> Placement | None:
    """So many of a gang's devices that are on one node, with the cores of their workers; None: no node has as many."""
    for node in placement.nodes:
        parts = [part for part in placement.parts if part.node == node]
        while sum(len(part.devices) for part in parts[:-1]) >= gpus:
            parts.pop()
        devices = tuple(device for part in parts for device in part.devices)[:gpus]
        if len(devices) == gpus:
            cores = {core for part in parts for core in part.cpus}
            return Placement(node, devices, tuple(sorted(cores)))
    return None


def _workers_behind(waiting: Job, most: int) -> int:
    """With how many workers an elastic gang begins behind a run that has so many parts; 0: they are too few.

    With as many as make it fastest, as far as its speed is known, and with its minimum where it is not.
    """
    request, speed = waiting.request, waiting.estimate.throughput
    counts = range(request.workers, min(most, request.max_workers or 0) + 1)
    known = {count: speed[count * request.gpus - 1] for count in counts if count * request.gpus <= len(speed)}
    return max(known, key=known.__getitem__) if any(known.values()) else min(counts, default=0)


def _granted(waiting: Job, parts: tuple[Placement, ...], servers: int, decision: Decision) -> Placement:
    """The same devices, with the memory that the job is granted of them and cores of its own choice."""
    state, sharing = decision.state, decision.sharing
    own = []
    for part in parts:
        devices = [state.device(id_) for id_ in part.devices]
        cpus = part.cpus
        if waiting.request.cpus is not None and part.node in state.nodes:
            cpus = choose_cpus(waiting, state.nodes[part.node], part.devices, state)
        memory_bytes = sharing.granted_bytes(waiting, devices)
        own.append(Placement(part.node, part.devices, cpus, memory_bytes, waiting.request.shareable))
    return joined(own, servers)
