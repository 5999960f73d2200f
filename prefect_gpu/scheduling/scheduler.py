"""The scheduler's only door: an event goes in, instructions come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from prefect_gpu.phases import within
from prefect_gpu.scheduling.allocation.base import tell_line
from prefect_gpu.scheduling.decision import Decision, names
from prefect_gpu.scheduling.fair_share.standing import Standing
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import NOTHING_SPECIAL, Abilities, Preemption
from prefect_gpu.scheduling.model.instructions import Instruction
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.preemption.before_the_end import leave_in_time
from prefect_gpu.scheduling.preemption.time_limit import end_at_limit
from prefect_gpu.scheduling.profiles import Profile, get_profile
from prefect_gpu.scheduling.promises.answers import NO_PROMISES, answer, beyond_its_limit, settle
from prefect_gpu.scheduling.promises.book import Answer
from prefect_gpu.scheduling.promises.keep import KeepPromises
from prefect_gpu.scheduling.promises.reach import LEVEL
from prefect_gpu.scheduling.state.learned import Learned
from prefect_gpu.scheduling.state.state import State
from prefect_gpu.scheduling.state.waiting import Unsortable


class SchedulingError(RuntimeError):
    """An error in a policy. The event has changed the books, and what was decided before the error holds.

    Attributes:
        instructions: To be carried out: the books say that they are.
        job: The waiting job that was being decided about; None: no single one. ``PlacingFailed`` sets it aside.
        stalled: Whether the allocation has not looked at all jobs because of it; :meth:`Scheduler.tell_stalled` tells
            those who wait.
    """

    def __init__(self, decision: Decision, error: Exception, what: str = "", *, stalled: bool = True) -> None:
        super().__init__(f"{what}{type(error).__name__}: {error}")
        self.instructions = decision.instructions
        self.job = None if decision.about is None else decision.about.id
        self.stalled = stalled


_LONGEST_STORY = 500  # sentences, from which on phases are not told any more
_PHASES = (Status.PREPARING, Status.TRAINING, Status.SAVING)
_NOT_YET_TRAINING = (Status.LAUNCHING, Status.PREPARING, Status.STOPPING)  # here, a launch may turn out to have failed


class Scheduler:
    """Decides when, where and with what each run starts. The live and the simulated world run this same object.

    Args:
        profile: A profile, or the name of one.
        abilities: What the outside world can carry out.
        learned: What is known at the beginning; None: what the profile begins with.

    Raises:
        ValueError: The profile's name is not known.

    Example:
        >>> from prefect_gpu.scheduling.model.cluster import Device, Node
        >>> from prefect_gpu.scheduling.model.jobs import Request
        >>> scheduler = Scheduler("fifo")
        >>> node = Node("here", (Device("virtual-0", "virtual", 8 << 30, virtual=True),), cpus=(0, 1))
        >>> scheduler.handle(ev.NodesChanged((node,)), now=0.0)
        []
        >>> scheduler.handle(ev.JobSubmitted("a", Request(), "default", 0.0, 0.0), now=1.0)[0].reason
        'virtual-0 is free'
    """

    def __init__(
        self,
        profile: Profile | str = "fifo",
        abilities: Abilities = NOTHING_SPECIAL,
        learned: Learned | None = None,
    ) -> None:
        given = get_profile(profile) if isinstance(profile, str) else profile
        self.profile = replace(given, placement=given.placement.suited_to(abilities))
        self.abilities = abilities
        stops = abilities.preemption is not Preemption.NONE
        ranks = stops and any(action.ranks_running for action in self.profile.allocation)
        learned = given.learned if learned is None else learned
        self.state = State(
            given.order, given.patience_s, given.most_late, ranks_running=ranks, stops=stops, learned=learned
        )
        self._next_due: float | None = None
        self._at_once = 0  # so often in a row, a policy has asked to look again at once
        self._keeps_promises = any(isinstance(action, KeepPromises) for action in self.profile.allocation)
        for reaction in self.profile.reactions:
            reaction.bind(self.state)

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Take in one event and say what to do.

        1. The event changes the state, or nothing at all if it is late, repeated or impossible.
        2. Prepared jobs whose predecessor has stopped training may train.
        3. The reactions of the profile see the event: they look after running jobs. Whoever is on devices that leave
           service is asked to save in time.
        4. The allocation of the profile looks at all the jobs, if anything changed that it depends on.

        Args:
            event: What happened.
            now: When, in seconds on any clock that does not go backwards by much.

        Returns:
            Instructions in the order in which they are to be carried out.

        Raises:
            SchedulingError: A policy failed: a bug, or a request that nobody has thought of. If a reaction did, the
                others and the allocation have done their part nevertheless.
        """
        self.state.pass_time(now)
        decision = Decision(self.state, self.profile.policies, self.abilities, now)
        decision.keeps_promises = self._keeps_promises
        decision.at_once = self._at_once
        failures: list[Exception] = []
        try:
            self._decide(event, decision, failures)
        except Unsortable as failed:
            decision.about = failed.job
            incomparable = isinstance(failed.error, TypeError)  # then the order is nowhere in the traceback
            what = f"{type(self.profile.order).__name__} cannot sort {failed.job.label}: " if incomparable else ""
            raise SchedulingError(decision, failed.error, what) from failed.error
        except Exception as error:
            raise SchedulingError(decision, error) from error
        finally:
            self._at_once = decision.at_once if decision.at_once > self._at_once else 0
        if failures:
            decision.about = None
            raise SchedulingError(decision, failures[0], stalled=False) from failures[0]
        return decision.instructions

    def tell_stalled(self, reason: str, now: float) -> list[Instruction]:
        """Tell all who wait and are due that nothing can be decided at the moment. A later decision tells them more."""
        decision = Decision(self.state, self.profile.policies, self.abilities, now)
        for line in self.state.queue_of_waiting.lines():
            tell_line(decision, line, "stalled", reason)
        return decision.instructions

    def _decide(self, event: ev.Event, decision: Decision, failures: list[Exception]) -> None:
        now = decision.now
        changed = seen = False

        def ask(react: Callable[[], bool | None]) -> bool:
            try:
                return bool(react())
            except Exception as error:  # who looks after running jobs must not keep others from starting
                failures.append(error)
                return False

        for one in event.events if isinstance(event, ev.Together) else (event,):
            applied, decisive = self._apply(one, decision)
            changed |= decisive
            self.state.changes += decisive and not isinstance(one, ev.JobSubmitted | ev.TimePassed)
            if applied:
                seen = True
                for reaction in self.profile.reactions:
                    changed |= ask(partial(reaction.react, one, decision))
        changed |= leave_in_time(decision)
        end_at_limit(decision)
        if seen:
            for reaction in self.profile.reactions:
                ask(partial(reaction.settle, decision))
        if changed:
            self.state.queue_of_waiting.wake(self.state, now)
            decision.look_afresh()
            any(action.act(decision) for action in self.profile.allocation)  # up to one that decides about all jobs
            for reaction in self.profile.reactions:
                ask(partial(reaction.after, decision))
            moment = self.state.queue_of_waiting.next_moment()
            if moment is not None:
                decision.look_again_at(moment)
            self._next_due = decision.wake_at
        elif decision.wake_at is not None:
            self._next_due = decision.wake_at if self._next_due is None else min(self._next_due, decision.wake_at)

    def next_due(self) -> float | None:
        """When something is to be decided although nothing happens, or None: send ``TimePassed`` then.

        It may lie in the past, if nothing has been decided since.
        """
        return self._next_due

    def could_promise(self, job: Job, now: float) -> Answer:
        """What a job with a deadline would be answered if it came now. It is not taken in, and no plan changes."""
        if not self._keeps_promises:
            return Answer(None, None, NO_PROMISES)
        self.state.pass_time(now)
        too_many = beyond_its_limit(job, self.state)
        return Answer(None, None, too_many) if too_many else self.state.promises.ask(job)

    def standing(self) -> Standing | None:
        """How owners stand now; None: nothing is promised to any."""
        return self.state.standing(stops=self.abilities.preemption is not Preemption.NONE)

    # -- events ---------------------------------------------------------------------------------------------------

    def _apply(self, event: ev.Event, decision: Decision) -> tuple[bool, bool]:
        """Change the books. Returns (whether anything changed, whether a decision could depend on it)."""
        state, now = decision.state, decision.now
        match event:
            case ev.Progressed(done):
                for job_id, done_s in done:
                    job = state.jobs.get(job_id)
                    if job is not None:
                        state.progress(job, done_s, now)
                return True, False
            case ev.JobSubmitted():
                return _both(self._submit(event, decision))
            case ev.JobEnded(job_id, outcome):
                return _both(self._end(job_id, outcome, decision))
            case ev.TimePassed():
                return True, True
            case ev.PhaseEntered(job_id, status):
                return self._enter_phase(job_id, status, decision)
            case ev.NodesChanged(nodes):
                state.set_nodes(nodes)
                state.queue_of_waiting.regroup(state, now)
                return True, True
            case ev.QuotasChanged(quotas):
                state.set_quotas(quotas, now)
                return True, True
            case ev.JobEstimated(job_id, estimate):
                job = state.jobs.get(job_id)
                if job is None or job.estimate == estimate:
                    return False, False
                state.estimate(job, estimate, now)
                return True, True
            case ev.JobWithdrawn(job_id, reason):
                job = state.jobs.get(job_id)
                if job is None or job.active or job.status is Status.STOPPING:
                    return False, False
                job.story.append((now, f"withdrawn: {reason}"))
                state.forget(job)
                return True, True
            case ev.LeaveAsked(job_id, reason):
                job = state.running.get(job_id)
                if job is None or job.status is Status.SAVING or not decision.may_give_way(job):
                    return False, False
                decision.preempt(job, reason)
                return True, True
            case ev.JobAdopted():
                return _both(self._adopt(event, now))
            case ev.LaunchFailed(job_id, reason, not_before):
                job = state.jobs.get(job_id)
                if job is None or job.status not in _NOT_YET_TRAINING:
                    return False, False
                job.story.append((now, f"could not be launched: {reason}"))
                if job.active:
                    self._free(job, decision)
                job.retry_at = not_before
                state.admit(job, now)
                return True, True
            case ev.PlacingFailed(job_id, reason, not_before):
                job = state.jobs.get(job_id)
                if job is None or job.status is not Status.WAITING:
                    return False, False
                decision.hold(job, "failed", f"no place could be looked for ({reason}), which is tried again later")
                state.queue_of_waiting.remove(job)
                job.retry_at = not_before
                state.queue_of_waiting.add(job, state, now)
                return True, True
            case ev.JobStopped(job_id):
                job = state.jobs.get(job_id)
                if job is None or not (job.active or job.status is Status.STOPPING):
                    return False, False
                if job.active:  # an earlier worker had told it to stop
                    self._free(job, decision)
                job.story.append((now, "has stopped and waits again"))
                job.gave_way_at = now
                state.admit(job, now)
                return True, True
            case ev.DrainRequested():
                state.draining = True
                return True, True
            case ev.MemoryExhausted(job_id):
                job = state.running.get(job_id)
                if job is None or not job.request.shareable or job.placement is None or job.placement.others:
                    return False, False
                job.story.append((now, "ran out of the memory that it was granted: it needs its devices alone"))
                state.take_alone(job)
                return True, True
            case ev.WasteNoticed(job_id, reason, share_bytes):
                return self._waste(job_id, reason, share_bytes, now)
            case ev.WasteEnded(job_id):
                job = state.running.get(job_id)
                if job is None:
                    return False, False
                job.story.append((now, "uses its devices again"))
                if job.opened:
                    job.opened = False
                    state.take_alone(job)
                return True, False
            case (
                ev.LossReported(job_id)
                | ev.UtilisationMeasured(job_id)
                | ev.SpeedMeasured(job_id)
                | ev.SlowdownMeasured(job_id)
            ):
                return job_id in state.running, False
            case ev.CompanyLearned() | ev.ContentionLearned():
                return True, False
            case ev.RequestsLearned(types):
                state.learned.asked.remembered(types)
                return True, False
            case ev.UsageLearned(had, owed):
                state.learned.usage.remembered(dict(had), dict(owed), now)
                return True, True
            case ev.PromisesLearned(runs):
                for window_s, took_s, kept in runs:
                    state.learned.reach.remembered(window_s, took_s, kept)
                return True, False
            case ev.PressureMeasured(node):
                return node in state.nodes, False
        raise TypeError(f"{event!r} is no event")

    def _waste(self, job_id: str, reason: str, share_bytes: int | None, now: float) -> tuple[bool, bool]:
        """Tell a run that it wastes its devices, and let others join it if that was decided."""
        job = self.state.running.get(job_id)
        if job is None or job.placement is None:
            return False, False
        job.story.append((now, f"wastes its devices: {reason}"))
        alone = job.request.exclusive and not job.request.is_gang and not job.placement.others
        if share_bytes is None or not alone or self.state.successor(job_id) is not None:
            return True, False
        self.state.open_to_others(job, share_bytes)
        job.opened = True
        job.story.append((now, "others may share its devices from now on"))
        return True, True

    def _submit(self, event: ev.JobSubmitted, decision: Decision) -> bool:
        state, now = self.state, decision.now
        job = state.jobs.get(event.job)
        if job is None:
            job = Job(
                event.job, event.request, event.queue, event.submitted_at, event.not_before, event.name, event.estimate
            )
            job.attained_s = event.held_s
            job.story.append((now, "submitted"))
            if not answer(job, event.promised, decision):
                return False
            state.admit(job, now)
            state.learned.asked.submitted(job)
            state.learned.demand.submitted(job, now)
            return True
        if job.status is not Status.WAITING:
            return False
        before = (job.request, job.queue, job.not_before, job.estimate)
        changed = before != (event.request, event.queue, event.not_before, event.estimate)
        if changed or job.submitted_at != event.submitted_at:
            state.queue_of_waiting.remove(job)
            if job.request != event.request:
                job.hold = None  # its reason to wait, if there still is one, is a new one
            state.ask(job, event.request)
            job.queue, job.not_before = event.queue, event.not_before
            job.submitted_at = event.submitted_at
            job.expect(event.estimate)
            state.queue_of_waiting.add(job, state, now)
        job.name = event.name
        return changed

    def _adopt(self, event: ev.JobAdopted, now: float) -> bool:
        known = self.state.jobs.get(event.job)
        if known is not None and known.active:
            return False
        if known is not None:
            self.state.queue_of_waiting.remove(known)
        job = Job(event.job, event.request, event.queue, event.submitted_at, event.submitted_at, event.name)
        job.attained_s = event.held_s
        if known is None:
            self.state.learned.asked.submitted(job)
        else:  # it keeps its weight when it is stopped and started again
            job.asked_shares = known.asked_shares
        job.story.append((now, f"found running on {names(event.placement.all_devices)} and adopted"))
        status = event.status if event.status in _PHASES else Status.LAUNCHING
        # Whoever it was prepared behind may be gone by now, or may have begun to save: then its gate is open. Or others
        # train there: to wait for that one would be in vain.
        ahead = self.state.running.get(event.behind or "")
        waits = (
            ahead is not None
            and ahead.status is not Status.SAVING
            and self.state.successor(ahead.id) is None
            and self.state.is_free_after(ahead, event.request, event.placement)
        )
        behind = event.behind if waits and status is not Status.TRAINING and status is not Status.SAVING else None
        job.opened = event.opened
        if event.request.deadline_at is not None:
            # A run that asked for a promise would not run without one.
            job.promised = event.promised or (LEVEL if event.request.promise else None)
            if known is not None and known.id in self.state.promises.jobs:
                job.promised = job.promised or known.promised
                self.state.promises.add(job)
            elif job.promised is not None or event.in_time:
                self.state.promises.add(job)
        elif known is not None:
            self.state.promises.remove(known)
        self.state.take(job, event.placement, status, now, behind)
        self.state.accept(job)
        if status is Status.TRAINING:
            job.trains_since = now if event.trains_since is None else min(event.trains_since, now)
            self.state.progress(job, job.done_s, job.trains_since)
        return True

    def _enter_phase(self, job_id: str, status: Status, decision: Decision) -> tuple[bool, bool]:
        job = self.state.jobs.get(job_id)
        if job is None or not job.active or status not in _PHASES or job.status is status:
            return False, False
        before, job.status = job.status, status
        if len(job.story) < _LONGEST_STORY:  # a run may enter its phases as often as it likes
            job.story.append((decision.now, f"is {within(status.value)}"))
        if job.behind is not None and status in (Status.TRAINING, Status.SAVING):
            # It trains although its gate is closed: its worker was away for too long. What is, is.
            self.state.pass_gate(job, decision.now)
            self.state.accept(job)
        elif before is Status.SAVING:  # it tries again, while its successor may train already
            self.state.accept(job)
        if status is Status.TRAINING:
            job.trains_since = decision.now
            self.state.progress(job, job.done_s, decision.now)
        if status is Status.SAVING:
            self._open_gate_behind(job, f"{job.label} is {within(status.value)}", decision)
        return True, False  # no placement changes hands before the job ends

    def _end(self, job_id: str, outcome: str, decision: Decision) -> bool:
        job = self.state.jobs.get(job_id)
        if job is None or not (job.active or job.status is Status.STOPPING):
            return False
        job.story.append((decision.now, f"ended: {outcome}"))
        settle(job, outcome in ev.COMPLETED_OUTCOMES, decision)
        if outcome in ev.COMPLETED_OUTCOMES and job.estimate.service_s is not None and job.request.total_gpus:
            self.state.learned.lengths.came_true(job.estimate.service_s, job.done(decision.now), job.request.kind)
        self._free(job, decision)
        if job.request.total_gpus and job.attained_s and outcome != ev.SUSPENDED:
            self.state.learned.lengths.ended(job.request.total_gpus, job.attained_s)
        self.state.forget(job)
        return True

    def _free(self, job: Job, decision: Decision) -> None:
        self._open_gate_behind(job, f"{job.label} no longer holds its devices", decision)
        self.state.release(job, decision.now)

    def _open_gate_behind(self, job: Job, reason: str, decision: Decision) -> None:
        successor = self.state.successor(job.id)
        if successor is not None:
            decision.open_gate(successor, reason)


def _both(changed: bool) -> tuple[bool, bool]:
    return changed, changed
