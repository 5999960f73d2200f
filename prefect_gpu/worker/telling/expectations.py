"""What the owner of a waiting run is told of its expected start and end, and when that is worth saying anew."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.forecast import Outlook, Rehearsal
from prefect_gpu.scheduling.model.cluster import Node, Quotas

# Times are told to so many runs, the first to start; the others are told about how many come first.
TOLD_TIMES = 20
_LEAST_S = 20.0  # between two messages to the same run; a server on SQLite takes few writes
_LEAST_UNKNOWN_S = 60.0  # if all that has changed is why its start is unknown
_MOVED_S, _MOVED = 5.0, 0.2  # a time has moved if by more than so many seconds, and such a part of those left
_SECONDS_MATTER_S = 600.0
_EVERY_S = 3.0  # between two forecasts, at least
_SHARE = 0.02  # of one core's time that forecasts may take


@dataclass(frozen=True)
class Shown:
    """What a waiting run's owner was told last.

    Attributes:
        reason: Why it waits.
        outlook: What was expected of it then; None: nothing was known yet.
        at: The worker's time.
    """

    reason: str
    outlook: Outlook | None
    at: float


class Expectations:
    """The newest forecast for a worker's scheduler; made in a thread, as it may take a while."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._outlooks: dict[str, Outlook] = {}
        self._at = self._played_at = float("-inf")  # of the last look: monotonic, and the worker's time
        self._took_s = 0.0
        self._under = Quotas(), tuple[Node, ...]()

    def of(self, run_id: str) -> Outlook | None:
        """What is expected of a run; None if it is too new."""
        return self._outlooks.get(run_id)

    def ahead_of(self, run_id: str) -> int:
        """How many waiting runs are expected to start before it; of one that is too new, more than of the others."""
        outlook = self._outlooks.get(run_id)
        return len(self._outlooks) if outlook is None else outlook.ahead

    async def refresh(self, scheduler: Scheduler, run_id: str | None = None) -> bool:
        """Look ahead again if the last look is old.

        Args:
            scheduler: Whose runs; its clock is the worker's.
            run_id: A run about which something is to be said now: if nothing is known of it, the look is made sooner.

        Returns:
            Whether it was.
        """
        under = _set_by_people(scheduler.state.quotas), tuple(scheduler.state.nodes.values())
        if under != self._under:  # what was expected while a queue was paused, or a node away, holds no longer
            self._outlooks, self._under = {}, under
        job = None if run_id is None else scheduler.state.jobs.get(run_id)
        if job is not None and job.gave_way_at > self._played_at:  # what was expected of it has happened
            self._outlooks.pop(job.id, None)
        age_s, least_s = time.monotonic() - self._at, self._took_s / _SHARE
        if age_s < (self._took_s if run_id is not None and run_id not in self._outlooks else max(_EVERY_S, least_s)):
            return False
        try:
            began = time.perf_counter()
            self._played_at = CLOCK()
            rehearsal = Rehearsal(scheduler, self._played_at)
            self._outlooks = await asyncio.to_thread(rehearsal.play)
            self._took_s = time.perf_counter() - began
        except Exception:  # a bug; runs are started all the same, and shown as waiting
            self._logger.exception("The starts of waiting runs cannot be forecast")
            self._outlooks, self._took_s = {}, 60.0
        self._at = time.monotonic()
        return True


def _set_by_people(quotas: Quotas) -> Quotas:
    """The limits and pauses, which change seldom, without what changes with each run and each hour."""
    queues = tuple(replace(queue, active_elsewhere=0) for queue in quotas.queues)
    return replace(quotas, queues=queues, pool_active_elsewhere=0, shares=None)


def message(reason: str, outlook: Outlook | None, now: float, zone: tzinfo | None = None) -> str:
    """What a waiting run's owner reads.

    Args:
        reason: Why it waits.
        outlook: What is expected of it, if anything is.
        now: The worker's time.
        zone: Whose time is meant; None: that of this machine.

    Example:
        >>> from datetime import timezone
        >>> message("1 of 1 is in use", Outlook(240.0, 4000.0, ""), now=0.0, zone=timezone.utc)
        '1 of 1 is in use. Expected to start at 00:04:00 UTC (in about 4 min) and to end at 01:06.'
        >>> message("gpus=3 is more than the 2 that a node of this worker has", None, now=0.0)
        'gpus=3 is more than the 2 that a node of this worker has.'
    """
    begins_with_a_name = "=" in reason.split()[0]  # of a job variable, as its owner has to write it
    said = f"{reason}." if begins_with_a_name else f"{reason[0].upper()}{reason[1:]}."
    if outlook is None:
        return said
    return f"{said}{_expected(reason, outlook, now, zone)}{_bound(outlook, now, zone)}"


