"""Start what fits, in order, without stopping anything; later jobs may pass one that does not fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.allocation.base import Allocation, tell_early, tell_line, why_not
from prefect_gpu.scheduling.allocation.reservations import Reservation, Reservations, expected_start
from prefect_gpu.scheduling.decision import names
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.state.waiting import Line

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.model.cluster import Placement
    from prefect_gpu.scheduling.state.state import State

_DEPTH = 64


class Backfill(Allocation):
    """One pass over the waiting jobs.

    1. A job that is not due, or that a limit of the user's keeps back, waits.
    2. A job that fits gets its place at once; the books change before the next job is looked at.
    3. A job that fits nowhere now waits, and later ones may pass it, until it loses patience (or at once, for the
       first one, with ``reserve_first``). From then on the devices that it will start on are kept for it: those that
       are expected to be free first if all ends are expected, and all that it could use otherwise. A later job may
       still use them if it is expected to have ended by then.

    Args:
        reserve_first: Reserve for the first job that does not fit, patient or not (EASY backfilling).
    """

    def __init__(self, *, reserve_first: bool = False) -> None:
        self._reserve_first = reserve_first

    def allocate(self, decision: Decision) -> None:
        """See the class."""
        self.fill(decision)

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
        walk = state.queue_of_waiting.in_order()
        limits: dict[str, tuple[str, str] | None] = {}
        for line, job in walk:
            if line in without:
                walk.leave()
                continue
            if line.queue not in limits:
                limits[line.queue] = state.limit_on(line.queue)
            limit = limits[line.queue]
            if limit is not None:
                walk.leave()
                tell_line(decision, line, limit[0], lambda reason=limit[1]: reason)  # type: ignore[misc]
                continue
            found = self._first_that_fits(decision, line, job, reservations)
            if found is None:
                if self._make_room(decision, job, reservations):
                    return True
                walk.leave()
                self._blocked(decision, line, reservations)
                continue
            of_another = found[0] is not job and not any(one is found[0] for _, one in line.entries)
            decision.launch(*found, self._reason(decision, *found))
            limits.clear()
            if of_another:
                return True
            if decision.order.follows_use:
                state.queue_of_waiting.sort(state, decision.now)
                return True
        return False

    def _reason(self, decision: Decision, job: Job, placement: Placement) -> str:
        """Why a job that is about to start, does so there."""
        return _reason(placement, decision.state)

    def _make_room(self, decision: Decision, job: Job, reservations: Reservations) -> bool:
        """Stop others for a job that finds no place, and start it there. True if it did: the order has changed."""
        return False

    def _place(self, decision: Decision, job: Job, reservations: Reservations) -> Placement | None:
        if decision.state.free_count < job.request.total_gpus and not job.request.shareable:
            return None
        kept = reservations.kept_from(job, decision.now) if reservations else ()
        return decision.placement.place(job, decision.state, decision.sharing, kept)

    def _first_that_fits(
        self, decision: Decision, line: Line, first: Job, reservations: Reservations
    ) -> tuple[Job, Placement] | None:
        """The first of the line, or one further back that is short enough to be over before a reservation begins."""
        placement = self._place(decision, first, reservations)
        if placement is not None:
            return first, placement
        if not reservations.any_known:
            return None
        for job in [job for _, job in line.entries[:_DEPTH] if job is not first]:
            placement = self._place(decision, job, reservations)
            if placement is not None:
                return job, placement
        return None

    def _blocked(self, decision: Decision, line: Line, reservations: Reservations) -> None:
        """The first of a line, and with it all of the line, finds no place."""
        state, job = decision.state, line.entries[0][1]
        code: str
        reason: Callable[[], str]
        code, reason = why_not(decision, line, self.capability)
        if code != "never":
            if reservations and decision.placement.place(job, state, decision.sharing) is not None:
                keeper = reservations.keeper()
                code, reason = "reserved", lambda: f"its devices are kept for {keeper.label}"
            if job.impatient or (self._reserve_first and not reservations):
                usable, kept = self.capability.usable(job.request, job.room_bytes), reservations.devices()
                devices, start = expected_start(job, state, usable, kept, decision.now)
                reservations.keep(job, devices, start)
        tell_line(decision, line, code, reason)


class Strict(Allocation):
    """One pass over the waiting jobs that stops at the first one that does not fit: nobody ever passes anybody."""

    def allocate(self, decision: Decision) -> None:
        """See the class."""
        tell_early(decision)
        state = decision.state
        blocked: Job | None = None
        walk = state.queue_of_waiting.in_order()
        for line, job in walk:
            limit = state.limit_on(line.queue)
            if limit is not None:
                walk.leave()
                tell_line(decision, line, limit[0], lambda reason=limit[1]: reason)  # type: ignore[misc]
                continue
            if blocked is not None:
                walk.leave()
                tell_line(decision, line, "order", lambda first=blocked: f"{first.label} comes first")  # type: ignore[misc]
                continue
            placement = decision.placement.place(job, state, decision.sharing)
            if placement is None:
                walk.leave()
                code, reason = why_not(decision, line, self.capability)
                tell_line(decision, line, code, reason)
                blocked = job if code != "never" else None
                continue
            decision.launch(job, placement, _reason(placement, state))


def _reason(placement: Placement, state: State) -> str:
    devices = placement.all_devices
    if not devices:
        return "it needs no device"
    if any(not state.is_free(device) for device in devices):
        return f"{names(devices)} {'have' if len(devices) > 1 else 'has'} room beside other runs"
    return f"{names(devices)} {'are' if len(devices) > 1 else 'is'} free"
