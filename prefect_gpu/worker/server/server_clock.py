"""What Prefect's server takes for the time: it may be another machine, whose clock shows something else."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

import httpx
from prefect.client.orchestration import PrefectClient

from prefect_gpu.runtime.clock import CLOCK, Clock

_ASKED = "prefect_gpu.asked_at"
_QUICK_S = 2.0  # an answer that took longer says little
_RESOLUTION_S = 1.0  # of an answer's date
_LATE_S = 10.0  # by which an answer's date may be old
_SILENT_S = 30.0  # a server that answers nothing for so long is away


class ServerClock:
    """Brings times that the server gives to the worker's time, and the other way round.

    The answers' dates tell the server's clock to a second. As long as they agree with the machine's own clock, as they
    do on one machine, that is more exact.

    Args:
        clock: The worker's time.
    """

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._before_s: float | None = None  # the server's clock before the worker's time; None: as the machine's own
        self._doubted: tuple[float, float, float] | None = None  # the newest date that may be late, and what it says
        self._client: httpx.AsyncClient | None = None
        self._well_since = clock()
        self._refused_since = math.inf
        self._waiting_since = math.inf  # for any answer

    def listen(self, client: PrefectClient) -> None:
        """Look at the dates of what the server answers to this client."""
        self.leave()
        self._client = client._client
        self._client.event_hooks["request"].append(self._asked)
        self._client.event_hooks["response"].append(self._answered)

    def leave(self) -> None:
        """Look no more."""
        if self._client is not None:
            self._client.event_hooks["request"].remove(self._asked)
            self._client.event_hooks["response"].remove(self._answered)
            self._client = None

    @property
    def before_s(self) -> float:
        """By how many seconds the server's clock is before the worker's time."""
        return -self._clock.ahead_s if self._before_s is None else self._before_s

    @property
    def well_s(self) -> float:
        """For how long the server, or what stands before it, has answered everything without an error, in seconds."""
        now = self._clock()
        return 0.0 if now - self._waiting_since > _SILENT_S else now - self._well_since

    @property
    def away_s(self) -> float:
        """For how long it has answered nothing but errors, or nothing at all, in seconds; 0.0 below half a minute."""
        away_s = self._clock() - min(self._refused_since, self._waiting_since)
        return away_s if away_s > _SILENT_S else 0.0

    def now(self) -> datetime:
        """What the server's clock shows."""
        return datetime.fromtimestamp(self._clock() + self.before_s, timezone.utc)

    def of(self, moment: datetime) -> float:
        """The worker's time of a moment that the server gives."""
        return moment.timestamp() - self.before_s

    async def _asked(self, request: httpx.Request) -> None:
        request.extensions[_ASKED] = now = self._clock()
        self._waiting_since = min(self._waiting_since, now)

    async def _answered(self, response: httpx.Response) -> None:
        now, asked = self._clock(), response.request.extensions.get(_ASKED)
        if response.is_error or now - self._waiting_since > _SILENT_S:
            self._well_since = now
        self._waiting_since = math.inf
        self._refused_since = min(self._refused_since, now) if response.is_error else math.inf
        try:
            date = parsedate_to_datetime(response.headers.get("date", "")).timestamp()
        except (TypeError, ValueError):
            return
        if asked is None or now - asked > _QUICK_S:
            return
        # It answered between the two, and its date leaves out what is less than a second.
        least, most = date - now, date + _RESOLUTION_S - asked
        if least <= -self._clock.ahead_s <= most:
            self._before_s = self._doubted = None
        elif self._before_s is not None and least <= self._before_s <= most:
            self._doubted = None
        elif not self._may_be_late(date, least, most):
            self._before_s = round((least + most) / 2, 3)

    def _may_be_late(self, date: float, least: float, most: float) -> bool:
        """Whether it is the date that is late, and not the clock: a busy server renews it when it gets to it.

        It is the clock if an answer with another date says the same.
        """
        if not 0.0 < self.before_s - most < _LATE_S:
            return False
        earlier, self._doubted = self._doubted, (date, least, most)
        if earlier is None or earlier[0] == date:
            return True
        return earlier[1] > most or least > earlier[2]