def _expected(reason: str, outlook: Outlook, now: float, zone: tzinfo | None) -> str:
    if outlook.ahead >= TOLD_TIMES:
        return f" About {round(outlook.ahead, -1)} waiting runs come first."
    if outlook.start is None:
        return "" if outlook.reason == reason else f" Its start is unknown: {outlook.reason}."
    start, end = time_of_day(outlook.start, now, zone), "; its end is unknown"
    if outlook.end is not None:
        end = f" and to end at {time_of_day(outlook.end, now, zone)}"
    return f" Expected to start at {start} {_zone_at(outlook.start, zone)} ({_wait(outlook.start - now)}){end}."


def _bound(outlook: Outlook, now: float, zone: tzinfo | None) -> str:
    """Until when others may come first: finish-time fairness, as its owner can read it."""
    if outlook.first_at is None:
        return ""
    if outlook.first_at <= now:
        return " It is late, and may be overtaken no more."
    until = f"{time_of_day(outlook.first_at, now, zone)} {_zone_at(outlook.first_at, zone)}"
    return f" Others may overtake it until {until}."


def at_gate(ahead: str | None, ends_at: float | None, now: float, zone: tzinfo | None = None) -> str:
    """What the owner of a run that is prepared reads.

    Args:
        ahead: Name of the run that it waits for; None: it only waits for its devices.
        ends_at: When that one is expected to train no more, by the worker's time; None: nobody knows.
        now: The worker's time.
        zone: Whose time is meant; None: that of this machine.

    Example:
        >>> from datetime import timezone
        >>> at_gate("wise-owl", 240.0, now=0.0, zone=timezone.utc)
        'Prepared. It trains when wise-owl has stopped training: expected at 00:04:00 UTC (in about 4 min).'
    """
    if ahead is None:
        return "Prepared. It trains as soon as its devices are free."
    said = f"Prepared. It trains when {ahead} has stopped training"
    if ends_at is None:
        return f"{said}."
    ends_at = max(ends_at, now)
    return f"{said}: expected at {time_of_day(ends_at, now, zone)} {_zone_at(ends_at, zone)} ({_wait(ends_at - now)})."


def worth_saying(shown: Shown, outlook: Outlook | None, now: float) -> bool:
    """Whether what is expected of a run has changed so much that its owner is to be told.

    Args:
        shown: What they were told last.
        outlook: What is expected now.
        now: The worker's time.
    """
    before, since_s = shown.outlook, now - shown.at
    if outlook is None or (before is not None and since_s < _LEAST_S):
        return False
    if before is None:
        return True
    if outlook.ahead >= TOLD_TIMES:
        return outlook.ahead * 2 <= before.ahead
    if before.ahead >= TOLD_TIMES:
        return True
    if outlook.start is None and before.start is None:
        return outlook.reason != before.reason and since_s >= _LEAST_UNKNOWN_S
    return moved(before.start, outlook.start, now) or moved(before.end, outlook.end, now)


def moved(before: float | None, after: float | None, now: float) -> bool:
    """Whether a moment has moved so much that it is worth telling; all by the worker's time."""
    if before is None or after is None:
        return before is not after
    return abs(after - before) > max(_MOVED_S, _MOVED * (after - now))


def _zone_at(moment: float, zone: tzinfo | None) -> str:
    """The zone's name then: the reader may be in another one, and summer time has another name."""
    return datetime.fromtimestamp(CLOCK.unix(moment), zone).astimezone(zone).tzname() or ""


def time_of_day(moment: float, now: float, zone: tzinfo | None) -> str:
    """The time of day, with the date if it is not today's, and with seconds if it is soon; all by the worker's time."""
    local, today = (datetime.fromtimestamp(CLOCK.unix(at), zone) for at in (moment, now))
    date = "" if local.date() == today.date() else f"{local:%Y-%m-%d} "
    return date + f"{local:%H:%M:%S}" if moment - now < _SECONDS_MATTER_S else date + f"{local:%H:%M}"


def _wait(seconds: float) -> str:
    if seconds < 2:
        return "at any moment"
    if seconds < 90:
        return f"in about {seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"in about {minutes} min"
    hours = round(minutes / 60)
    return f"in about {hours} h" if hours < 48 else f"in about {round(hours / 24)} days"
