"""When waiting runs are expected to start, and all runs to end: a copy of the scheduler plays on over the estimates."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from enum import Enum

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.instructions import Hold, Instruction, Launch, Move, OpenGate, Preempt
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Job, Status
from prefect_gpu.scheduling.scheduler import Scheduler

_STEPS_PER_JOB = 16  # a profile that reviews its decisions every so often must not go on for ever
_STAYS = ("paused", "draining", "never")  # reasons to wait that no end of a run removes


@dataclass(frozen=True)
class Outlook:
    """What is expected of one run. Times are on the clock of the events.

    Attributes:
        start: When its process is expected to be started, or was; None: unknown.
        end: When its process is expected to be gone; None: unknown.
        reason: Why it waits, or why its start is unknown; of a run that is placed, where it is.
        ahead: Waiting runs that are expected to start before it.
        first_at: From when on no run of its queue may overtake a waiting one, but those that have waited too long
            themselves; None: it is not due yet, or there is no such bound.
    """

    start: float | None
    end: float | None
    reason: str
    ahead: int = 0
    first_at: float | None = None


class _Next(Enum):
    """What a run does next."""

    READY = 1  # it could train
    TRAINED = 2
    ENDED = 3
    STOPPED = 4


def forecast(scheduler: Scheduler, now: float, most: int = 200) -> dict[str, Outlook]:
    """What is expected of every run that waits or has a place, as far as the estimates go. It changes nothing.

    Args:
        scheduler: Its profile must be one of those known by name.
        now: The present, on the clock of its events.
        most: Waiting runs to look at, the first in order; of the others it is only known how many come first.

    Returns:
        By job. A run that is being stopped is taken to have stopped.

    Raises:
        ValueError: The profile is not known by name.

    Example:
        >>> from prefect_gpu.scheduling.model.cluster import Device, Node
        >>> from prefect_gpu.scheduling.model.jobs import Estimate, Request
        >>> scheduler = Scheduler("fifo")
        >>> node = Node("here", (Device("virtual-0", "virtual", 8 << 30, virtual=True),), cpus=(0, 1))
        >>> _ = scheduler.handle(ev.NodesChanged((node,)), now=0.0)
        >>> for job in ("a", "b"):
        ...     _ = scheduler.handle(ev.JobSubmitted(job, Request(), "q", 0.0, 0.0, job, Estimate(60.0)), now=0.0)
        >>> found = forecast(scheduler, now=0.0)["b"]
        >>> found.start, found.end, found.first_at
        (60.0, 120.0, 300.0)
        >>> found.reason
        'it needs 1 device on one node, and 1 of 1 is in use'
    """
    return Rehearsal(scheduler, now, most).play()


class Rehearsal:
    """A copy of a scheduler in a world in which every run takes as long as is estimated: see :func:`forecast`.

    It is made at once, and shares nothing with the scheduler that changes: it may be played in another thread. It knows
    what the scheduler has learned so far (:class:`.Learned`). What is not foreseen: runs that are submitted later, and
    how much runs slow each other down or are faster on more devices. A phase that has taken longer than was estimated
    is expected to go on for as long as it is over: so a run that never ends moves its successors on less and less
    often.
    """

    def __init__(self, scheduler: Scheduler, now: float, most: int = 200) -> None:
        self._now = now
        self._scheduler = Scheduler(scheduler.profile.name, scheduler.abilities, scheduler.state.learned.copy())
        self._plans: list[tuple[float, int, str, int, _Next]] = []
        self._count = 0
        self._turns: dict[str, int] = {}  # what was planned before a run was stopped or moved is void
        self._ready: set[str] = set()  # prepared behind another
        self._starts: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._placed: dict[str, str] = {}  # why a run has its place
        self._waits: dict[str, str] = {}  # why a run waits now
        self._last_hold: dict[str, str] = {}  # why it waits in the end
        self._queue: list[str] = []
        self._first_at: dict[str, float] = {}
        self._passed_over: list[tuple[str, str]] = []  # waiting runs that are not played, and why
        self._copy(scheduler, most)

    # -- the copy -------------------------------------------------------------------------------------------------

    def _copy(self, scheduler: Scheduler, most: int) -> None:
        old, new, now = scheduler.state, self._scheduler.state, self._now
        new.set_nodes(tuple(old.nodes.values()))
        new.set_quotas(old.quotas, now)
        new.draining = old.draining
        self._estimated: list[ev.Event] = []
        for job in old.running.values():
            twin = copy(job)
            twin.story = []
            twin.estimate = UNKNOWN  # told by an event, as the reactions of the profile watch those
            assert job.placement is not None and job.granted_at is not None
            new.take(twin, job.placement, job.status, job.granted_at, job.behind)
            twin.done_at = job.done_at
            self._estimated.append(ev.JobEstimated(job.id, job.estimate))
            self._starts[job.id] = job.granted_at if job.launched_at is None else job.launched_at
            self._placed[job.id] = "it has its devices already"
            self._carry_on(job)
        stopping = [job for job in old.jobs.values() if job.status is Status.STOPPING]
        due = [job for _, job in old.queue_of_waiting.in_order()]
        later = sorted(old.queue_of_waiting.not_due(), key=lambda job: (job.due_at, job.id))
        for job in (*stopping, *due, *later):
            limit = old.limit_on(job.queue)
            if limit is not None and limit[0] in _STAYS:
                self._passed_over.append((job.id, limit[1]))
            elif job.hold in _STAYS:
                self._passed_over.append((job.id, "no node can hold it"))
            elif len(self._queue) >= most:
                self._passed_over.append((job.id, f"more than {most} runs come first"))
            else:
                self._queue.append(job.id)
                # Others overtake one that its owner's limit holds back for as long as that does.
                ages = job.due_at <= now and job.hold != "share-limit"
                if ages and (first_at := old.queue_of_waiting.goes_first_at(job, old, now)) < math.inf:
                    self._first_at[job.id] = first_at
                twin = copy(job)
                twin.story, twin.hold = [], None
                new.admit(twin, now)

    def _carry_on(self, job: Job) -> None:
        """Plan what a run that has its place does next; nobody knows it of one without an estimate."""
        estimate, now = job.estimate, self._now
        if estimate.service_s is None:
            return
        if job.status is Status.SAVING:
            self._plan(job.id, estimate.saving_s, _Next.ENDED)
        elif job.status is Status.TRAINING:
            self._plan(job.id, abs(estimate.service_s - job.done(now)), _Next.TRAINED)
        elif job.status is Status.PREPARING and job.behind is not None:
            self._ready.add(job.id)
        else:
            since = self._starts[job.id]
            self._plan(job.id, abs(since + estimate.launching_s - now), _Next.READY)

    # -- the play -------------------------------------------------------------------------------------------------

    def play(self) -> dict[str, Outlook]:
        """Let time pass until all that is known has happened. To be called once."""
        self._decide([*self._estimated, ev.TimePassed()])
        jobs = self._scheduler.state.jobs
        for _ in range(_STEPS_PER_JOB * (len(jobs) + 4)):
            due = self._scheduler.next_due()
            timer_at = math.inf if due is None else due
            if timer_at <= self._now:
                timer_at = math.nextafter(self._now, math.inf)
            self._now = min(timer_at, self._plans[0][0] if self._plans else math.inf)
            if self._now == math.inf or not jobs:
                break
            news = list(self._happen())
            if timer_at <= self._now:
                news.append(ev.TimePassed())
            if news:
                self._decide(news)
        return self._outlooks()

    def _plan(self, job_id: str, in_s: float, what: _Next) -> None:
        self._count += 1
        turn = self._turns.get(job_id, 0)
        heapq.heappush(self._plans, (self._now + in_s, self._count, job_id, turn, what))

    def _happen(self) -> Iterable[ev.Event]:
        """Everything that was planned for this moment."""
        jobs = self._scheduler.state.jobs
        while self._plans and self._plans[0][0] <= self._now:
            _, _, job_id, turn, what = heapq.heappop(self._plans)
            if turn != self._turns.get(job_id, 0):
                continue
            job = jobs[job_id]
            if what is _Next.READY and job.behind is not None:
                self._ready.add(job_id)
                yield ev.PhaseEntered(job_id, Status.PREPARING)
            elif what is _Next.READY:
                left_s = job.remaining_s(self._now)
                if left_s is not None:
                    self._plan(job_id, left_s, _Next.TRAINED)
                yield ev.PhaseEntered(job_id, Status.TRAINING)
            elif what is _Next.TRAINED and job.estimate.saving_s > 0:
                self._plan(job_id, job.estimate.saving_s, _Next.ENDED)
                yield ev.PhaseEntered(job_id, Status.SAVING)
            elif what is _Next.STOPPED:
                yield ev.JobStopped(job_id)
            else:
                self._ends[job_id] = self._now
                yield ev.JobEnded(job_id, "completed")

    def _decide(self, news: list[ev.Event]) -> None:
        for instruction in self._scheduler.handle(ev.Together(tuple(news)), self._now):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        job_id, abilities = instruction.job, self._scheduler.abilities
        match instruction:
            case Hold():
                self._last_hold[job_id] = instruction.reason
                if job_id not in self._starts:
                    self._waits.setdefault(job_id, instruction.reason)
            case Launch():
                self._starts.setdefault(job_id, self._now)
                self._placed[job_id] = instruction.reason
                self._plan(job_id, self._scheduler.state.jobs[job_id].estimate.launching_s, _Next.READY)
            case OpenGate() if job_id in self._ready:
                self._ready.remove(job_id)
                self._plan(job_id, 0.0, _Next.READY)
            case Preempt():
                self._interrupt(job_id)
                if abilities.preemption is not Preemption.INSTANT:
                    self._plan(job_id, 0.0, _Next.STOPPED)
            case Move() if not abilities.free_moves:
                self._interrupt(job_id)
                self._plan(job_id, self._scheduler.state.jobs[job_id].estimate.launching_s, _Next.READY)

    def _interrupt(self, job_id: str) -> None:
        self._turns[job_id] = self._turns.get(job_id, 0) + 1
        self._ready.discard(job_id)

    # -- what came of it --------------------------------------------------------------------------------------------

    def _outlooks(self) -> dict[str, Outlook]:
        starts, ends = self._starts, self._ends
        found = {job: Outlook(start, ends.get(job), self._placed[job]) for job, start in starts.items()}
        known = sorted((job for job in self._queue if job in starts), key=starts.__getitem__)
        for ahead, job in enumerate(known):
            why, first_at = self._waits.get(job, self._placed[job]), self._first_at.get(job)
            found[job] = Outlook(starts[job], ends.get(job), why, ahead, first_at)
        others = [(job, self._why_unknown(job)) for job in self._queue if job not in starts]
        for ahead, (job, reason) in enumerate((*others, *self._passed_over), start=len(known)):
            found[job] = Outlook(None, None, reason, ahead, self._first_at.get(job))
        return found

    def _why_unknown(self, job_id: str) -> str:
        state = self._scheduler.state
        needs_device = state.jobs[job_id].request.total_gpus > 0
        endless = [
            job.label
            for job in state.running.values()
            if job.estimate.service_s is None and (job.request.total_gpus or not needs_device)
        ]
        if not endless:
            return self._last_hold.get(job_id, "it is too far ahead")
        return (
            f"the end of {endless[0]}"
            + (f" and {len(endless) - 1} more" if endless[1:] else "")
            + " cannot be predicted"
        )
