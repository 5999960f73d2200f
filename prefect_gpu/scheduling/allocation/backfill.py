"""Start what fits, in order; later jobs may pass one that does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Sequence

from prefect_gpu.scheduling.allocation.base import Action, tell_early, tell_line, why_not
from prefect_gpu.scheduling.allocation.reservations import Reservation, Reservations, expected_start
from prefect_gpu.scheduling.decision import Decision, names
from prefect_gpu.scheduling.interference.guard import InterferenceGuard
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.preemption.give_way import GiveWay
from prefect_gpu.scheduling.preemption.make_room import MakeRoom
from prefect_gpu.scheduling.state.fits import usable_now
from prefect_gpu.scheduling.state.state import State
from prefect_gpu.scheduling.state.waiting import Line

_DEPTH = 64


class Backfill(Action):
    """One pass over the waiting jobs.

    1. A job that is not due, or that a limit of the user's keeps back, waits.
    2. A job that fits gets its place at once, unless the guard says that another one, or nobody, is to start first; the
       books change before the next job is looked at.
    3. For a job that fits nowhere, running jobs make room, if that is asked for; the pass begins anew then.
    4. Otherwise it waits, and later ones may pass it, until it loses patience (or at once, for the first one, with
       ``reserve_first``). From then on the devices that it will start on are kept for it: those that are expected to be
       free first if all ends are expected, and all that it could use otherwise. A later job may still use them if it is
       expected to have ended by then.

    Making room and the guard are parts of it, and no actions before or after: both are asked when it is a job's turn,
    before any later job gets the devices.

    Args:
        make_room: Stops running jobs for one that finds no place; None: nobody is stopped.
        guard: Asked before a job starts; None: whatever fits starts.
        reserve_first: Reserve for the first job that does not fit, patient or not (EASY backfilling).
        give_way: Says who may use what is kept for another: whoever would be stopped for it. None: nobody may.
        why: Says why no node can hold the first of a line; see :func:`.why_not`.
    """

    def __init__(
        self,
        make_room: MakeRoom | None = None,
        guard: InterferenceGuard | None = None,
        *,
        reserve_first: bool = False,
        give_way: GiveWay | None = None,
        why: Callable[[Decision, Line], tuple[str, Callable[[], str]]] = why_not,
    ) -> None:
        self._why = why
        self.make_room, self._guard = make_room, guard
        self.ranks_running = make_room is not None
        self._reserve_first, self._give_way = reserve_first, give_way

    def act(self, decision: Decision) -> bool:
        """See the class."""
        self.fill(decision)
        return True

    def fill(self, decision: Decision, without: Collection[Line] = (), kept: Sequence[Reservation] = ()) -> None:
        """Place the jobs of all lines but some.

        Args:
            without: Lines that somebody else decides about.
            kept: What is kept for jobs of those.
        """
        tell_early(decision)
        again = True
        while again:
            again = self._pass(decision, without, kept)

    def _pass(self, decision: Decision, without: Collection[Line], kept: Sequence[Reservation]) -> bool:
        """Go through the lines once. True if another pass is needed, because starts have changed the order."""
        state = decision.state
        reservations = Reservations(kept)
        walk, shared_out = decision.walk(), state.quotas.shares is not None
        limits: dict[str, tuple[str, str] | None] = {}
        for line, job in walk:
            decision.about = job
            if line in without:
                walk.leave()
                continue
            if line.queue not in limits:
                limits[line.queue] = state.limit_on(line.queue)
            limit = limits[line.queue] or decision.kept_back(line.request)
            if limit is not None:
                walk.leave()
                tell_line(decision, line, *limit)
                continue
            found = self._first_that_fits(decision, line, job, reservations)
            if found is None:
                kept_from_it = self._kept(reservations, job, decision)
                if self.make_room is not None and self.make_room.start(decision, job, kept_from_it):
                    return True
                walk.leave()
                self._blocked(decision, line, reservations)
                continue
            words = ""
            until = state.queue_of_waiting.patient_until(job)
            if self._guard is not None and not reservations and decision.now < until:
                checked = self._guard.check(decision, line, *found)
                if checked is None:
                    if until != math.inf:
                        decision.look_again_at(until)
                    walk.leave()
                    continue
                found, words = checked
            chosen, placement = found
            of_another = chosen is not job and not any(one is chosen for _, one in line.entries)
            decision.launch(chosen, placement, words or _words(decision, placement))
            limits.clear()
            if of_another:
                return True
            if decision.order.follows_use:
                state.queue_of_waiting.sort(state, decision.now)
                return True
            if shared_out:  # it may be somebody else's turn now
                return True
        decision.about = None
        return False

    def _kept(self, reservations: Reservations, job: Job, decision: Decision) -> Container[str]:
        if not reservations:
            return ()
        left_alone = math.inf if self._give_way is None else self._give_way.left_alone_until(decision, job)
        return reservations.kept_from(job, decision.now, left_alone)

    def _place(self, decision: Decision, job: Job, reservations: Reservations) -> Placement | None:
        if decision.state.free_count < job.request.total_gpus and not job.request.shareable:
            return None
        return decision.placement.place(job, decision.state, decision.sharing, self._kept(reservations, job, decision))

    def _first_that_fits(
        self, decision: Decision, line: Line, first: Job, reservations: Reservations
    ) -> tuple[Job, Placement] | None:
        """The first of the line, or one further back that is short enough.

        It is to be over before a reservation begins, or done with what it starts before a node is gone.
        """
        differ = reservations.any_known or decision.state.any_end
        others = (job for _, job in line.entries[:_DEPTH] if job is not first) if differ else ()
        for job in (first, *others):
            placement = self._place(decision, job, reservations)
            if placement is not None:
                return job, placement
        return None

    def _blocked(self, decision: Decision, line: Line, reservations: Reservations) -> None:
        """The first of a line, and with it all of the line, finds no place."""
        state, job = decision.state, line.entries[0][1]
        code: str
        reason: str | Callable[[], str]
        code, reason = self._why(decision, line)
        if code == "devices" and (declined := decision.placement.declines(job, state)):
            code, reason = "faster", declined
        if code != "never":
            if reservations and decision.placement.place(job, state, decision.sharing) is not None:
                code, reason = "reserved", f"its devices are kept for {reservations.keeper().label}"
            if job.impatient or (self._reserve_first and not reservations):
                reservations.keep(self._reserve(decision, job, reservations.devices()))
        tell_line(decision, line, code, reason)

    def _reserve(self, decision: Decision, job: Job, kept: Container[str]) -> Reservation:
        if self._give_way is not None:
            return self._give_way.reserve(decision, job, kept)
        state = decision.state
        return Reservation(job, *expected_start(job, state, usable_now(job, state), kept, decision.now))


def _words(decision: Decision, placement: Placement) -> str:
    why = decision.placement.why(placement)
    return f"{room_for(placement, decision.state)}{f', and {why}' if why else ''}"


def room_for(placement: Placement, state: State) -> str:
    """Why a job has this place, in words."""
    devices = placement.all_devices
    if not devices:
        return "it needs no device"
    if any(not state.is_free(device) for device in devices):
        return f"{names(devices)} {'have' if len(devices) > 1 else 'has'} room beside other runs"
    return f"{names(devices)} {'are' if len(devices) > 1 else 'is'} free"
