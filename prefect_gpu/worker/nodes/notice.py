"""Learns that this worker's machine is about to be taken away: from a file or an HTTP endpoint, or a date in a setting.

Clouds tell a spot machine at an address of its own some seconds or minutes ahead. What they say differs; all of these
are understood: a date, alone or as ``time`` or ``NotBefore`` in JSON at any depth, a number of seconds, or the word
TRUE.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import httpx

from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.settings import GpuSettings

EVERY_S = 1.0
_ANSWERS_IN_S = 2.0
_NAMES = ("time", "notbefore", "not_before", "ends_at", "deadline")  # lower case, as clouds call the date
_IT_ENDS, _IT_STAYS = ("true", "yes"), ("", "false", "no", "none", "null")
_MOVED_S = 1.0  # a number of seconds that is counted down means the same moment


class NoticeError(ValueError):
    """What was read is no notice."""


class NoticeWatch:
    """Looks once a second whether this machine's end was announced.

    Args:
        settings: ``notice_file``, ``notice_url``, ``notice_seconds`` and ``leave_by``.
        fleet: All of its nodes leave service then.
        logger: Told of each notice, and of what cannot be read.
    """

    def __init__(
        self, settings: GpuSettings, fleet: Fleet, logger: logging.Logger | logging.LoggerAdapter[Any]
    ) -> None:
        self._settings, self._fleet, self._logger = settings, fleet, logger
        self._trouble = ""
        self._heard_before: dict[str, tuple[str, float]] = {}  # by where: what was read, and the moment that it means

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self._settings.notice_file or self._settings.notice_url or self._settings.leave_by)

    async def run(self) -> None:
        """Look for ever."""
        async with _client() as client:
            while True:
                await self.look(client)
                await asyncio.sleep(EVERY_S)

    async def look_once(self) -> None:
        """See :meth:`look`."""
        async with _client() as client:
            await self.look(client)

    async def look(self, client: httpx.AsyncClient) -> None:
        """Read all that there is, and let the fleet know the earliest end."""
        found, settings, trouble = list[tuple[float, str]](), self._settings, list[str]()
        if settings.leave_by is not None:
            found.append((settings.leave_by.timestamp(), "the worker is to leave by then"))
        for read in (self._in_file, partial(self._at_url, client)):
            try:
                found += await read()
            except (OSError, UnicodeError, NoticeError) as error:
                trouble.append(str(error))
        words = "; ".join(trouble)
        if words and words != self._trouble:
            self._logger.warning("Whether this machine is about to be taken away cannot be read: %s", words)
        self._trouble = words
        before = self._fleet.leaving.get("")
        if trouble and before is not None:  # what cannot be read now takes back nothing that it has announced
            found.append(before)
        self._tell(min(found, default=None))

    async def _in_file(self) -> list[tuple[float, str]]:
        file = self._settings.notice_file
        if file is None:
            return []
        why = f"announced in {file}"
        try:
            with file.expanduser().open() as opened:  # its last change: a file that is moved there keeps its mtime
                return self._heard(opened.read(), why, min(time.time(), os.fstat(opened.fileno()).st_ctime))
        except FileNotFoundError:
            return self._heard("", why, time.time())

    async def _at_url(self, client: httpx.AsyncClient) -> list[tuple[float, str]]:
        url = self._settings.notice_url
        if url is None:
            return []
        asked = client.get(url, headers={"Metadata": "true", "Metadata-Flavor": "Google"})
        try:  # the client's own limit is for each piece, and an answer may have no end
            answer = await asyncio.wait_for(asked, _ANSWERS_IN_S)
        except (asyncio.TimeoutError, httpx.TimeoutException):
            raise NoticeError(f"{url} did not answer within {_ANSWERS_IN_S:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoticeError(f"{url} gave no answer: {error or repr(error)}") from None
        if answer.status_code == httpx.codes.OK:
            return self._heard(answer.text, f"announced at {url}", time.time())
        if answer.status_code != httpx.codes.NOT_FOUND:
            raise NoticeError(f"{url} answered {answer.status_code}")
        return self._heard("", f"announced at {url}", time.time())

    def _heard(self, told: str, why: str, said_at: float) -> list[tuple[float, str]]:
        before = self._heard_before.pop(why, None)
        if before is not None and before[0] == told:  # seconds from now: they count from when they were said
            at: float | None = before[1]
        else:
            at = notice_in(told, said_at, self._settings.notice_seconds)
        if at is None:
            return []
        self._heard_before[why] = told, at
        return [(at, why)]

    def _tell(self, end: tuple[float, str] | None) -> None:
        before = self._fleet.leaving.get("")
        if end is None:
            if before is not None:
                del self._fleet.leaving[""]
                self._logger.warning("The notice was taken back: this machine stays.")
        elif before is None or before[1] != end[1] or abs(end[0] - before[0]) > _MOVED_S:
            self._fleet.leaving[""] = end
            when = datetime.fromtimestamp(end[0]).astimezone()
            self._logger.warning("This machine leaves service at %s: %s.", f"{when:%Y-%m-%d %H:%M:%S %Z}", end[1])


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=_ANSWERS_IN_S, trust_env=False)


def notice_in(told: str, now: float, notice_s: float) -> float | None:
    """When the machine ends, in Unix seconds, by what was read; None: nothing is announced.

    Args:
        now: When it was said, in Unix seconds.
        notice_s: How many seconds are left where only TRUE is said.

    Raises:
        NoticeError: It is none of what is understood.

    Example:
        >>> notice_in('{"action": "terminate", "time": "1970-01-01T00:02:00Z"}', now=60.0, notice_s=30.0)
        120.0
        >>> notice_in("TRUE", now=60.0, notice_s=30.0), notice_in("45", now=60.0, notice_s=30.0)
        (90.0, 105.0)
    """
    text = told.strip()
    if text.lower() in _IT_STAYS:
        return None
    if text.lower() in _IT_ENDS:
        return now + notice_s
    if re.fullmatch(r"\d{1,9}(\.\d{1,20})?", text):
        return now + float(text)
    if text[0] in "[{":
        try:
            said = list(_said(json.loads(text)))
        except (ValueError, RecursionError) as error:  # a number of thousands of digits is no JSONDecodeError
            raise NoticeError(f"{text[:80]!r} is not JSON: {error}") from None
        dates = [one for one in said if isinstance(one, str) and one]
        if said and not dates:  # Azure leaves NotBefore empty once it has begun: that takes nothing back
            raise NoticeError(f"{text[:80]!r} is no notice: no date stands where one is needed")
        return min(map(_date, dates), default=None)
    return _date(text)


def _said(value: Any) -> Iterator[str | int | float]:
    """What stands under a name that clouds give to the date."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name.lower() in _NAMES and isinstance(inner, (str, int, float)):
                yield inner
            else:
                yield from _said(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _said(inner)


def _date(text: str) -> float:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        try:
            found = parsedate_to_datetime(text)
        except (TypeError, ValueError, OverflowError):
            raise NoticeError(
                f"{text[:80]!r} is no notice: a date such as 2026-03-01T18:00+01:00 is needed, a number of seconds, "
                "TRUE, or JSON with `time` or `NotBefore`"
            ) from None
    moment = (found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)).timestamp()
    try:
        datetime.fromtimestamp(moment).astimezone()  # as it is said in the log
    except (ValueError, OverflowError):
        raise NoticeError(f"{text[:80]!r} is no date of this system's clock") from None
    return moment
